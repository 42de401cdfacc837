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
from typing import Annotated, Any, NamedTuple

import numpy as np

from rookery.actors.local_group import LocalActors
from rookery.actors.messages import ActorGroupSetup
from rookery.actors.policy import NONE, recipe
from rookery.algorithms import Algorithm, build_algorithm, row_spec
from rookery.api.rollout_worker import joined, taken
from rookery.components.custom_policy import RAW, UserPolicyConfig, packed
from rookery.components.experience import each, keys_of, steps_in
from rookery.components.protocols import checked_methods
from rookery.config.checks import Count, one_of
from rookery.config.schema import ActorConfig, Config, Engine, EnvConfig, Mode, RunConfig
from rookery.envs.lookup import name_of
from rookery.envs.make import Envs
from rookery.errors import ConfigError
from rookery.event import Episode
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.types import Array, End, EnvSpec

WINDOW = 100  # episodes in the running means
ENDLESS = 1 << 62  # env steps of a run without a limit
PIECE = 512  # env steps that a worker plays before its ring is drained


class StartedWorkers(NamedTuple):
    """Workers, for one kind of network and one limit of steps."""

    made_for: tuple[Any, ...]
    actors: LocalActors
    weight_store: WeightStore
    algorithm: Algorithm  # never plays: it knows which parameters act


@checked_methods
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

    def __init__(
        self,
        env_factory: Any,
        num_workers: Count = 4,
        use_gpu: bool = False,
        device: str | None = None,
        *,
        seed: int = 0,
        engine: Annotated[str, one_of(Engine.PROCESSES, Engine.INLINE)] = "processes",
        settings: Mapping[str, Any] = NONE,
    ):
        """`settings` may have those of `env`, by their dotted names."""
        self.env_factory, self.num_workers, self.seed = env_factory, num_workers, seed
        self.settings = dict(settings)
        self.devices = _devices(use_gpu, device)
        self._engine = Engine(engine)
        self._made_from = recipe(env_factory, settings)
        self._shown = _shown(self._made_from.shown())
        self._workers: StartedWorkers | None = None
        self._release = weakref.finalize(self, lambda: None)
        self._policy: Any = None
        self._rows: list[list[dict[str, Array]]] = [[] for _ in range(num_workers)]  # by worker
        self._left: list[dict[str, Array]] = []  # steps that no call has returned yet
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

    def generate_experiences(
        self, policy: Any, num_episodes: Count, max_steps_per_episode: Count = 1000
    ) -> list[dict[str, Any]]:
        """Plays so many whole episodes and returns their steps, episode by episode.

        An episode that is cut at `max_steps_per_episode` is truncated there.
        """
        workers = self._prepared(policy, max_steps_per_episode)
        if self._left:  # steps were played before: their episodes are left
            self.reset_environments()
        each_plays, rest = divmod(num_episodes, self.num_workers)
        for episodes, count in ((each_plays, self.num_workers), (1, rest)):
            if episodes and count:
                self._play(workers, count, 1, episodes)
        return [step for steps in self._steps() for step in each(steps)]

    def generate_batch_experiences(self, policy: Any, batch_size: Count) -> dict[str, Array]:
        """Plays on and returns so many steps: key → [B, ...].

        A few more are played than asked for, and given out by the next call.
        """
        made_for = self._workers.made_for[-1] if self._workers else None
        workers = self._prepared(policy, made_for)
        while (missing := batch_size - sum(len(piece["action"]) for piece in self._left)) > 0:
            share = min(PIECE, -(-missing // self.num_workers) + 1)
            self._play(workers, self.num_workers, share)
            self._left += self._steps()
        whole = joined(self._left)
        self._left = [{key: column[batch_size:] for key, column in whole.items()}]
        return {key: column[:batch_size] for key, column in whole.items()}

    def update_policy(self, params: Mapping[str, Any]) -> None:
        """Has workers play with these parameters, by the names that the agent's have.

        It counts until the next call that brings a policy of its own: with None for the policy,
        `generate_experiences` plays on with these.
        """
        if self._workers is None:
            raise ConfigError(
                "no workers play yet, so the network that these parameters belong to is not "
                "known; call generate_experiences with a policy first"
            )
        algorithm = self._workers.algorithm
        params = {name: np.array(array) for name, array in params.items()}
        acting = set(params) == set(algorithm.acting.state_dict())
        module = algorithm.acting if acting else algorithm.networks
        load_arrays(module, {**arrays_of(module), **params})
        self._workers.weight_store.publish(arrays_of(algorithm.acting))
        self._policy = None

    def reset_environments(self) -> None:
        """Leaves the episodes that are being played, and begins new ones."""
        self._forget_steps()
        if self._workers is not None:
            self._workers.actors.cut()
            for ring in self._workers.actors.rings:
                ring.consume(ring.committed)

    def get_environment_stats(self) -> dict[str, Any]:
        """Returns counts, and means over the last 100 episodes (nan before the first)."""
        actors = self._workers.actors if self._workers else None
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

    def shutdown(self) -> None:
        """Ends the workers. May be called again; the next steps start new ones."""
        if self._workers is not None:
            self._restarts += self._workers.actors.restarts
            self._workers = None
        self._forget_steps()
        self._release()

    def __enter__(self) -> "DistributedEnvironment":
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    # Workers and what they play with.

    def _prepared(self, policy: Any, limit: int | None) -> StartedWorkers:
        """Returns workers that have this policy; None is the one they have."""
        if policy is None:
            if self._workers is None:
                raise ConfigError("no policy was given yet, got None; give one with the first call")
            return self._workers
        config, weights = self._network_of(policy)
        made_for = (config.algo, config.net, limit)
        if self._workers is None or self._workers.made_for != made_for:
            self.shutdown()
            self._workers = self._started(made_for, self._config(config, limit), weights)
        load_arrays(self._workers.algorithm.acting, weights)
        self._workers.weight_store.publish(weights)
        self._policy = policy
        return self._workers

    def _network_of(self, policy: Any) -> tuple[Config, dict[str, Array]]:
        """Returns the settings and weights of a policy's network, or of a user's policy."""
        if hasattr(policy, "recipe") and hasattr(policy, "get_weights"):
            self._refuse_other_spaces(policy)
            return policy.recipe.config, policy.get_weights()
        weights = packed(policy)
        algo = UserPolicyConfig(codec=self._shown.codec, room=weights[RAW].size)
        return replace(self._made_from.config, algo=algo), weights

    def _refuse_other_spaces(self, policy: Any) -> None:
        theirs = getattr(policy, "codec", self._shown.codec)
        if (theirs.leaves, theirs.action) != (self.spec.obs, self.spec.action):
            raise ConfigError(
                f"this policy was made for {policy.recipe.config.env.id}, whose observations or "
                f"actions are others than those of {self.spec.name}; make it with env=env_factory"
            )

    def _started(
        self, made_for: tuple[Any, ...], config: Config, weights: dict[str, Array]
    ) -> StartedWorkers:
        algorithm = build_algorithm(config, self.spec)
        spec, factory = row_spec(self.spec, algorithm), self._made_from.factory
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(contextlib.closing(WeightStore(weights)))
            store.publish(weights)
            setup = ActorGroupSetup(config, spec, store.fd, factory, memory=algorithm.memory)
            actors = stack.enter_context(contextlib.closing(LocalActors(setup)))
            self._release = weakref.finalize(self, stack.pop_all().close)
        return StartedWorkers(made_for, actors, store, algorithm)

    def _config(self, config: Config, limit: int | None) -> Config:
        """Returns the settings of the workers: those of the network, in these environments."""
        env = self._made_from.config.env
        actor = ActorConfig(
            num=self.num_workers,
            envs=1,
            chunk=PIECE,
            chunk_episodes=None if config.algo.on_policy else 1,
            pull_period=1,
            devices=self.devices,
            env_step_timeout_s=config.actor.env_step_timeout_s,
        )
        run = RunConfig(mode=Mode.SYNC, engine=self._engine, seed=self.seed, env_steps=ENDLESS)
        return Config(
            name=name_of(self.env_factory),
            run=run,
            env=replace(env if limit is None else limited(env, limit), check=False),
            algo=config.algo,
            net=config.net,
            actor=actor,
        )

    # Playing.

    def _play(
        self, workers: StartedWorkers, count: int, env_steps: int, episodes: int | None = None
    ) -> None:
        """Has the first so many workers play; what they wrote is put to each one's rows."""
        epsilon = float(getattr(self._policy, "epsilon", 0.0))
        for reports in workers.actors.collect(env_steps, [epsilon] * count, episodes):
            for pieces, ring in zip(self._rows, workers.actors.rings, strict=True):
                if ring.waiting:
                    pieces.append(taken(ring))
            for report in reports:
                self._ended.extend(report.ended)
                self._episodes += len(report.ended)
                self._env_steps += report.env_steps

    def _steps(self) -> list[dict[str, Array]]:
        """Returns the steps of each worker's rows; its last row waits for what it leads to."""
        found = []
        for worker, pieces in enumerate(self._rows):
            if pieces:
                rows = joined(pieces)
                running = rows["end"][-1] == End.RUNNING
                self._rows[worker] = [{k: c[-1:] for k, c in rows.items()}] if running else []
                found.append(steps_in(rows, self.spec, self._shown.codec))
        return found

    def _forget_steps(self) -> None:
        self._left.clear()
        for pieces in self._rows:
            pieces.clear()


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
