"""Goal environments for tests: one that works, and those that hindsight must not believe."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.types import Array


class Line(gym.Env[Any, Any]):
    """Walks on a line of whole numbers from 0 to a goal; every step elsewhere costs 1."""

    LIMIT = 10

    def __init__(self) -> None:
        place = spaces.Box(-20.0, 20.0, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Discrete(2, start=3)
        self.place, self.goal, self.steps = 0, 2, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal, self.steps = 0, int(self.np_random.integers(1, 4)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1 if action == 4 else -1
        self.steps += 1
        seen = self._seen()
        worth = self.compute_reward(seen["achieved_goal"][None], seen["desired_goal"][None], {})
        return seen, self.given(float(worth[0])), False, self.steps >= self.LIMIT, {}

    def given(self, worth: float) -> float:
        return worth

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Array:
        assert achieved_goal.dtype == desired_goal.dtype == np.float64  # the environment's form
        return np.where(achieved_goal[:, 0] == desired_goal[:, 0], 0.0, -1.0)

    def _seen(self) -> dict[str, Array]:
        place, goal = np.array([float(self.place)]), np.array([float(self.goal)])
        return {"observation": place, "achieved_goal": place, "desired_goal": goal}


class Moody(Line):
    """Its rewards depend on more than goals."""

    def given(self, worth: float) -> float:
        return worth - 0.1 * self.steps


class Chatty(Line):
    """Looks into info."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Array:
        reward: Array = super().compute_reward(achieved_goal, desired_goal, info)
        return reward if len(achieved_goal) == 1 else reward + info["bonus"]


class OneByOne(Line):
    """Takes a single goal of each kind."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        reached = np.array_equal(achieved_goal, desired_goal)
        return np.array([0.0 if reached else -1.0])


class Unequal(Line):
    """What is achieved cannot be desired."""

    def __init__(self) -> None:
        super().__init__()
        goals = {"desired_goal": spaces.Discrete(4)}
        self.observation_space = spaces.Dict({**self.observation_space.spaces, **goals})  # type: ignore[attr-defined]


class Silent(Line):
    """Does not say what goals are worth."""

    compute_reward = property()  # type: ignore[assignment]


class Broken(Line):
    """Cannot be stepped."""

    def given(self, worth: float) -> float:
        raise RuntimeError("out of order")
