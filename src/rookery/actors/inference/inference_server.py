"""The inference server: one network that chooses the actions of all actors.

The server polls the actors' slots in shared memory, answers all open requests with one forward
pass, and polls again. It does not wait to fill a batch: requests gather while it answers.

The server is stateless. Weights come from the weight store, and a request contains everything that
its answer depends on, so that a restarted server can continue at any moment.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch

from rookery import seeding
from rookery.actors.inference.slots import InferenceRequest, InferenceSlot, InferenceSlots
from rookery.actors.worker import actor_device, full_gpu
from rookery.algorithms import Acted, build_algorithm
from rookery.algorithms.exploration import ActorSlice, BatchedGenerators
from rookery.config.schema import Config, Mode
from rookery.learner.weight_store import WeightStore
from rookery.networks.named_arrays import arrays_of, load_arrays
from rookery.types import Array, EnvSpec

NAP_S, LONG_NAP_S = 0.00005, 0.0005  # between two checks for requests
IDLE = 40  # naps in a row, after which naps are long: no actor plays


class InferenceSetup(NamedTuple):
    """Arguments from which an inference server is built."""

    config: Config
    spec: EnvSpec  # of the actors' rows
    slots_fd: int
    weights_fd: int


class InferenceReady(NamedTuple):
    """Message from the inference server to its parent process: it is ready to answer requests."""


class OpenRequest(NamedTuple):
    """An actor's request for actions that the inference server has not answered yet."""

    seat: int
    slot: InferenceSlot
    number: int
    question: InferenceRequest

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Batching key: one call of `act` can answer all requests that have the same key.

        It says whether a request wants exploration noise, whether it wants value estimates, and
        whether it comes without a recurrent state.
        """
        question = self.question
        return question.noise, question.values, question.memory is None


class InferenceServer:
    """Worker that answers the action requests of all actors, one batch per call of `work`."""

    def __init__(self, setup: InferenceSetup):
        config, spec = setup.config, setup.spec
        self.config, self.spec, self.self_driven = config, spec, True
        torch.set_num_threads(config.learner.threads)
        device = actor_device(config, 0, config.learner.device)
        self.algorithm = build_algorithm(config, replace(spec, extras=()))
        self.weight_store = WeightStore(arrays_of(self.algorithm.acting), fd=setup.weights_fd)
        self.slots = InferenceSlots(config.actor, spec, self.algorithm.memory, fd=setup.slots_fd)
        self._no_room = (
            f"{device} has no room for the network that answers {config.actor.num} actors of "
            f"{config.actor.envs} environments; lower actor.envs, name another device in "
            "actor.devices, or use --inference local"
        )
        with full_gpu(self._no_room):
            self.algorithm.networks.to(device)
        self.version = 0
        newest = config.run.mode is Mode.SYNC or config.algo.on_policy
        self._period = 1 if newest else config.actor.pull_period  # observations between two pulls
        self._since_pull = self._period  # pulls with the first request
        self._rngs = [np.random.Generator(np.random.PCG64()) for _ in range(len(self.slots))]
        self._naps = 0
        self._ready: InferenceReady | None = InferenceReady()  # not sent yet

    def do(self, order: None) -> InferenceReady:
        raise NotImplementedError(f"an inference server takes no orders, got {order!r}")

    def work(self) -> InferenceReady | None:
        """Answers all open action requests of actors, or sleeps briefly if there are none.

        Returns `InferenceReady` at the first call, and None afterwards.
        """
        self.slots.beat()
        asked = [
            OpenRequest(seat, slot, number, slot.question())
            for seat, slot, number in self.slots.open()
        ]
        if asked:
            with full_gpu(self._no_room):
                self._answer(asked)
        else:
            self._naps += 1
            time.sleep(NAP_S if self._naps < IDLE else LONG_NAP_S)
        ready, self._ready = self._ready, None
        return ready

    def _answer(self, asked: Sequence[OpenRequest]) -> None:
        observations = sum(one.question.size for one in asked)
        self._pull()
        for group in self._groups(asked):
            start = 0
            acted = self._act(group)
            for one in group:
                stop = start + one.question.size
                one.slot.tell(one.number, acted.of(slice(start, stop)), self.version)
                start = stop
        self._naps = 0
        self._since_pull += observations
        self.slots.count(len(asked), observations)

    def _pull(self) -> None:
        """Loads the newest published weights, if it is time to check for them.

        That is once `_period` observations were answered since the last check.
        """
        if self._since_pull < self._period:
            return
        self._since_pull = 0
        weights = self.weight_store.latest(self.version)
        if weights is not None:
            load_arrays(self.algorithm.acting, weights.arrays)
            self.version = weights.version

    def _groups(self, asked: Sequence[OpenRequest]) -> list[list[OpenRequest]]:
        """Groups open action requests into batches; one call of `act` can answer each batch."""
        groups: dict[object, list[OpenRequest]] = {}
        for one in asked:
            key = one.kind if self.algorithm.batches_actors else one.seat
            groups.setdefault(key, []).append(one)
        return list(groups.values())

    def _act(self, group: Sequence[OpenRequest]) -> Acted:
        questions, rng = [one.question for one in group], self._chance(group)
        first = questions[0]
        leaves = {
            name: _joined([question.leaves[name] for question in questions])
            for name in first.leaves
        }
        memory = [question.memory for question in questions if question.memory is not None]
        return self.algorithm.act(
            self.spec.pack(leaves),
            rng,
            epsilon=first.epsilon,  # BatchedGenerators have one for each actor
            noise=first.noise,
            values=first.values,
            memory=_joined(memory) if memory else None,
        )

    def _chance(self, group: Sequence[OpenRequest]) -> np.random.Generator:
        """Returns a random generator for a batch of action requests.

        It draws the random numbers of each request from the seed that the request contains.
        """
        for one in group:
            seeding.reseed(self._rngs[one.seat], one.question.seed)
        if len(group) == 1:
            return self._rngs[group[0].seat]
        slices, start = [], 0
        for one in group:
            rows = slice(start, start + one.question.size)
            slices.append(ActorSlice(rows, self._rngs[one.seat], one.question.epsilon))
            start = rows.stop
        return cast(np.random.Generator, BatchedGenerators(slices))

    def close(self) -> None:
        try:
            self.slots.close()
        finally:
            self.weight_store.close()


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
