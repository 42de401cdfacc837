"""Tianshou: prioritised samples with weights and new priorities."""

import itertools
from collections.abc import Callable

import numpy as np
from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

import rows


def draw(seed: int) -> Callable[[], int]:
    rng = np.random.default_rng(seed)
    np.random.seed(seed)  # noqa: NPY002 (Tianshou draws from the global generator)
    buffer = PrioritizedReplayBuffer(rows.CAPACITY, alpha=rows.ALPHA, beta=rows.BETA)
    buffer.update(filled(rows.make(rows.FILLED, rng)))
    buffer.update_weight(np.arange(rows.FILLED), rng.exponential(size=rows.FILLED))
    fresh = itertools.cycle(rows.errors(rng))

    def work() -> int:
        _, indices = buffer.sample(rows.BATCH)
        buffer.update_weight(indices, next(fresh))
        return 1

    return work


def filled(given: rows.Rows) -> ReplayBuffer:
    return ReplayBuffer.from_data(
        obs=given.obs,
        act=given.action,
        rew=given.reward,
        terminated=given.terminated,
        truncated=np.zeros_like(given.terminated),
        done=given.terminated,
        obs_next=given.next_obs,
    )
