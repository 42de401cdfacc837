"""Client of central inference: an algorithm that requests actions from the inference server."""

import time
from collections.abc import Callable

import numpy as np
from torch import nn

from rookery.actors.inference.slots import InferenceRequest, InferenceSlots
from rookery.actors.messages import ActorGroupSetup
from rookery.algorithms import Acted, Algorithm
from rookery.errors import StalledError
from rookery.types import Floats, Obs

SPINS = 20  # looks before the first nap: an answer may be there in microseconds
NAP_S, LONG_NAP_S = 0.00005, 0.001  # between two looks for an answer
SOON_S = 0.05  # after which naps are long: the server is gone, or busy with a large batch
LIMIT_S = 300.0  # for an answer; a lost server is noticed long before


class InferenceClient(Algorithm):
    """Algorithm without weights: `act` requests its actions from the inference server.

    `Acted.version` is the version of the server's weights. Actions depend on the observations, the
    weights and a seed drawn by the actor. Apart from rounding, they do not depend on which requests
    the server batches together.
    """

    def __init__(self, setup: ActorGroupSetup, actor: int, fd: int, beat: Callable[[], None]):
        """Opens the shared memory `fd`: the slots in which this and other actors request actions.

        `beat` sends the actor's heartbeat; `act` calls it while it waits for the inference server.
        """
        self.spec, self.extras, self.memory = setup.spec, setup.spec.extras, setup.memory
        self.acting: nn.Module = nn.Module()
        self.networks = nn.ModuleDict()
        self.slots = InferenceSlots(setup.config.actor, setup.spec, setup.memory, fd=fd)
        self._slot, self._beat = self.slots[actor], beat

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        values: bool = False,
        memory: Floats | None = None,
    ) -> Acted:
        seed = int(rng.bit_generator.random_raw()) >> 1
        leaves = self.spec.unpack(obs)
        self._slot.ask(InferenceRequest(leaves, memory, seed, epsilon, noise, values))
        self._wait()
        return self._slot.take()

    def _wait(self) -> None:
        slot, began = self._slot, time.monotonic_ns()
        for _ in range(SPINS):
            if slot.answered:
                break
        while not slot.answered:
            waited_s = (time.monotonic_ns() - began) / 1e9
            if waited_s > LIMIT_S:
                raise StalledError(
                    f"the inference server has not answered for {waited_s:.0f} s; see the run's "
                    "warnings about it, or use --inference local"
                )
            self._beat()
            time.sleep(NAP_S if waited_s < SOON_S else LONG_NAP_S)
        slot.waited_ns += time.monotonic_ns() - began

    def close(self) -> None:
        self.slots.close()
