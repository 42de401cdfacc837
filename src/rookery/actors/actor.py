"""The actor: steps a vector of environments with published weights and stores every step.

    actor.pull(weight_store)               # newest published weights, if there are newer ones
    played = actor.collect(64, epsilon)    # writes rows into the actor's transport ring

A transport ring is the ring buffer in shared memory from which the learner reads an actor's steps.
Every step of every environment becomes one row there; an episode's final observation becomes a row
of its own. A step in which an environment only reset itself (autoreset) is not stored.

In turn-based games each environment slot is one player of one of the parallel games. A slot acts
only when its player is to move. Its row is written once the reward and next observation of its
action are known, after the other players have moved; `PendingActions` stores the action until then.
"""

from collections.abc import Mapping
from types import EllipsisType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rookery import seeding
from rookery.algorithms import Acted, Algorithm, row_spec
from rookery.algorithms.algorithm import NO_EXTRAS
from rookery.config.schema import ActorConfig, EnvConfig
from rookery.envs.frame_stack import PolicyInputs
from rookery.envs.make import Envs, Steps
from rookery.envs.turn_based.game import Who
from rookery.envs.turn_based.opponents import OpponentSeats
from rookery.envs.turn_based.tables import OPPONENT
from rookery.envs.vector import learned_reward
from rookery.errors import ConfigError, ProtocolError
from rookery.event import Episode
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.replay.ring import Ring, obs_column, row_bytes, schema_of
from rookery.seeding import Role
from rookery.types import AHEAD, Array, Arrays, End, EnvSpec, Floats, Json, Obs, Rows, SavedState

_TERMINATED, _TRUNCATED = np.uint8(End.TERMINATED), np.uint8(End.TRUNCATED)
LONG = 4_096  # rows of a transport ring that is to hold whole episodes
CHUNKS, FEWEST = 16, 4  # in a transport ring: what its consumer may be late by
RING_BYTES = 8_000_000  # of a transport ring with more than the fewest chunks


class Played(NamedTuple):
    """Result of `collect` and `collect_episodes`: env steps played, and episodes that ended."""

    env_steps: int
    ended: tuple[Episode, ...]


class Actor:
    """Steps a vector of environments with a policy and writes every step into a ring buffer.

    Replay reads the steps from that ring buffer in shared memory. The actor itself does not depend
    on replay, the learner, or the process in which it runs.
    """

    def __init__(
        self,
        envs: Envs,
        algorithm: Algorithm,
        config: ActorConfig,
        env: EnvConfig,
        *,
        seed: int,
        ring: Ring | None = None,  # its transport ring; none: one of its own
        index: int = 0,
        incarnation: int = 0,
        info_keys: tuple[str, ...] = (),
        values: bool = False,  # write the policy's own estimates into its rows
        opponent_seats: OpponentSeats | None = None,  # players of the other seats, in games
    ):
        self.envs, self.algorithm, self.config, self.env = envs, algorithm, config, env
        self.seed, self.index, self.info_keys, self.values = seed, index, info_keys, values
        self.opponent_seats = opponent_seats
        self.rng = seeding.generator(seed, Role.ACTOR, index=index, incarnation=incarnation)
        spec = row_spec(envs.spec, algorithm)
        self.held = None if envs.tables is None else PendingActions(spec, _lanes(envs, config))
        self.ring = ring or transport(spec, config, index=index, incarnation=incarnation)
        self.incarnation = incarnation
        self.version, self.since_pull = 0, 0
        self.cuts = 0  # times all episodes were cut for a checkpoint
        self.progress: list[Json] | None = None  # of the environments, when they were cut last
        self.score = np.zeros(envs.num)
        self.t = np.zeros(envs.num, dtype=np.int64)
        self.episode = np.zeros(envs.num, dtype=np.int64)
        self._all_envs = np.arange(envs.num)
        self._looks_ahead = any(extra.name == AHEAD for extra in algorithm.extras)
        self._unknown = np.full(envs.num, np.nan, dtype=np.float32)
        self._begin(envs.reset(self._env_seed()))

    def _env_seed(self) -> int:
        life = (self.incarnation << 24) + self.cuts
        return seeding.integer(self.seed, Role.ENVS, index=self.index, incarnation=life)

    def _begin(self, obs: Obs) -> None:
        self.view = PolicyInputs(self.envs.spec, obs, self.algorithm.memory)

    def pull(self, weight_store: WeightStore) -> bool:
        """Loads the newest weights that the learner published; returns False if already loaded."""
        weights = weight_store.latest(self.version)
        if weights is None:
            return False
        arrays = weights.arrays
        if self.opponent_seats is not None:
            arrays = self.opponent_seats.hear(arrays)
        with torch.no_grad():  # the store was made for this network: names and shapes are the same
            for name, tensor in self.algorithm.acting.state_dict().items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        self.version, self.since_pull = weights.version, 0
        return True

    def due(self) -> bool:
        """Returns whether it is time to check for new weights (`pull`).

        That is so once `actor.pull_period` env steps were played since weights were last loaded.
        """
        return self.since_pull >= self.config.pull_period

    def collect(self, env_steps: int, epsilon: float) -> Played:
        """Plays at least `env_steps` env steps; returns what was played.

        The steps of all environments are added up. Episodes in progress continue where the previous
        call left them.
        """
        played, ended = 0, list[Episode]()
        while played < env_steps:
            played += self._step(epsilon, ended, env_steps - played)
        self.since_pull += played
        return Played(played, tuple(ended))

    def collect_episodes(self, episodes: int, epsilon: float) -> Played:
        """Plays until `episodes` episodes have ended, or the ring buffer to the learner is full.

        With several environments, other episodes are still in progress when it returns.
        """
        played, ended = 0, list[Episode]()
        while len(ended) < episodes and self.ring.free >= self.room(1):
            played += self._step(epsilon, ended)
        self.since_pull += played
        return Played(played, tuple(ended))

    def room(self, env_steps: int) -> int:
        """Returns the most rows (stored steps) that playing `env_steps` env steps can write.

        That is more than one row per step: the final observation of an episode is a row too.
        """
        return 2 * (env_steps + self.envs.num) - 1

    def _step(self, epsilon: float, ended: list[Episode], left: int = 0) -> int:
        """Steps every environment once; returns the number of env steps, without autoresets.

        Finished episodes are appended to `ended`. `left` is the number of env steps that `collect`
        has still to play, those of this call included.
        """
        if self.opponent_seats is not None:
            self.opponent_seats.epsilon = epsilon
        view = self.view
        if self.held is None:
            seen = view.seen() if view.stacks else view.obs
            acted = self.algorithm.act(
                seen, self.rng, epsilon=epsilon, values=self.values, memory=view.memory
            )
            if acted.version is not None:  # chosen by the inference server
                self.version = acted.version
            steps = self.envs.step(acted.action)
        else:
            acted, steps = self._step_lanes(self.held, epsilon)
            left -= self.envs.num  # a lane that rests at the end wrote its last row before
        if self._looks_ahead:
            ahead = self._ahead(steps, left)
            acted = acted._replace(extras={**acted.extras, AHEAD: ahead})
        played = self._write(acted, steps)
        ended += self._finish(steps)
        if view.stacks or acted.memory is not None:
            view.push(steps, acted.memory)
        else:
            view.obs = steps.obs
        self.ring.beat()
        return played

    def _step_lanes(self, held: "PendingActions", epsilon: float) -> tuple[Acted, Steps]:
        """Steps turn-based games once; returns all slots' last actions and the step's results.

        A slot is one player of one game. Only slots whose player is to move choose a new action.
        """
        view, who = self.view, np.flatnonzero(self.envs.due)
        acted = self.algorithm.act(
            _pick(view.seen(), who),
            self.rng,
            epsilon=epsilon,
            values=self.values,
            memory=None if view.memory is None else view.memory[who],
        )
        if acted.version is not None:
            self.version = acted.version
        held.take(who, acted, self.version)
        steps = self.envs.step(held.action)
        done = held.acted()
        extras = {**done.extras, **self._facing(steps.opponent)}
        return done._replace(extras=extras, memory=_spread(acted.memory, view.memory, who)), steps

    def _facing(
        self, opponent: Rows | None, who: "Rows | EllipsisType" = ...
    ) -> Mapping[str, Array]:
        """Returns the column `opponent` of the steps to store, for the slots `who`.

        A slot is one player of one game. The result is empty in runs without opponents. The column
        holds the version of the opponent's weights, or a negative code of `Who` for a random or
        scripted opponent.
        """
        if opponent is None:
            return NO_EXTRAS
        return {OPPONENT: np.where(opponent == Who.LATEST, self.version, opponent)[who]}

    def _ahead(self, steps: Steps, left: int) -> Array:
        """Returns value estimates of the next states, to bootstrap from, at a rollout's last step.

        At earlier steps it returns nan. `left` is the number of env steps that `collect` has still
        to play, those of this step included.
        """
        if np.count_nonzero(steps.real) < left:
            return self._unknown
        return self._best(self.view.after(steps).seen())

    def _write(self, acted: Acted, steps: Steps) -> int:
        """Stores one step per environment, except for those that only reset; returns how many."""
        real = steps.real
        whole = np.count_nonzero(real) == len(real)  # a fifth of the time of real.all()
        who = self._all_envs if whole else np.flatnonzero(real)
        reward = learned_reward(steps.reward, self.env)
        columns = {"action": acted.action, "reward": reward, **acted.extras}
        if acted.taken is not None and acted.best is not None:
            columns |= {"taken": acted.taken, "best": acted.best}
        obs = self.view.obs
        if not whole:
            obs = _pick(obs, who)
            columns = {name: column[who] for name, column in columns.items()}
        self._rows(who, obs, End.RUNNING, columns)
        self.t += real
        self.score += steps.reward * real
        return len(who)

    def _final_rows(
        self,
        who: Rows,
        obs: Obs,
        how: npt.ArrayLike,
        best: Array | None,
        facing: Mapping[str, Array],
    ) -> None:
        """Writes a row without an action: the final observation of each environment in `who`.

        `how` is a value of `End`: how the episodes ended. `best` are value estimates of the final
        observations. `facing` is the column `opponent`, the opponents in turn-based games;
        otherwise empty.
        """
        columns: dict[str, npt.ArrayLike] = {"action": 0, "reward": 0.0, **facing}
        if best is not None:
            columns |= {"taken": np.nan, "best": best}
        self._rows(who, obs, how, columns)

    def _rows(
        self, who: Rows, obs: Obs, end: npt.ArrayLike, columns: Mapping[str, npt.ArrayLike]
    ) -> None:
        """Writes one row (stored step) for each environment in `who` into the actor's ring buffer.

        `columns` may have `taken` and `best`, value estimates of the action taken and of the best
        action. Without them, the column `taken` stays nan ("not estimated"). Raises ProtocolError
        if the ring buffer is full.
        """
        ring = self.ring
        if ring.free < len(who):
            raise ProtocolError(
                f"actor {self.index}: its transport ring of {ring.capacity} rows is full; "
                "drain it before the next collect"
            )
        rows: dict[str, npt.ArrayLike] = (
            {obs_column(name): leaf for name, leaf in obs.items()}
            if isinstance(obs, dict)
            else {obs_column(""): obs}
        )
        rows |= {"end": end, "env": who, "version": self.version}
        whole = who is self._all_envs  # then nothing has to be picked out
        rows["episode"] = self.episode if whole else self.episode[who]
        rows["t"] = self.t if whole else self.t[who]
        rows.update(columns)  # last: in games each row has the version that chose its action
        ring.put(len(who), rows)

    def _finish(self, steps: Steps) -> list[Episode]:
        """Writes the final observation of each episode that ended, and returns these episodes."""
        who = np.flatnonzero(steps.terminated | steps.truncated)
        if not len(who):
            return []
        how = np.where(steps.terminated[who], _TERMINATED, _TRUNCATED)
        best = self._final_values(steps.final_obs, who, how) if self.values else None
        facing = self._facing(steps.opponent, who)
        self._final_rows(who, _pick(steps.final_obs, who), how, best, facing)
        facts = zip(self.score[who].tolist(), self.t[who].tolist(), who.tolist(), strict=True)
        ended = [
            Episode(score, length, self.envs.finished_info(steps, i, self.info_keys))
            for score, length, i in facts
        ]
        self._new_episodes(who)
        return ended

    def _final_values(self, final_obs: Obs, who: Rows, how: Array) -> Array:
        """Returns value estimates of final observations for bootstrapping: 0 after termination."""
        best = np.zeros(len(who), dtype=np.float32)
        cut = np.flatnonzero(how == End.TRUNCATED)
        if len(cut):
            best[cut] = self._best(self.view.final(final_obs, who[cut]))
        return best

    def _best(self, seen: Obs) -> Floats:
        # asked only of an algorithm that has value estimates
        return self.algorithm.act(seen, self.rng, noise=False, values=True).best  # type: ignore[return-value]

    def _new_episodes(self, who: Rows) -> None:
        self.score[who] = 0.0
        self.t[who] = 0
        self.episode[who] += 1

    def cut(self) -> None:
        """Truncates every episode in progress (values bootstrap there) and resets all environments.

        Called at periodic checkpoints if environments cannot export their state, so that a resumed
        run and an uninterrupted one begin the same episodes. In turn-based games an action whose
        outcome is not known yet is dropped: the episode ends at the observation before it.
        """
        who = np.flatnonzero(self.t > 0)
        if len(who):
            best = self._best(_pick(self.view.seen(), who)) if self.values else None
            tables = self.envs.tables
            facing = self._facing(None if tables is None else tables.opponent, who)
            self._final_rows(who, _pick(self.view.obs, who), End.TRUNCATED, best, facing)
        self._new_episodes(who)
        self.cuts += 1
        self.progress = self.envs.export_progress()
        self._begin(self.envs.reset(self._env_seed()))

    def state(self) -> tuple[dict[str, Json], dict[str, Array]]:
        """Returns the actor's state for a checkpoint: JSON-ready values, and arrays.

        The value `envs` is None if the environments cannot export their state.
        """
        exported = self.envs.export_state()
        numbers: dict[str, Json] = {
            "rng": seeding.state_of(self.rng),
            "version": self.version,
            "since_pull": self.since_pull,
            "cuts": self.cuts,
            "envs": exported,
            "progress": self.progress if exported is None else None,
            "score": self.score.tolist(),
            "t": self.t.tolist(),
            "episode": self.episode.tolist(),
        }
        arrays = {f"net.{k}": v.copy() for k, v in arrays_of(self.algorithm.acting).items()}
        if self.view.memory is not None:
            arrays["memory"] = self.view.memory.copy()
        if self.held is not None:
            arrays |= {f"held.{k}": v.copy() for k, v in self.held.columns.items()}
        if self.opponent_seats is not None:
            arrays |= {f"said.{k}": v.copy() for k, v in self.opponent_seats.heard.items()}
        return numbers, arrays | {f"frames.{k}": v.copy() for k, v in self.view.stacks.items()}

    def restore(self, numbers: SavedState, arrays: Arrays) -> None:
        self.rng = seeding.with_state(numbers["rng"])
        self.version, self.since_pull = numbers["version"], numbers["since_pull"]
        self.cuts = numbers["cuts"]
        self.score = np.array(numbers["score"])
        self.t = np.array(numbers["t"], dtype=np.int64)
        self.episode = np.array(numbers["episode"], dtype=np.int64)
        exported = numbers["envs"]
        # first: a new game may begin with an opponent's move, chosen by these weights
        self._reload({k[4:]: v for k, v in arrays.items() if k.startswith("net.")})
        if self.opponent_seats is not None:
            self.opponent_seats.hear({k[5:]: v for k, v in arrays.items() if k.startswith("said.")})
        self.progress = numbers.get("progress")
        if self.progress is not None:  # in an exported state it is already
            self.envs.restore_progress(self.progress)
        self._begin(
            self.envs.reset(self._env_seed())
            if exported is None
            else self.envs.restore_state(exported)
        )
        if exported is not None:
            for name, stack in self.view.stacks.items():
                stack[...] = arrays[f"frames.{name}"]
            if self.view.memory is not None:
                self.view.memory[...] = arrays["memory"]
            if self.held is not None:
                held = {k[5:]: v.copy() for k, v in arrays.items() if k.startswith("held.")}
                self.held.columns.update(held)

    def _reload(self, weights: dict[str, Array]) -> None:
        """Loads the actor's weights from a checkpoint.

        If the checkpoint has none (its run used central inference), the actor pulls published
        weights before it plays. Under central inference the actor has no network, and nothing is
        loaded.
        """
        if not self.algorithm.acting.state_dict():
            return
        if weights:
            load_arrays(self.algorithm.acting, weights)
        else:
            self.version, self.since_pull = 0, self.config.pull_period  # pulls before it plays

    def close(self) -> None:
        try:
            self.envs.close()
        finally:
            self.ring.close()


class PendingActions:
    """The last action of each of the L environment slots of turn-based games, as arrays [L, ...].

    A slot's row is written only after the other players have moved, so its action is stored here.
    """

    def __init__(self, spec: EnvSpec, lanes: int):
        self._lanes = lanes
        self.columns: dict[str, Array] = {
            "action": np.zeros((lanes, *spec.action.shape), dtype=spec.action.dtype)
        }

    @property
    def action(self) -> Array:
        return self.columns["action"]

    def take(self, who: Rows, acted: Acted, version: int) -> None:
        """Stores new actions of the slots `who`, and the version of the weights that chose them.

        A slot is one player of one turn-based game.
        """
        columns = {"action": acted.action, "version": np.full(len(who), version), **acted.extras}
        if acted.best is not None:
            assert acted.taken is not None, "an algorithm gives both values or none"
            columns |= {"taken": acted.taken, "best": acted.best}
        for name, values in columns.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((self._lanes, *values.shape[1:]), values.dtype)
            self.columns[name][who] = values

    def acted(self) -> Acted:
        """Returns the last actions of all slots, in the form that `Algorithm.act` returns.

        A slot is one player of one turn-based game. `extras` of the result also hold the version of
        the weights that chose each action.
        """
        rest = dict(self.columns)
        return Acted(rest.pop("action"), rest.pop("taken", None), rest.pop("best", None), rest)


def _lanes(envs: Envs, config: ActorConfig) -> int:
    """Returns the number of environment slots (lanes): one for each player of each parallel game.

    Raises ConfigError if that is more than `actor.envs`.
    """
    assert envs.tables is not None, "only games have lanes"
    if envs.num > config.envs:
        seats = envs.tables.seats
        raise ConfigError(
            f"actor.envs is {config.envs}, and {envs.name} is played in all its {seats} seats, "
            f"each of which counts for one; use a multiple of {seats}: actor.envs={envs.num}"
        )
    return envs.num


def transport(spec: EnvSpec, config: ActorConfig, *, index: int, incarnation: int) -> Ring:
    """Creates the shared-memory ring buffer from which replay reads an actor's rows (stored steps).

    The columns `actor` and `incarnation` (how often the actor was restarted) are filled in once for
    all rows. `taken`, the value estimate of the action taken, is filled with nan ("not estimated"),
    which an actor with value estimates overwrites.
    """
    schema = schema_of(spec)
    ring = Ring.create(schema, _capacity(row_bytes(schema), config))
    ring.columns["actor"][:] = index
    ring.columns["incarnation"][:] = incarnation
    ring.columns["taken"][:] = np.nan
    return ring


def _capacity(row: int, config: ActorConfig) -> int:
    """Returns how many rows (stored steps) of `row` bytes an actor's ring buffer holds.

    It is enough for 4 to 16 chunks (a chunk is the steps an actor plays between two messages), and
    for at least 4096 rows if chunks are whole episodes (`actor.chunk_episodes`).
    """
    chunk = config.chunk + 2 * config.envs
    if config.chunk_episodes is not None:  # where it is full, sync drains: results depend on it
        return max(FEWEST * chunk, LONG)
    return min(CHUNKS, max(FEWEST, RING_BYTES // (chunk * row))) * chunk


def _spread(memory: Floats | None, before: Floats | None, who: Rows) -> Floats | None:
    """Returns the recurrent state of all environment slots after only the slots `who` have acted.

    That is the state `before`, with `memory` in the slots `who`.
    """
    if memory is None or before is None:
        return memory
    memories = before.copy()
    memories[who] = memory
    return memories


def _pick(obs: Obs, who: Rows) -> Obs:
    if isinstance(obs, dict):
        return {name: leaf[who] for name, leaf in obs.items()}
    return obs[who]
