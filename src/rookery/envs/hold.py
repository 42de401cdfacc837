"""Actions that are held: exploration that goes somewhere, where a step is too short to matter."""

from typing import Any

import gymnasium as gym

from rookery.errors import ConfigError


class Hold(gym.Wrapper[Any, Any, Any, Any]):
    """Does each action `steps` times, or until the episode ends; rewards add up."""

    def __init__(self, env: gym.Env[Any, Any], steps: int):
        if steps < 1:
            raise ConfigError(f"Hold needs steps of at least 1, got {steps}; 1 changes nothing")
        super().__init__(env)
        self.steps = steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        earned, taken = float(reward), 1
        while taken < self.steps and not (terminated or truncated):
            obs, reward, terminated, truncated, info = self.env.step(action)
            earned, taken = earned + float(reward), taken + 1
        return obs, earned, terminated, truncated, info

    def export_state(self) -> dict[str, Any]:
        return {}  # it remembers nothing

    def restore_state(self, state: dict[str, Any]) -> None: ...
