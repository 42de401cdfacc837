"""Randomness: every role owns a generator that is a function of the run's seed alone.

    rng = seeding.generator(seed, Role.ACTOR, index=2, incarnation=0)

No module touches a global generator. A generator's state is plain JSON, so it travels in
checkpoints without pickling.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from rookery.types import Floats


class Role(IntEnum):
    """Who draws. The numbers are part of the checkpoint format: add, never renumber."""

    WEIGHTS = 0
    ACTOR = 1
    ENVS = 2
    REPLAY = 3
    EVALUATOR = 4
    LEARNER = 5
    SHARING = 6
    RATER = 7


def sequence(
    seed: int, role: Role, *, index: int = 0, incarnation: int = 0
) -> np.random.SeedSequence:
    """Returns the one seed sequence of this role in this run."""
    return np.random.SeedSequence(seed, spawn_key=(int(role), index, incarnation))


def generator(
    seed: int, role: Role, *, index: int = 0, incarnation: int = 0
) -> np.random.Generator:
    """Returns a fresh generator for this role."""
    return np.random.Generator(
        np.random.PCG64(sequence(seed, role, index=index, incarnation=incarnation))
    )


def following(numbers: Floats) -> np.random.Generator:
    """Returns a generator that is a function of random numbers somebody else has drawn."""
    words = np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def reseed(rng: np.random.Generator, number: int) -> None:
    """Makes a PCG64 generator a function of a 64-bit number: quicker by far than a new one."""
    inside = {"state": number << 64 | number, "inc": 1}
    rng.bit_generator.state = dict(rng.bit_generator.state, state=inside, has_uint32=0)


def integer(seed: int, role: Role, *, index: int = 0, incarnation: int = 0) -> int:
    """Returns a 31-bit seed for libraries that want an int."""
    words = sequence(seed, role, index=index, incarnation=incarnation).generate_state(1)
    return int(words[0]) & 0x7FFFFFFF


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """Returns the generator's state as JSON-ready data."""
    return dict(rng.bit_generator.state)


def with_state(state: dict[str, Any]) -> np.random.Generator:
    """Returns a generator that goes on exactly where `state_of` looked."""
    rng = np.random.Generator(np.random.PCG64())
    rng.bit_generator.state = state
    return rng
