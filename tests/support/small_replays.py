"""Replays small enough to look at: a ring that is only numbers, noise that is chosen, a pool."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.config.algorithms import AlgoConfig, DqnConfig, R2d2Config
from rookery.config.schema import Draw, FirstPriority, ReplayConfig
from rookery.replay.buffer import LocalReplay
from rookery.replay.fold import Chains
from rookery.replay.ring import Ring, schema_of
from rookery.replay.sampler import Prioritized, Uniform
from rookery.types import Array, EnvSpec
from sample_experience import Step, columns


class Numbers:
    """What samplers need of a ring: its size and its counters."""

    def __init__(self, capacity: int, committed: int = 0):
        self.capacity, self.committed = capacity, committed

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


def rank(sampler: Prioritized, priorities: dict[int, float]) -> None:
    """Makes rows drawable with exactly these priorities."""
    state = sampler.state()
    slots = np.array(list(priorities)) % sampler._ring.capacity
    state["leaves"][slots] = np.array(list(priorities.values())) ** sampler._alpha
    sampler.restore(state)


def uniform(capacity: int, committed: int) -> tuple[Uniform, Chains]:
    chains = Chains(1, 1, window=1, stride=1, capacity=capacity)
    return Uniform(Numbers(capacity, committed), chains, 0.0), chains  # type: ignore[arg-type]


def pool(
    spec: EnvSpec,
    *,
    capacity: int = 32,
    draw: Draw = Draw.UNIFORM,
    n_step: int = 1,
    sequence: int = 0,
    actors: int = 2,
    envs: int = 2,
    transport: int = 64,
    alpha: float = 0.6,
    first: FirstPriority = FirstPriority.LARGEST,
    lag: int | None = None,
) -> LocalReplay:
    """Returns an empty pool with a transport ring for each actor."""
    config = ReplayConfig(
        capacity=capacity,
        learning_starts=1,
        batch_size=1,
        sampling=draw,
        alpha=alpha,
        initial_priority=first,
        max_policy_lag=lag,
    )
    algo: AlgoConfig = DqnConfig(n_step=n_step, gamma=0.5)  # sums of its powers are exact
    if sequence:
        algo = R2d2Config(
            n_step=n_step, gamma=0.5, length=sequence, burn_in=0, overlap=sequence - 1
        )
    return LocalReplay(
        spec,
        config,
        algo,
        rng=np.random.default_rng(0),
        transports=[Ring.create(schema_of(spec), transport) for _ in range(actors)],
        envs=envs,
    )


def write(replay: LocalReplay, steps: Sequence[Step]) -> list[Step]:
    """Writes steps into their actors' transport rings; returns them in the order of draining.

    Observations tell which row they will be in replay.
    """
    first = replay.ring.committed
    ordered: list[Step] = []
    for actor, transport in enumerate(replay.transports):
        own = [step for step in steps if step.actor == actor]
        if own:
            transport.append(columns(replay.spec, own, first + len(ordered)))
            ordered += own
    return ordered


def shut(replay: LocalReplay) -> None:
    for ring in (*replay.transports, replay.ring):
        ring.close()
