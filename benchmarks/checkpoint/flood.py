"""Flood-v0: rows as fast as they can be written, `width` floats each, in episodes without end.

A native vector environment: one that is played one by one would be what these benches measure.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

PICTURES = 16  # different observations of each environment, shown in turn


class Flood(VectorEnv):
    """Shows random numbers and rewards nothing."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, num_envs: int, width: int = 8):
        self.num_envs, self._turn = num_envs, 0
        self.single_observation_space = gym.spaces.Box(0.0, 1.0, (width,), np.float32)
        self.single_action_space = gym.spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shown = np.random.default_rng(0).random((PICTURES, num_envs, width), np.float32)
        self._nothing, self._never = np.zeros(num_envs), np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return self._look(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        return self._look(), self._nothing, self._never, self._never, {}

    def _look(self) -> np.ndarray:
        self._turn += 1
        return self._shown[self._turn % PICTURES]


gym.register("Flood-v0", vector_entry_point=Flood)
