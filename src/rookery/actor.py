"""The actor: plays a vector of environments with frozen weights and writes what happens.

    actor.pull(board)                      # newest published weights, if there are newer ones
    played = actor.collect(64, epsilon)    # rows into its transport ring

Every step of every environment becomes one row; an episode's final observation becomes a row of
its own. A step that was only an autoreset becomes none.

Of games it plays lanes. One that is not due rests, and its row is written once it is known what its
action brought; what it did is held until then.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery import seeding
from rookery.algos import Acted, Algorithm, written
from rookery.algos.interface import NOTHING
from rookery.board import Board
from rookery.config.schema import ActorConfig, EnvConfig
from rookery.envs.frames import View
from rookery.envs.games.interface import Who
from rookery.envs.make import Envs, Steps
from rookery.envs.reward import learned_reward
from rookery.envs.tables import OPPONENT
from rookery.errors import ConfigError, ProtocolError
from rookery.event import Episode
from rookery.nets.arrays import arrays_of, load_arrays
from rookery.replay.ring import Ring, obs_column, row_bytes, schema_of
from rookery.seeding import Role
from rookery.types import AHEAD, Array, End, EnvSpec, Floats, Obs, Rows

_TERMINATED, _TRUNCATED = np.uint8(End.TERMINATED), np.uint8(End.TRUNCATED)
LONG = 4_096  # rows of a transport ring that is to hold whole episodes
CHUNKS, FEWEST = 16, 4  # in a transport ring: what its consumer may be late by
RING_BYTES = 8_000_000  # of a transport ring with more than the fewest chunks


class Listener(Protocol):
    """Somebody who hears what is published beside the weights, and how the actor explores."""

    epsilon: float
    heard: dict[str, Array]  # the latest of it that was its own

    def hear(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Takes in what is its own, and returns the rest."""


class Played(NamedTuple):
    """What a call of `collect` did."""

    env_steps: int
    ended: tuple[Episode, ...]


class Actor:
    """Plays and writes; knows nothing of replay, learner or engine."""

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
        company: Listener | None = None,  # who fills the other seats, where games are played
    ):
        self.envs, self.algorithm, self.config, self.env = envs, algorithm, config, env
        self.seed, self.index, self.info_keys, self.values = seed, index, info_keys, values
        self.company = company
        self.rng = seeding.generator(seed, Role.ACTOR, index=index, incarnation=incarnation)
        spec = written(envs.spec, algorithm)
        self.held = None if envs.tables is None else Held(spec, _lanes(envs, config))
        self.ring = ring or transport(spec, config, index=index, incarnation=incarnation)
        self.incarnation = incarnation
        self.version, self.since_pull = 0, 0
        self.cuts = 0  # times all episodes were cut for a checkpoint
        self.progress: list[Any] | None = None  # of the environments, when they were cut last
        self.score = np.zeros(envs.num)
        self.t = np.zeros(envs.num, dtype=np.int64)
        self.episode = np.zeros(envs.num, dtype=np.int64)
        self._everyone = np.arange(envs.num)
        self._looks_ahead = any(extra.name == AHEAD for extra in algorithm.extras)
        self._unknown = np.full(envs.num, np.nan, dtype=np.float32)
        self._begin(envs.reset(self._env_seed()))

    def _env_seed(self) -> int:
        life = (self.incarnation << 24) + self.cuts
        return seeding.integer(self.seed, Role.ENVS, index=self.index, incarnation=life)

    def _begin(self, obs: Obs) -> None:
        self.view = View(self.envs.spec, obs, self.algorithm.memory)

    def pull(self, board: Board) -> bool:
        """Takes the newest published weights; returns whether there were any."""
        weights = board.latest(self.version)
        if weights is None:
            return False
        arrays = weights.arrays
        if self.company is not None:
            arrays = self.company.hear(arrays)
        load_arrays(self.algorithm.acting, arrays)
        self.version, self.since_pull = weights.version, 0
        return True

    def due(self) -> bool:
        """Is it time to look for new weights?"""
        return self.since_pull >= self.config.pull_period

    def collect(self, env_steps: int, epsilon: float) -> Played:
        """Plays on from where it stopped, at least `env_steps` steps over all environments."""
        played, ended = 0, list[Episode]()
        while played < env_steps:
            played += self._step(epsilon, ended, env_steps - played)
        self.since_pull += played
        return Played(played, tuple(ended))

    def collect_episodes(self, episodes: int, epsilon: float) -> Played:
        """Plays until so many episodes have ended, or until the ring has no more room.

        With more than one environment, the others are then in the middle of theirs.
        """
        played, ended = 0, list[Episode]()
        while len(ended) < episodes and self.ring.free >= self.room(1):
            played += self._step(epsilon, ended)
        self.since_pull += played
        return Played(played, tuple(ended))

    def room(self, env_steps: int) -> int:
        """Returns the rows that this many env steps take at most: each may end an episode."""
        return 2 * (env_steps + self.envs.num) - 1

    def _step(self, epsilon: float, ended: list[Episode], left: int = 0) -> int:
        """Plays a step; `left` are the env steps up to where a rollout ends."""
        if self.company is not None:
            self.company.epsilon = epsilon
        view = self.view
        if self.held is None:
            acted = self.algorithm.act(
                view.seen(), self.rng, epsilon=epsilon, values=self.values, memory=view.memory
            )
            if acted.version is not None:  # chosen by somebody else's weights
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
        view.push(steps, acted.memory)
        self.ring.beat()
        return played

    def _step_lanes(self, held: "Held", epsilon: float) -> tuple[Acted, Steps]:
        """Plays a step where lanes are due; returns what each lane did when it acted last."""
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

    def _facing(self, opponent: Rows | None, who: Any = ...) -> Mapping[str, Array]:
        """Returns the column of opponents; one who is as we are is the version that plays."""
        if opponent is None:
            return NOTHING
        return {OPPONENT: np.where(opponent == Who.LATEST, self.version, opponent)[who]}

    def _ahead(self, steps: Steps, left: int) -> Array:
        """Returns what the policy expects of the next state where a rollout ends; nan before."""
        if np.count_nonzero(steps.real) < left:
            return self._unknown
        return self._best(self.view.after(steps).seen())  # type: ignore[no-any-return]

    def _write(self, acted: Acted, steps: Steps) -> int:
        """Writes one row for every environment that really took a step."""
        real = steps.real
        whole = np.count_nonzero(real) == len(real)  # a fifth of the time of real.all()
        who = self._everyone if whole else np.flatnonzero(real)
        reward = learned_reward(steps.reward, self.env)
        if not whole:
            acted = acted.of(who)
        self._rows(
            who,
            self.view.obs if whole else _pick(self.view.obs, who),
            End.RUNNING,
            action=acted.action,
            reward=reward if whole else reward[who],
            taken=acted.taken,
            best=acted.best,
            extras=acted.extras,
        )
        self.t += real
        self.score += steps.reward * real
        return len(who)

    def _rows(
        self,
        who: Rows,
        obs: Obs,
        end: Any,
        *,
        action: Any = 0,
        reward: Any = 0.0,
        taken: Any = np.nan,
        best: Any = None,
        extras: Mapping[str, Array] = NOTHING,
    ) -> None:
        """Writes one row for each; without a `best` its values stay "not estimated"."""
        ring = self.ring
        if ring.free < len(who):
            raise ProtocolError(
                f"actor {self.index}: its transport ring of {ring.capacity} rows is full; "
                "drain it before the next collect"
            )
        rows = {obs_column(k): leaf for k, leaf in self.envs.spec.unpack(obs).items()}
        rows |= {"action": action, "reward": reward, "end": end, "env": who}
        rows["version"] = self.version
        whole = who is self._everyone  # then nothing has to be picked out
        rows["episode"] = self.episode if whole else self.episode[who]
        rows["t"] = self.t if whole else self.t[who]
        if best is not None:
            rows |= {"taken": taken, "best": best}
        rows.update(extras)
        ring.put(len(who), rows)

    def _finish(self, steps: Steps) -> list[Episode]:
        """Writes final observations and starts new episodes where old ones ended."""
        who = np.flatnonzero(steps.terminated | steps.truncated)
        if not len(who):
            return []
        how = np.where(steps.terminated[who], _TERMINATED, _TRUNCATED)
        best = self._final_values(steps.final_obs, who, how) if self.values else None
        facing = self._facing(steps.opponent, who)
        self._rows(who, _pick(steps.final_obs, who), how, best=best, extras=facing)
        facts = zip(self.score[who].tolist(), self.t[who].tolist(), who.tolist(), strict=True)
        ended = [
            Episode(score, length, self.envs.finished_info(steps, i, self.info_keys))
            for score, length, i in facts
        ]
        self._new_episodes(who)
        return ended

    def _final_values(self, final_obs: Obs, who: Rows, how: Array) -> Array:
        """Returns what the policy still expected where it was interrupted, and 0 where it died."""
        best = np.zeros(len(who), dtype=np.float32)
        cut = np.flatnonzero(how == End.TRUNCATED)
        if len(cut):
            best[cut] = self._best(self.view.final(final_obs, who[cut]))
        return best

    def _best(self, seen: Obs) -> Any:
        return self.algorithm.act(seen, self.rng, noise=False, values=True).best

    def _new_episodes(self, who: Rows) -> None:
        self.score[who] = 0.0
        self.t[who] = 0
        self.episode[who] += 1

    def cut(self) -> None:
        """Ends every open episode here (truncated: it bootstraps) and resets all environments.

        Done at periodic checkpoints where environments cannot export their state, so that a
        resumed run and an uninterrupted one begin the same episodes. A lane that waits for what its
        action brings is cut at what it acted on, as if it had not.
        """
        who = np.flatnonzero(self.t > 0)
        if len(who):
            best = self._best(_pick(self.view.seen(), who)) if self.values else None
            tables = self.envs.tables
            facing = self._facing(None if tables is None else tables.opponent, who)
            self._rows(who, _pick(self.view.obs, who), End.TRUNCATED, best=best, extras=facing)
        self._new_episodes(who)
        self.cuts += 1
        self.progress = self.envs.export_progress()
        self._begin(self.envs.reset(self._env_seed()))

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns JSON-ready numbers and arrays. `numbers["envs"]` is None where they were cut."""
        exported = self.envs.export_state()
        numbers = {
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
        if self.company is not None:
            arrays |= {f"said.{k}": v.copy() for k, v in self.company.heard.items()}
        return numbers, arrays | {f"frames.{k}": v.copy() for k, v in self.view.stacks.items()}

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        self.rng = seeding.with_state(numbers["rng"])
        self.version, self.since_pull = numbers["version"], numbers["since_pull"]
        self.cuts = numbers["cuts"]
        self.score = np.array(numbers["score"])
        self.t = np.array(numbers["t"], dtype=np.int64)
        self.episode = np.array(numbers["episode"], dtype=np.int64)
        exported = numbers["envs"]
        # first: a new game may begin with an opponent's move, and that may be our own weights'
        self._reload({k[4:]: v for k, v in arrays.items() if k.startswith("net.")})
        if self.company is not None:
            self.company.hear({k[5:]: v for k, v in arrays.items() if k.startswith("said.")})
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
        """Takes weights back. It may have had none, or have none now: an oracle's were used."""
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


class Held:
    """What each lane did when it acted last, [L] of everything: rows come later than actions."""

    def __init__(self, spec: EnvSpec, lanes: int):
        self._lanes = lanes
        self.columns: dict[str, Array] = {
            "action": np.zeros((lanes, *spec.action.shape), dtype=spec.action.dtype)
        }

    @property
    def action(self) -> Array:
        return self.columns["action"]

    def take(self, who: Rows, acted: Acted, version: int) -> None:
        """Takes in what lanes `who` do now."""
        self._put("action", who, acted.action)
        self._put("version", who, np.full(len(who), version))
        if acted.best is not None:
            assert acted.taken is not None, "who says one says both"
            self._put("taken", who, acted.taken)
            self._put("best", who, acted.best)
        for name, extra in acted.extras.items():
            self._put(name, who, extra)

    def acted(self) -> Acted:
        """Returns what all lanes did; the versions that did it are among the extras."""
        rest = dict(self.columns)
        return Acted(rest.pop("action"), rest.pop("taken", None), rest.pop("best", None), rest)

    def _put(self, name: str, who: Rows, values: Array) -> None:
        if name not in self.columns:
            self.columns[name] = np.zeros((self._lanes, *values.shape[1:]), dtype=values.dtype)
        self.columns[name][who] = values


def _lanes(envs: Envs, config: ActorConfig) -> int:
    """Returns how many lanes there are; rings and replay have room for `actor.envs`."""
    assert envs.tables is not None, "only games have lanes"
    if envs.num > config.envs:
        seats = envs.tables.seats
        raise ConfigError(
            f"actor.envs is {config.envs}, and {envs.name} is played in all its {seats} seats, "
            f"each of which counts for one; use a multiple of {seats}: actor.envs={envs.num}"
        )
    return envs.num


def transport(spec: EnvSpec, config: ActorConfig, *, index: int, incarnation: int) -> Ring:
    """Makes an actor's ring, with the columns that never change filled in.

    `taken` is nan, "not estimated", for good where the actor writes no values.
    """
    schema = schema_of(spec)
    ring = Ring.create(schema, _capacity(row_bytes(schema), config))
    ring.columns["actor"][:] = index
    ring.columns["incarnation"][:] = incarnation
    ring.columns["taken"][:] = np.nan
    return ring


def _capacity(row: int, config: ActorConfig) -> int:
    """Returns the rows of a transport ring whose rows have `row` bytes each."""
    chunk = config.chunk + 2 * config.envs
    if config.chunk_episodes is not None:  # where it is full, sync drains: results depend on it
        return max(FEWEST * chunk, LONG)
    return min(CHUNKS, max(FEWEST, RING_BYTES // (chunk * row))) * chunk


def _spread(memory: Floats | None, before: Floats | None, who: Rows) -> Floats | None:
    """Returns what everybody remembers, of whom only `who` has something new to."""
    if memory is None or before is None:
        return memory
    everyone = before.copy()
    everyone[who] = memory
    return everyone


def _pick(obs: Obs, who: Rows) -> Obs:
    if isinstance(obs, dict):
        return {name: leaf[who] for name, leaf in obs.items()}
    return obs[who]
