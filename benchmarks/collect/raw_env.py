"""Gymnasium's native vector CartPole stepped with ready actions: no policy, nothing stored.

Every environment counts at every step, autoreset steps too, though they are no experience: the
raw figure is flattered by the few per cent of steps on which an environment only resets.
"""

import itertools
from collections.abc import Callable

import gymnasium
import numpy as np

ENVS = 64


def step(seed: int) -> Callable[[], int]:
    envs = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    envs.reset(seed=seed)
    actions = itertools.cycle(np.random.default_rng(seed).integers(2, size=(1024, ENVS)))

    def work() -> int:
        envs.step(next(actions))
        return ENVS

    return work
