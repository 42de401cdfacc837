"""The caller: an actor's stand-in for an algorithm, which asks the oracle instead of a network."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

from rookery.algos import Acted, Algorithm
from rookery.booth import Booths, Question, layout_of
from rookery.errors import StalledError
from rookery.types import EnvSpec, Floats, Obs

SPINS = 20  # looks before the first nap: an answer may be there in microseconds
NAP_S, LONG_NAP_S = 0.00005, 0.001  # between two looks for an answer
SOON_S = 0.05  # after which naps are long ones: the oracle is away, or busy with something large
LIMIT_S = 300.0  # for an answer; the crew notices a lost oracle long before


class Line(NamedTuple):
    """How an actor reaches the oracle."""

    spec: EnvSpec  # of its rows
    memory: int  # numbers that the policy remembers of each environment
    envs: int  # of an actor
    seats: int
    seat: int  # its own
    fd: int  # of all booths


class Caller(Algorithm):
    """Acts as the oracle says. It has no weights of its own: `Acted.version` says whose they were.

    Actions follow from the observations, the weights and a seed that is drawn here, so they do not
    depend on whose questions were answered together, but for rounding.
    """

    def __init__(self, line: Line, beat: Callable[[], None]):
        """`beat` is a sign of life while it waits."""
        self.spec, self.extras, self.memory = line.spec, line.spec.extras, line.memory
        self.acting: nn.Module = nn.Module()
        self.networks = nn.ModuleDict()
        self.booths = Booths(layout_of(line.spec, line.memory, line.envs), line.seats, fd=line.fd)
        self._booth, self._beat = self.booths[line.seat], beat

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
        self._booth.ask(Question(leaves, memory, seed, epsilon, noise, values))
        self._wait()
        return self._booth.take()

    def _wait(self) -> None:
        booth, began = self._booth, time.monotonic_ns()
        for _ in range(SPINS):
            if booth.answered:
                break
        while not booth.answered:
            waited_s = (time.monotonic_ns() - began) / 1e9
            if waited_s > LIMIT_S:
                raise StalledError(
                    f"the inference server has not answered for {waited_s:.0f} s; see what else "
                    "the run says of it, or use --inference local"
                )
            self._beat()
            time.sleep(NAP_S if waited_s < SOON_S else LONG_NAP_S)
        booth.waited(time.monotonic_ns() - began)

    def close(self) -> None:
        self.booths.close()
