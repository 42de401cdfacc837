"""Stable-Baselines3: `add` with 100 environments, with its defaults, as its collector calls it."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

import rows


def append(seed: int) -> Callable[[], int]:
    buffer = ReplayBuffer(
        rows.CAPACITY,
        spaces.Box(-np.inf, np.inf, (8,), np.float32),
        spaces.Discrete(4),
        device="cpu",
        n_envs=rows.CHUNK,
    )
    given = rows.make(rows.CHUNK, np.random.default_rng(seed))
    infos: list[dict[str, object]] = [{} for _ in range(rows.CHUNK)]

    def work() -> int:
        buffer.add(given.obs, given.next_obs, given.action, given.reward, given.terminated, infos)
        return rows.CHUNK

    return work
