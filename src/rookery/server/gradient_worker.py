"""A worker of asynchronous training: plays, computes gradients, and takes no step itself.

It has its own environments and its own copy of the networks. Parameters come over a board, a
gradient leaves through a ring in shared memory with room for one: it waits there until the server
has it, so that the next one is computed with parameters that know of it (Mnih et al. 2016).
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rookery import plugins, seeding
from rookery.actors.actor import Actor
from rookery.actors.messages import ActorReport, EndedEpisodes
from rookery.algorithms import build_algorithm, row_spec
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.event import Episode
from rookery.learner.gradients import GradientLearner
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import load_arrays
from rookery.replay.buffer import LocalReplay, build_shard
from rookery.replay.limiter import Limiter, build_limiter
from rookery.replay.ring import Column, Ring, Schema
from rookery.replay.rollouts import RolloutLimiter, Rollouts
from rookery.schedule import Schedule
from rookery.seeding import Role
from rookery.types import Array

NAP_S = 0.0005  # between two looks at what the server does
NEWS_S = 0.05  # between two reports
BATCH = 32  # steps of a batch, of an agent that does not say


def schema_for(parameters: Mapping[str, Array]) -> Schema:
    """Returns what a gradient's row holds."""
    size = sum(array.size for array in parameters.values())
    return (Column("gradient", (size,), "float32"), Column("version", (), "int64"))


class Setup(NamedTuple):
    """What a worker is built from."""

    source: Any  # what the worker's `UpdateSource` is built from; its `made_by` names that class
    parameters: dict[str, Array]  # their names and shapes, in the order of a gradient
    ring_fd: int
    weights_fd: int


class RunSetup(NamedTuple):
    """A worker that is a small run of its own: any algorithm, with the replay that it needs."""

    config: Config
    factory: Any

    made_by: str = "rookery.server.gradient_worker:RunGradients"


class Update(NamedTuple):
    """What a server is sent."""

    arrays: Mapping[str, Array]
    weight: float = 1.0


class UpdateSource(Protocol):
    """Computes updates from a server's parameters: gradients, or what a round has changed."""

    @property
    def env_steps(self) -> int:
        """Env steps so far."""

    ended: list[Episode]  # since they were last taken

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        """Loads parameters that were stepped so many times since; 0: the first ones."""

    def step(self) -> Update | None:
        """Does a part of the work; returns what came of it, once there is an update."""

    def close(self) -> None: ...


class GradientWorker:
    """The role: roams as long as its gate is open."""

    self_driven = True

    def __init__(self, setup: Setup):
        self.ring = Ring.from_fd(setup.ring_fd)
        self.board = WeightStore(setup.parameters, fd=setup.weights_fd)
        self.names = list(setup.parameters)
        self.source: UpdateSource = plugins.load(setup.source.made_by)(setup.source)
        self.version = 0
        self._played, self._told = 0, 0.0  # env steps that were reported, and when

    def do(self, order: Any) -> Any:
        """Nothing is ordered: its gate says whether to go on."""

    def work(self) -> ActorReport | None:
        self.ring.beat()
        if self.ring.waiting or not self.ring.may_write:
            time.sleep(NAP_S)
        else:
            self._work()
        return self._news()

    def _work(self) -> None:
        if (newer := self.board.latest(self.version)) is not None:
            steps = newer.version - self.version if self.version else 0
            self.source.load(newer.arrays, steps)
            self.version = newer.version
        if (found := self.source.step()) is not None:
            flat = np.concatenate([np.ravel(found.arrays[name]) for name in self.names])
            row: dict[str, npt.ArrayLike] = {"gradient": flat, "version": self.version}
            self.ring.put(1, row)

    def _news(self) -> ActorReport | None:
        if time.monotonic() - self._told < NEWS_S:
            return None
        played, ended = self.source.env_steps, list(self.source.ended)
        report = ActorReport(played - self._played, EndedEpisodes(ended), self.version)
        self._played, self._told = played, time.monotonic()
        self.source.ended.clear()
        return report

    def close(self) -> None:
        try:
            self.source.close()
        finally:
            self.board.close()
            self.ring.close()


class Sender(GradientLearner):
    """A learner whose steps a server takes: it has no optimizer.

    Creating the first optimizer of a process would import the torch compiler, which takes seconds.
    """

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}


class RunGradients:
    """Plays and draws as a run does, with one actor in this process."""

    def __init__(self, given: RunSetup):
        self.env_steps, self.ended = 0, list[Episode]()
        config = self.config = given.config
        envs = make(config.env, config.actor.envs, factory=given.factory)
        seed, device = config.run.seed, pick_device(config.learner.device)
        algorithm = build_algorithm(config, envs.spec)
        self.learner = Sender(algorithm, config.learner, config.env, device, seed=seed)
        self.actor = Actor(
            envs,
            build_algorithm(config, envs.spec),  # its own: one that is trained is slower to ask
            config.actor,
            config.env,
            seed=seed,
            values=config.wants_values,
        )
        self.pool = build_shard(
            config,
            row_spec(envs.spec, algorithm),
            [self.actor.ring],
            seeding.generator(seed, Role.REPLAY),
            1,
            Rollouts if config.algo.on_policy else LocalReplay,
            factory=given.factory,
        )
        self.limiter: Limiter | RolloutLimiter = (
            RolloutLimiter(self.pool) if isinstance(self.pool, Rollouts) else build_limiter(config)
        )
        random = config.randomness
        self._epsilon = Schedule(random.first, random.last, random.decay)

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        self.learner.load(parameters, steps)
        load_arrays(self.actor.algorithm.acting, self.learner.weights())
        self.actor.version = self.pool.version = self.actor.version + max(1, steps)

    def step(self) -> Update | None:
        if not self.limiter.ready():
            self._play()
            return None
        config = self.config
        batch = self.pool.sample(config.replay.batch_size, beta=config.replay.beta)
        taken = batch.rows.size if config.algo.on_policy else config.replay.batch_size
        self.limiter.sample(taken * config.algo.learned)
        computed = self.learner.gradients(batch)
        if computed is None:
            return None
        if computed.td_error is not None:
            self.pool.update_priorities(batch.rows, computed.td_error)
        return Update(computed.arrays)

    def _play(self) -> None:
        epsilon = self._epsilon.at(self.env_steps / self.config.randomness.steps)
        played = self.actor.collect(self.config.actor.chunk, epsilon)
        self.limiter.insert(self.pool.insert().steps)
        self.env_steps += played.env_steps
        self.ended += played.ended

    def close(self) -> None:
        try:
            self.actor.close()
        finally:
            self.pool.close()
