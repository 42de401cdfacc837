"""Environments in several processes, played with any policy.

Workers are the actors of a run: processes with a ring in shared memory each, that a group looks
after and replaces (`actors/local_group.py`). They start with the first call that needs them, and
again for a policy with another network or for another limit of steps.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from rookery.actors.local_group import LocalActors
from rookery.actors.policy import NONE, checked, recipe
from rookery.algorithms import Algorithm, build_algorithm, row_spec
from rookery.components import custom_policy
from rookery.components.custom_policy import GuestConfig
from rookery.components.experience import each, joined, keys_of, steps_in
from rookery.config.schema import ActorConfig, Config, Engine, EnvConfig, Mode
from rookery.envs.lookup import name_of
from rookery.envs.make import Envs
from rookery.errors import ConfigError
from rookery.event import Episode
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.replay.ring import Ring
from rookery.types import Array, End, EnvSpec

WINDOW = 100  # episodes in the running means
PIECE = 512  # env steps that a worker plays before its ring is drained
ENDLESS = 1 << 62


class Source(NamedTuple):
    """Where actions come from."""

    config: Config  # of the network that chooses
    weights: dict[str, Array]
    epsilon: float  # share of random actions


class Stage(NamedTuple):
    """Workers, for one kind of policy and one limit of steps."""

    made_for: tuple[Any, ...]
    actors: LocalActors
    board: WeightStore
    spec: EnvSpec
    algorithm: Algorithm  # never plays: it knows which parameters act


class DistributedEnvironment:
    """Plays environments in `num_workers` processes, one in each.

    environment = DistributedEnvironment("CartPole-v1", num_workers=4)
    steps = environment.generate_experiences(agent, num_episodes=8)      # a list of dictionaries
    batch = environment.generate_batch_experiences(agent, 256)           # key → [256, ...]
    environment.update_policy(server.get_parameters().arrays)            # for the next steps
    environment.get_environment_stats()["mean_reward"]; environment.shutdown()

    `env_factory` is a Gymnasium id, a class, or a function without arguments; it may be a lambda. A
    policy is a `DistributedAgent`, an `InferencePolicy`, a function from an observation to an
    action, or any object with `act(obs)`; those of yours must be picklable. Agents explore by their
    `epsilon`. With `use_gpu`, or a `device`, workers ask networks there.
    """

    @checked
    def __init__(
        self,
        env_factory: Any,
        num_workers: int = 4,
        use_gpu: bool = False,
        device: str | None = None,
        *,
        seed: int = 0,
        engine: str = "processes",
        settings: Mapping[str, Any] = NONE,
    ):
        """`settings` may have those of `env`, by their dotted names."""
        if num_workers < 1 or engine not in (Engine.PROCESSES, Engine.INLINE):
            raise ConfigError(
                f"an environment has at least 1 worker and the engine processes or inline, got "
                f"{num_workers} and {engine!r}; leave them out for 4 processes"
            )
        self.env_factory, self.num_workers, self.seed = env_factory, num_workers, seed
        self.settings = dict(settings)
        self.devices = _devices(use_gpu, device)
        self._engine = Engine(engine)
        self._made_from = recipe(env_factory, settings)
        self._shown = _shown(self._made_from.shown())
        self._stage: Stage | None = None
        self._release = weakref.finalize(self, lambda: None)
        self._policy: Any = None
        self._open: list[dict[str, Array]] = []  # by worker: the row whose successor is to come
        self._left: list[dict[str, Array]] = []  # steps that nobody was given yet
        self._ended: deque[Episode] = deque(maxlen=WINDOW)
        self._env_steps = self._episodes = self._restarts = 0

    @property
    def spec(self) -> EnvSpec:
        """What observations and actions are."""
        return self._shown.spec

    @property
    def experience_keys(self) -> tuple[str, ...]:
        """What a buffer for these experiences is made with."""
        return keys_of(self.spec)

    @checked
    def generate_experiences(
        self, policy: Any, num_episodes: int, max_steps_per_episode: int = 1000
    ) -> list[dict[str, Any]]:
        """Plays so many whole episodes and returns their steps, episode by episode.

        An episode that is cut at `max_steps_per_episode` is truncated there.
        """
        _refuse_less_than_one("num_episodes", num_episodes)
        stage, source = self._prepared(policy, max_steps_per_episode)
        if self._open:  # steps were played before: their episodes are left
            self.reset_environments()
        each_plays, rest = divmod(num_episodes, self.num_workers)
        played: list[list[dict[str, Array]]] = [[] for _ in range(self.num_workers)]
        for episodes, workers in ((each_plays, self.num_workers), (1, rest)):
            if episodes and workers:
                self._play(stage, source, played, workers=workers, episodes=episodes)
        steps = [self._steps(pieces) for pieces in played if pieces]
        self._open.clear()
        return [step for own in steps for step in each(own)]

    @checked
    def generate_batch_experiences(self, policy: Any, batch_size: int) -> dict[str, Array]:
        """Plays on and returns so many steps: key → [B, ...].

        A few more are played than asked for, and given out by the next call.
        """
        _refuse_less_than_one("batch_size", batch_size)
        made_for = self._stage.made_for[-1] if self._stage else None
        stage, source = self._prepared(policy, made_for)
        self._open = self._open or [{} for _ in range(self.num_workers)]
        while (missing := batch_size - _size(self._left)) > 0:
            share = min(PIECE, -(-missing // self.num_workers) + 1)
            played: list[list[dict[str, Array]]] = [[] for _ in range(self.num_workers)]
            self._play(stage, source, played, workers=self.num_workers, env_steps=share)
            self._left += [self._steps(pieces, i) for i, pieces in enumerate(played)]
        whole = joined(self._left)
        self._left = [{key: column[batch_size:] for key, column in whole.items()}]
        return {key: column[:batch_size] for key, column in whole.items()}

    @checked
    def update_policy(self, params: Mapping[str, Any]) -> None:
        """Has workers play with these parameters, by the names that the agent's have.

        It counts until the next call that brings a policy of its own: with None for the policy,
        `generate_experiences` plays on with these.
        """
        if self._stage is None:
            raise ConfigError(
                "nobody plays yet, so nothing is known of the network that these parameters belong "
                "to; call generate_experiences with a policy first"
            )
        algorithm = self._stage.algorithm
        params = {name: np.array(array) for name, array in params.items()}
        if set(params) == set(algorithm.acting.state_dict()):
            load_arrays(algorithm.acting, params)
        else:
            load_arrays(algorithm.networks, {**arrays_of(algorithm.networks), **params})
        self._stage.board.publish(arrays_of(algorithm.acting))
        self._policy = None

    @checked
    def reset_environments(self) -> None:
        """Leaves the episodes that are being played, and begins new ones."""
        self._left.clear()
        self._open.clear()
        if self._stage is not None:
            self._stage.actors.cut()
            for ring in self._stage.actors.rings:
                ring.consume(ring.committed)

    @checked
    def get_environment_stats(self) -> dict[str, Any]:
        """Returns counts, and means over the last 100 episodes (nan before the first)."""
        actors = self._stage.actors if self._stage else None
        scores, lengths = [e.score for e in self._ended], [e.length for e in self._ended]
        return {
            "environment": self.spec.name,
            "num_workers": self.num_workers,
            "episodes": self._episodes,
            "env_steps": self._env_steps,
            "mean_reward": float(np.mean(scores)) if scores else float("nan"),
            "mean_length": float(np.mean(lengths)) if lengths else float("nan"),
            "restarts": self._restarts + (actors.restarts if actors else 0),
            "pids": actors.pids if actors else {},
        }

    @checked
    def shutdown(self) -> None:
        """Ends the workers. May be called again; the next steps start new ones."""
        if self._stage is not None:
            self._restarts += self._stage.actors.restarts
            self._stage = None
        self._left.clear()
        self._open.clear()
        self._release()

    def __enter__(self) -> "DistributedEnvironment":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # Workers and what they play with.

    def _prepared(self, policy: Any, limit: int | None) -> tuple[Stage, Source]:
        """Returns workers that have this policy; None is the one they have."""
        if policy is None and self._stage is not None:
            weights = arrays_of(self._stage.algorithm.acting)
            epsilon = float(getattr(self._policy, "epsilon", 0.0))
            return self._stage, Source(self._stage.actors.config, weights, epsilon)
        if policy is None:
            raise ConfigError("nobody has a policy yet, got None; give one with the first call")
        source = self._source(policy)
        stage = self._staged(source, limit)
        load_arrays(stage.algorithm.acting, source.weights)
        stage.board.publish(source.weights)
        self._policy = policy
        return stage, source

    def _source(self, policy: Any) -> Source:
        if hasattr(policy, "recipe") and hasattr(policy, "get_weights"):
            self._refuse_strangers(policy)
            epsilon = float(getattr(policy, "epsilon", 0.0))
            return Source(policy.recipe.config, policy.get_weights(), epsilon)
        raw = custom_policy.packed(policy)
        room = custom_policy.room_for(raw)
        known = self._stage.actors.config.algo if self._stage else None
        if isinstance(known, GuestConfig) and len(raw) <= known.room:
            room = known.room
        algo = GuestConfig(codec=self._shown.codec, room=room)
        config = replace(self._made_from.config, algo=algo)
        return Source(config, custom_policy.arrays_for(raw, room), 0.0)

    def _refuse_strangers(self, policy: Any) -> None:
        theirs = getattr(policy, "codec", self._shown.codec)
        if (theirs.leaves, theirs.action) != (self.spec.obs, self.spec.action):
            raise ConfigError(
                f"this policy was made for {policy.recipe.config.env.id}, whose observations or "
                f"actions are others than those of {self.spec.name}; make it with env=env_factory"
            )

    def _staged(self, source: Source, limit: int | None) -> Stage:
        made_for = (source.config.algo, source.config.net, limit)
        if self._stage is not None and self._stage.made_for == made_for:
            return self._stage
        self.shutdown()
        config = self._config(source.config, limit)
        algorithm = build_algorithm(config, self.spec)
        spec = row_spec(self.spec, algorithm)
        with contextlib.ExitStack() as stack:
            board = WeightStore(source.weights)
            stack.callback(board.close)
            board.publish(source.weights)
            actors = LocalActors(
                config,
                spec,
                weights_fd=board.fd,
                factory=self._made_from.factory,
                memory=algorithm.memory,
            )
            stack.callback(actors.close)
            self._release = weakref.finalize(self, stack.pop_all().close)
        self._stage = Stage(made_for, actors, board, spec, algorithm)
        return self._stage

    def _config(self, config: Config, limit: int | None) -> Config:
        """Returns the settings of the workers: those of the network, in these environments."""
        env = self._made_from.config.env
        if limit is not None:
            _refuse_less_than_one("max_steps_per_episode", limit)
            env = limited(env, limit)
        run = config.run
        actor = ActorConfig(
            num=self.num_workers,
            envs=1,
            chunk_episodes=1,
            pull_period=1,
            devices=self.devices,
            env_step_timeout_s=config.actor.env_step_timeout_s,
        )
        return Config(
            name=name_of(self.env_factory),
            run=replace(
                run, mode=Mode.SYNC, engine=self._engine, seed=self.seed, env_steps=ENDLESS
            ),
            env=replace(env, check=False),
            algo=config.algo,
            net=config.net,
            actor=actor,
        )

    # Playing.

    def _play(
        self,
        stage: Stage,
        source: Source,
        played: list[list[dict[str, Array]]],
        *,
        workers: int,
        env_steps: int = 1,
        episodes: int | None = None,
    ) -> None:
        """Has the first so many workers play; what they wrote is put to each one's pieces."""
        for reports in stage.actors.collect(env_steps, [source.epsilon] * workers, episodes):
            for pieces, ring in zip(played, stage.actors.rings, strict=True):
                if ring.waiting:
                    pieces.append(_taken(ring))
            for report in reports:
                self._ended.extend(report.ended)
                self._episodes += len(report.ended)
                self._env_steps += report.env_steps

    def _steps(self, pieces: list[dict[str, Array]], worker: int | None = None) -> dict[str, Array]:
        """Returns the steps of a worker's rows; the last one waits for what it led to."""
        if worker is not None and self._open[worker]:
            pieces = [self._open[worker], *pieces]
        rows = joined(pieces)
        if worker is not None:
            running = rows["end"][-1] == End.RUNNING
            self._open[worker] = {k: c[-1:] for k, c in rows.items()} if running else {}
        return steps_in(rows, self.spec, self._shown.codec)


def _taken(ring: Ring) -> dict[str, Array]:
    """Takes all rows out of a worker's ring."""
    slots = ring.slots(ring.consumed, ring.committed - ring.consumed)
    rows = {name: column[slots].copy() for name, column in ring.columns.items()}
    ring.consume(ring.committed)
    return rows


def _size(pieces: list[dict[str, Array]]) -> int:
    return sum(len(piece["action"]) for piece in pieces)


def limited(env: EnvConfig, limit: int) -> EnvConfig:
    """Returns settings with a limit of steps beside the environment's own.

    By a wrapper: `env.max_episode_steps` takes the place of an own limit, and could raise it.
    """
    return replace(env, wrappers=(*env.wrappers, {"TimeLimit": {"max_episode_steps": limit}}))


def _shown(envs: Envs) -> Envs:
    if envs.tables is not None:
        raise ConfigError(
            f"{envs.name} is a game with several seats, and components play environments for one "
            "agent; use rookery.train or rookery.train_dqn"
        )
    if envs.spec.frame_stack > 1:
        raise ConfigError(
            f"env.frame_stack is {envs.spec.frame_stack}, and experiences hold single frames; put "
            "FrameStackObservation into env.wrappers instead"
        )
    return envs


def _devices(use_gpu: bool, device: str | None) -> tuple[str, ...]:
    if device is None and not use_gpu:
        return ()
    return (str(pick_device(device or "cuda:0", "device")),)


def _refuse_less_than_one(name: str, number: int) -> None:
    if number < 1:
        raise ConfigError(f"{name} must be at least 1, got {number}; leave it out for the default")
