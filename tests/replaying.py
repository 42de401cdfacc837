"""Parts of a replay small enough to look at: a ring that is only numbers, noise that is chosen."""

from typing import Any

import numpy as np

from rookery.replay.fold import Chains
from rookery.replay.sampler import Prioritized, Uniform
from rookery.types import Array


class Numbers:
    """What samplers need of a ring: its size, its counters, the actors' priorities."""

    def __init__(self, capacity: int, committed: int = 0):
        self.capacity, self.committed = capacity, committed
        self.columns = {"priority": np.zeros(capacity, dtype=np.float32)}

    @property
    def oldest(self) -> int:
        return max(0, self.committed - self.capacity)

    def slots(self, first: int, count: int) -> Array:
        return np.arange(first, first + count) % self.capacity


class Noise:
    """A generator whose numbers are known beforehand."""

    def __init__(self, numbers: Any):
        self.numbers = np.array(numbers, dtype=np.float64)

    def random(self, size: int) -> Array:
        assert size == self.numbers.size
        return self.numbers


def prioritized(capacity: int, *, committed: int | None = None, alpha: float = 1.0) -> Prioritized:
    """Returns a sampler of a ring that is full unless told otherwise, with nothing admitted."""
    ring = Numbers(capacity, capacity if committed is None else committed)
    return Prioritized(ring, None, alpha)  # type: ignore[arg-type]


def admit(sampler: Prioritized, priorities: dict[int, float]) -> None:
    """Admits rows with priorities of their own."""
    rows = np.array(list(priorities), dtype=np.int64)
    ring = sampler._ring
    ring.columns["priority"][rows % ring.capacity] = list(priorities.values())
    sampler.admit(rows)


def uniform(capacity: int, committed: int) -> tuple[Uniform, Chains]:
    chains = Chains(1, 1, window=1, stride=1, capacity=capacity)
    return Uniform(Numbers(capacity, committed), chains, 0.0), chains  # type: ignore[arg-type]
