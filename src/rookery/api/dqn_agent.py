"""DQN agent as `train_dqn` returns it: a learner and its replay buffer, without actor processes.

    agent = DqnAgent.new("CartPole-v1", settings={"net.hidden": [64]})
    for trajectory in rollout_worker(agent.policy(), episodes=4, epsilon=0.3):
        agent.add_trajectory_to_buffer(trajectory)
    agent.learn(16)
    agent.save("runs/agent")                      # runs/agent.safetensors
    agent = DqnAgent.open("runs/agent")

A saved agent holds all networks, the optimizer and the settings: named arrays, and JSON in the
header of a safetensors file. The replay buffer is not saved. Pickle is not used.
"""

import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.actors.actor import transport
from rookery.actors.policy import NONE, InferencePolicy, Recipe, checked, recipe
from rookery.api.trajectories import Trajectory, as_trajectory, rows_of
from rookery.checkpoints.checkpoint import write_synced
from rookery.config.checks import Count
from rookery.config.load import as_dict, load
from rookery.config.schema import Config, Engine, Pick
from rookery.envs.spaces import SpaceCodec
from rookery.envs.turn_based.game import Who
from rookery.envs.turn_based.opponents import Opponents
from rookery.envs.turn_based.tables import OPPONENT, PLAYED
from rookery.errors import CheckpointError, ConfigError
from rookery.event import Episode
from rookery.export.bundle import FORMAT, contents, described
from rookery.files import replacing
from rookery.learner.learner import Learner
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import load_arrays
from rookery.replay.buffer import LocalReplay
from rookery.replay.ring import Ring
from rookery.training.build import Parts, build_parts
from rookery.training.steps import count, insert, learn
from rookery.types import Array, EnvSpec
from rookery.version import __version__

SUFFIX = ".safetensors"
AGAIN = "give a file that DqnAgent.save wrote"
NO_INCARNATION = -1  # restart number of env steps that no actor process wrote
RATE = "selfplay/win_rate_"
NO_ACTORS: dict[str, Any] = {  # settings of an agent without actors and opponents
    "run.mode": "sync",
    "run.engine": "inline",
    "actor.num": 1,
    "learner.publish_period": 1 << 62,
    "selfplay.opponents": {},
    "selfplay.league": False,
}


class SavedAgent(NamedTuple):
    """Content of the file of a saved `DqnAgent`: settings, and the learner's state.

    `arrays` are the weights of all networks and the optimizer's state; `numbers` is the rest of the
    learner's state, such as its number of steps.
    """

    config: Config
    numbers: dict[str, Any]
    arrays: dict[str, Array]


class LearnerAgent:
    """An agent with its learner in this process: it acts with the learner's newest weights."""

    def __init__(self, made_from: Recipe, spec: EnvSpec, codec: SpaceCodec, learner: Learner):
        self.recipe, self.spec, self.codec, self.learner = made_from, spec, codec, learner
        self._acting = InferencePolicy(made_from, spec, codec)
        self._stale = True  # the learner's weights are newer than those that act

    @property
    def config(self) -> Config:
        """The settings of a run like this agent."""
        return self.recipe.config

    @property
    def learner_steps(self) -> int:
        """How often the parameters were stepped."""
        return self.learner.learner_steps

    def get_weights(self) -> dict[str, Array]:
        """Returns copies of the weights that act, by the names that an `InferencePolicy` has."""
        return {name: array.copy() for name, array in self.learner.weights().items()}

    def policy(self) -> InferencePolicy:
        """Returns a policy with a copy of the weights, for use elsewhere."""
        policy = InferencePolicy(self.recipe, self.spec, self.codec)
        policy.set_weights(self.learner.weights())
        return policy

    def _action(self, obs: Any, epsilon: float, noise: bool = False) -> Any:
        if self._stale:
            self._acting.set_weights(self.learner.weights())
            self._stale = False
        return self._acting.act(obs, epsilon, noise)

    @checked
    def save(self, path: str | Path) -> Path:
        """Saves networks, optimizer and settings to a file, and returns the file's path.

        A path without an extension gets `.safetensors`; missing folders are made. Replay is not
        saved.
        """
        return write(path, self.config, self.learner)

    @checked
    def load(self, path: str | Path) -> None:
        """Replaces networks and optimizer state by those in a saved agent's file.

        Raises `CheckpointError` if the saved agent has another algorithm, other network sizes or
        another optimizer.
        """
        saved = read(path)
        ours, theirs = self.config, saved.config
        if ours.algo.name != theirs.algo.name:
            raise CheckpointError(
                f"{path} holds an agent of {theirs.algo.name}, this one is of {ours.algo.name}; "
                "make an agent of the algorithm that was saved"
            )
        if ours.learner.optimizer is not theirs.learner.optimizer:
            raise CheckpointError(
                f"{path} was saved with the optimizer {theirs.learner.optimizer}, this agent has "
                f"{ours.learner.optimizer}; make an agent with the optimizer that was saved"
            )
        self.restore(saved.numbers, saved.arrays)

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Continues from the state of another agent's learner."""
        self.learner.restore(numbers, arrays)
        self._stale = True


class DqnAgent(LearnerAgent):
    """DQN agent that acts, learns from episodes given as trajectories, and saves to a file."""

    def __init__(
        self, parts: Parts, made_from: Recipe, codec: SpaceCodec, returns: list[float] | None = None
    ):
        """Makes an agent from the learner and replay buffer of a training whose actors are closed.

        To make an untrained agent use `DqnAgent.new`.
        """
        super().__init__(made_from, parts.spec, codec, parts.learner)
        self.returns = returns or []  # of all episodes, in training order
        self.win_rates = _win_rates(parts.opponents)  # in training, by kind of opponent
        parts.opponents = None
        self._parts = parts
        self._episodes = 0  # added as trajectories
        config = parts.config.actor
        self._ring = transport(parts.spec, config, index=0, incarnation=NO_INCARNATION)
        replay = parts.replay
        assert isinstance(replay, LocalReplay), "`refuse_other_replay` refuses any other kind"
        replay.transports = [self._ring]
        weakref.finalize(self, _release, replay, parts.weight_store, self._ring)

    @classmethod
    @checked
    def new(cls, env: Any = "CartPole-v1", *, settings: Mapping[str, Any] = NONE) -> "DqnAgent":
        """Makes an untrained agent for an environment: a Gymnasium id, a class or a function.

        `settings` maps dotted names of settings, such as `net.hidden`, to values.
        """
        shown = recipe(env, {**settings, **NO_ACTORS}).shown()
        lanes = 1 if shown.tables is None else shown.tables.seats
        made_from = recipe(env, {**settings, **NO_ACTORS, "actor.envs": lanes})
        refuse_other_replay(made_from.config)
        parts = build_parts(made_from.config, factory=made_from.factory)
        parts.actors.close()
        return cls(parts, made_from, shown.codec)

    @classmethod
    @checked
    def open(cls, path: str | Path, env: Any = None) -> "DqnAgent":
        """Makes an agent from a file that `save` wrote, with an empty replay buffer.

        Any other file raises `CheckpointError`. `env` is required if the saved agent's environment
        was a Python object without a name.
        """
        saved = read(path)
        settings = {key: value for key, value in as_dict(saved.config).items() if key != "name"}
        agent = cls.new(saved.config.env.id if env is None else env, settings=settings)
        agent.restore(saved.numbers, saved.arrays)
        return agent

    @property
    def weights_sha256(self) -> str:
        """SHA-256 checksum of the online network's weights."""
        return self.learner.weights_sha256()

    @checked
    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copies weights, by parameter name, into the online and the target network."""
        algorithm = self.learner.algorithm
        load_arrays(algorithm.acting, weights)
        algorithm.update_targets(0)
        self._stale = True

    @checked
    def act(self, obs: Any, epsilon: float = 0.0) -> Any:
        """Returns the greedy action for an observation, or a random one (probability `epsilon`)."""
        return self._action(obs, epsilon)

    def reset(self) -> None:
        """Clears the frame stack. Call it before the first observation of an episode."""
        self._acting.reset()

    @checked
    def add_trajectory_to_buffer(self, trajectory: Trajectory | Mapping[str, Any]) -> None:
        """Adds one whole episode to the replay buffer.

        A trajectory given as a mapping must have the field names of `Trajectory` as keys. Raises
        `ConfigError` if it is not one whole episode.
        """
        given = as_trajectory(trajectory)
        self._refuse_what_actors_add()
        rows = rows_of(given, self.spec, self.codec, self.config.env)
        common = {"env": 0, "episode": self._episodes, "version": self._parts.weight_store.version}
        if PLAYED in self.spec.extras:
            common[OPPONENT] = Who.RANDOM  # a trajectory does not name its opponent
        for first in range(0, given.env_steps + 1, self._ring.capacity):
            piece = {name: a[first : first + self._ring.capacity] for name, a in rows.items()}
            self._ring.put(len(piece["end"]), {**piece, **common})
            insert(self._parts)
        self._episodes += 1
        self.returns.append(given.score)
        ended = [Episode(given.score, given.env_steps)]
        count(self._parts, given.env_steps, ended, epsilon=0.0, version=0)

    def _refuse_what_actors_add(self) -> None:
        if extras := [extra.name for extra in self.spec.extras if extra != PLAYED]:
            raise ConfigError(
                f"trajectories have no {', '.join(extras)}, which algo.name "
                f"{self.config.algo.name} needs; use dqn here, or rookery.train"
            )

    @checked
    def learn(self, learner_steps: Count = 1) -> float:
        """Takes gradient steps on batches from the replay buffer, and returns their mean loss.

        Steps with a loss or gradient that is not finite are skipped; if all are, returns NaN.
        """
        learned = [learn(self._parts).result.metrics for _ in range(learner_steps)]
        self._stale = True
        self.learner.count_skipped()
        losses = [float(metrics["loss"]) for metrics in learned if metrics]  # waits for the device
        finite = [loss for loss in losses if math.isfinite(loss)]
        return float(np.mean(finite)) if finite else float("nan")


def refuse_other_replay(config: Config) -> None:
    """Raises ConfigError unless the settings give one replay buffer in this process.

    An agent keeps its replay buffer after the actors have ended, and adds trajectories to it.
    """
    if config.engine is Engine.RAY:
        raise ConfigError(
            "an agent has its replay buffer in this process, got run.engine 'ray', which has it on "
            "the hosts of a cluster; use processes or inline, or rookery.train"
        )
    if (config.replay.shards or 1) > 1 or config.replay.hindsight > 0:
        raise ConfigError(
            "an agent has one replay buffer without hindsight, got replay.shards "
            f"{config.replay.shards} and replay.hindsight {config.replay.hindsight}; leave both "
            "out, or use rookery.train"
        )


def _win_rates(opponents: Opponents | None) -> dict[str, float]:
    found = {} if opponents is None else opponents.stats()
    return {pick.value: found[RATE + pick] for pick in Pick if RATE + pick in found}


def _release(pool: LocalReplay, weight_store: WeightStore, ring: Ring) -> None:
    for part in (pool, weight_store, ring):
        part.close()


def write(path: str | Path, config: Config, learner: Learner) -> Path:
    """Writes the settings and the learner of an agent to a safetensors file; returns its path.

    The file is written atomically. A path without an extension gets `.safetensors`. If writing
    fails, raises `CheckpointError`.
    """
    numbers, arrays = learner.state()
    about = {
        "format": FORMAT,
        "rookery": __version__,
        "config": as_dict(config),
        "learner": numbers,
    }
    target = _named(path)
    try:
        raw = described(about, arrays)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as scratch:
            write_synced(scratch, raw)
    except (OSError, TypeError) as error:
        raise CheckpointError(
            f"{target} could not be written: {error}; choose a writable path, and settings that "
            "JSON can hold"
        ) from error
    return target


def read(path: str | Path) -> SavedAgent:
    """Reads the file of a saved `DqnAgent`; raises `CheckpointError` for any other file."""
    file = _named(path)
    about, arrays = contents(file, "an agent", AGAIN)
    try:
        return SavedAgent(load(changes=about["config"]), dict(about["learner"]), arrays)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read as an agent ({type(error).__name__}: {error}); {AGAIN}"
        ) from error


def _named(path: str | Path) -> Path:
    file = Path(path)
    return file if file.suffix else file.with_name(file.name + SUFFIX)
