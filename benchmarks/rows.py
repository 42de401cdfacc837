"""What every replay contender stores and draws: the same random rows of 8 floats."""

from typing import NamedTuple

import numpy as np

CAPACITY = 2**20
FILLED = 200_000
BATCH = 256
CHUNK = 100
ALPHA, BETA = 0.6, 0.4


class Rows(NamedTuple):
    """Transitions of one environment, episodes of 100 steps."""

    obs: np.ndarray  # [n, 8] float32
    action: np.ndarray  # [n] int64
    reward: np.ndarray  # [n] float32
    next_obs: np.ndarray  # [n, 8] float32
    terminated: np.ndarray  # [n] bool


def make(n: int, rng: np.random.Generator) -> Rows:
    obs = rng.standard_normal((n + 1, 8), dtype=np.float32)
    return Rows(
        obs=obs[:-1],
        action=rng.integers(4, size=n),
        reward=rng.standard_normal(n, dtype=np.float32),
        next_obs=obs[1:],
        terminated=np.arange(1, n + 1) % 100 == 0,
    )


def errors(rng: np.random.Generator, batches: int = 64) -> np.ndarray:
    """Returns ready TD errors, [batches, BATCH], so that making them costs nobody anything."""
    return rng.exponential(size=(batches, BATCH)).astype(np.float32)
