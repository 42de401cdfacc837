"""Action repeat: a wrapper that repeats each action, for environments with very short steps."""

from typing import Any

import gymnasium as gym

from rookery.errors import ConfigError


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that repeats each action `steps` times, or until the episode ends.

    The reward is the sum of the rewards of the repeated steps.
    """

    def __init__(self, env: gym.Env[Any, Any], steps: int):
        if steps < 1:
            raise ConfigError(
                f"ActionRepeat needs steps of at least 1, got {steps}; 1 changes nothing"
            )
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
        return {}  # the wrapper has no state

    def restore_state(self, state: dict[str, Any]) -> None: ...
