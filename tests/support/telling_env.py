"""Two agents side by side: each is paid for naming what only the other one sees."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.spaces import Codes
from rookery.types import Array

STEPS = 4  # of an episode
SIGN = 2  # the bit of a view that shows it


class Telling(gym.Env[dict[str, Array], Array]):
    """Every step each agent has a new sign before it, or none; the other one should say which.

    Whoever is right earns 1, whoever is wrong nothing. Who knows its own view alone can only guess.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "view": Codes(0, 63, (2, 3, 3), np.uint8),
                "place": Codes(-1, 9, (2, 2), np.int16),
                "reward": spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )
        self.action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 2])
        self.signs: Array = np.zeros(2, dtype=np.int64)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(np.zeros(2)), {}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        earned = np.asarray(action) == self.signs[::-1]
        self.steps += 1
        return self._look(earned), float(earned.mean()), self.steps == STEPS, False, {}

    def _look(self, earned: Array) -> dict[str, Array]:
        self.signs = self.np_random.integers(2, size=2)
        view = np.zeros((2, 3, 3), dtype=np.uint8)
        view[:, 1, 1] = SIGN * self.signs
        place = np.array([[4, 4], [4, 5]], dtype=np.int16)
        return {"view": view, "place": place, "reward": earned.astype(np.float32)}
