"""cpprb: prioritised draws with weights and new priorities; `add` of 100 rows at once."""

import itertools
from collections.abc import Callable

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

import rows

COLUMNS = {
    "obs": {"shape": 8},
    "act": {"dtype": np.int64},
    "rew": {},
    "next_obs": {"shape": 8},
    "done": {},
}


def columns(given: rows.Rows) -> dict[str, np.ndarray]:
    return {
        "obs": given.obs,
        "act": given.action,
        "rew": given.reward,
        "next_obs": given.next_obs,
        "done": given.terminated.astype(np.float32),
    }


def draw(seed: int) -> Callable[[], int]:
    rng = np.random.default_rng(seed)
    buffer = PrioritizedReplayBuffer(rows.CAPACITY, COLUMNS, alpha=rows.ALPHA)
    given = columns(rows.make(rows.FILLED, rng))
    buffer.add(**given, priorities=rng.exponential(size=rows.FILLED))
    fresh = itertools.cycle(rows.errors(rng))

    def work() -> int:
        batch = buffer.sample(rows.BATCH, beta=rows.BETA)
        buffer.update_priorities(batch["indexes"], next(fresh))
        return 1

    return work


def append(seed: int) -> Callable[[], int]:
    buffer = ReplayBuffer(rows.CAPACITY, COLUMNS)
    given = columns(rows.make(rows.CHUNK, np.random.default_rng(seed)))

    def work() -> int:
        buffer.add(**given)
        return rows.CHUNK

    return work
