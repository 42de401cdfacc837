"""A worker process of asynchronous training: it plays and computes gradients, and takes no step.

It has its own environments and its own copy of the networks. Parameters come over a weight store,
and a gradient leaves through a ring in shared memory with room for one: it waits there until the
server has it, so that the next one is computed with parameters that know of it (Mnih et al. 2016).
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rookery import plugins
from rookery.actors.messages import ActorReport, EndedEpisodes
from rookery.algorithms import build_algorithm, row_spec
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.event import Episode
from rookery.learner.gradients import GradientLearner
from rookery.learner.weight_store import WeightStore
from rookery.networks.device import pick_device
from rookery.replay.ring import Column, Ring, Schema
from rookery.training.build import NEW_ACTORS, Parts, PartsBuilder
from rookery.training.steps import collect, learn, publish
from rookery.types import Array, LearnResult, SampledBatch

NAP_S = 0.0005  # between two looks at what the server does
REPORT_S = 0.05  # between two reports
BATCH = 32  # steps of a batch, of an agent that does not say


def schema_for(parameters: Mapping[str, Array]) -> Schema:
    """Returns the columns of a ring buffer for gradients."""
    size = sum(array.size for array in parameters.values())
    return (Column("gradient", (size,), "float32"), Column("version", (), "int64"))


class Setup(NamedTuple):
    """The arguments from which a gradient worker process is built."""

    source: Any  # what the worker's `UpdateSource` is built from; its `made_by` names that class
    parameters: dict[str, Array]  # their names and shapes, in the order of a gradient
    ring_fd: int
    weights_fd: int


class RunSetup(NamedTuple):
    """The arguments of `RunGradients`: the settings of a run, and a factory of its environment."""

    config: Config
    factory: Any

    made_by: str = "rookery.server.gradient_worker:RunGradients"


class Update(NamedTuple):
    """An update for a parameter server: named arrays, and their weight in the aggregation."""

    arrays: Mapping[str, Array]
    weight: float = 1.0


class UpdateSource(Protocol):
    """Interface of what computes a client's updates: gradients, or the change of a round."""

    @property
    def env_steps(self) -> int:
        """Number of env steps played so far."""

    ended: list[Episode]  # since they were last taken

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        """Loads a server's parameters, `steps` optimizer steps newer; 0: the first ones."""

    def step(self) -> Update | None:
        """Plays or learns for a moment; returns an update once there is one."""

    def close(self) -> None: ...


class GradientWorker:
    """The role of a worker process that plays and computes gradients until its host stops it."""

    self_driven = True

    def __init__(self, setup: Setup):
        self.ring = Ring.from_fd(setup.ring_fd)
        self.weights = WeightStore(setup.parameters, fd=setup.weights_fd)
        self.names = list(setup.parameters)
        self.source: UpdateSource = plugins.load(setup.source.made_by)(setup.source)
        self.version = 0
        self._played, self._reported = 0, 0.0  # env steps that were reported, and when

    def do(self, order: Any) -> Any:
        """Does nothing: the worker gets no orders."""

    def work(self) -> ActorReport | None:
        """Does a part of the work, or waits for the server; returns a report now and then."""
        self.ring.beat()
        if self.ring.waiting or not self.ring.may_write:
            time.sleep(NAP_S)
        else:
            self._work()
        return self._report() if time.monotonic() - self._reported >= REPORT_S else None

    def _work(self) -> None:
        if (newer := self.weights.latest(self.version)) is not None:
            self.source.load(newer.arrays, newer.version - self.version if self.version else 0)
            self.version = newer.version
        if (found := self.source.step()) is not None:
            flat = np.concatenate([np.ravel(found.arrays[name]) for name in self.names])
            row: dict[str, npt.ArrayLike] = {"gradient": flat, "version": self.version}
            self.ring.put(1, row)

    def _report(self) -> ActorReport:
        played, ended = self.source.env_steps - self._played, EndedEpisodes(self.source.ended)
        self._played, self._reported = self.source.env_steps, time.monotonic()
        self.source.ended.clear()
        return ActorReport(played, ended, self.version)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (self.ring, self.weights, self.source):
                stack.callback(part.close)


class RunUpdates:
    """Base class of the update sources that are a run in single mode."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.ended = list[Episode]()

    @property
    def env_steps(self) -> int:
        return self.parts.counters.env_steps

    def close(self) -> None:
        self.parts.close()


class Sender(GradientLearner):
    """A learner that only computes gradients: a server takes the steps.

    It has no optimizer: creating the first one of a process would import the torch compiler, which
    takes seconds.
    """

    computed: Mapping[str, Array] | None = None  # gradients of the last batch; None: it was skipped

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}

    def learn(self, batch: SampledBatch) -> LearnResult:
        """Computes the gradients of one batch, and changes nothing."""
        found = self.gradients(batch)
        self.computed = None if found is None else found.arrays
        return LearnResult(None, {}) if found is None else LearnResult(*found[1:])

    def due(self) -> bool:
        """Returns False: weights change only when they are loaded."""
        return False


class RunGradients(RunUpdates):
    """Computes gradients as a run does that plays, samples and learns, with one actor."""

    def __init__(self, given: RunSetup):
        config, device = given.config, pick_device(given.config.learner.device)
        with contextlib.ExitStack() as stack:
            envs = make(config.env, config.actor.envs, factory=given.factory)
            stack.callback(envs.close)
            algorithm = build_algorithm(config, envs.spec)
            self.learner = Sender(
                algorithm, config.learner, config.env, device, seed=config.run.seed
            )
            spec, factory = row_spec(envs.spec, algorithm), given.factory
            builder = PartsBuilder(  # without a run folder, and with nothing saved before
                config, spec, self.learner, None, factory, envs, NEW_ACTORS, None, stack
            )
            super().__init__(builder.build())
            stack.pop_all()

    def load(self, parameters: Mapping[str, Array], steps: int) -> None:
        self.learner.load(parameters, steps)
        publish(self.parts)

    def step(self) -> Update | None:
        if not self.parts.limiter.ready():
            self.ended += collect(self.parts).ended
            return None
        learn(self.parts)
        return None if self.learner.computed is None else Update(self.learner.computed)
