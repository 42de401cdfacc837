"""Random number generators of a run: each use of random numbers (`Role`) has its own generator.

    rng = seeding.generator(seed, Role.ACTOR, index=2, incarnation=0)

A generator is determined by the run's seed, the role, the number of the process (`index`) and how
often that process was restarted (`incarnation`). No module uses a global generator. A generator's
state is plain JSON, so checkpoints store it without pickling.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from rookery.types import Floats


class Role(IntEnum):
    """Uses of random numbers in a run, such as acting or sampling; each has its own generator.

    The values of the members are stored in checkpoints and must not change.
    """

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
    """Returns the numpy seed sequence for one use of random numbers (`role`) in a run.

    `index` is the number of the process, `incarnation` counts its restarts.
    """
    return np.random.SeedSequence(seed, spawn_key=(int(role), index, incarnation))


def generator(
    seed: int, role: Role, *, index: int = 0, incarnation: int = 0
) -> np.random.Generator:
    """Returns a new random generator for one use of random numbers (`role`) in a run.

    `index` is the number of the process, `incarnation` counts its restarts.
    """
    return np.random.Generator(
        np.random.PCG64(sequence(seed, role, index=index, incarnation=incarnation))
    )


def following(numbers: Floats) -> np.random.Generator:
    """Returns a new random generator that is seeded with the array `numbers`.

    Equal numbers give equal generators. The caller draws the numbers from another generator.
    """
    words = np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def reseed(rng: np.random.Generator, number: int) -> None:
    """Seeds an existing PCG64 generator with a 64-bit number, in place.

    This is much faster than making a new generator.
    """
    inside = {"state": number << 64 | number, "inc": 1}
    rng.bit_generator.state = dict(rng.bit_generator.state, state=inside, has_uint32=0)


def integer(seed: int, role: Role, *, index: int = 0, incarnation: int = 0) -> int:
    """Returns a 31-bit seed for one use of random numbers (`role`), for libraries that take an int.

    `index` is the number of the process, `incarnation` counts its restarts.
    """
    words = sequence(seed, role, index=index, incarnation=incarnation).generate_state(1)
    return int(words[0]) & 0x7FFFFFFF


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a random generator's state as JSON-serializable data."""
    return dict(rng.bit_generator.state)


def with_state(state: dict[str, Any]) -> np.random.Generator:
    """Returns a new random generator with a state that `state_of` returned."""
    rng = np.random.Generator(np.random.PCG64())
    rng.bit_generator.state = state
    return rng
