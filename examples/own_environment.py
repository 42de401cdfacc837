"""An environment of your own, trained, loaded and played. One plain script, no main guard.

python examples/own_environment.py
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import rookery


class Thermostat(gym.Env):
    """Hold a room at 20 degrees for 50 steps; every step within one degree earns 1."""

    def __init__(self, outside: float = 5.0):
        self.outside = outside
        self.observation_space = spaces.Box(-50.0, 100.0, (1,), np.float32)
        self.action_space = spaces.Discrete(3)  # the heater: off, low, high

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.room, self.steps = float(self.np_random.uniform(10.0, 30.0)), 0
        return self._look(), {}

    def step(self, action: Any):
        self.room += 0.1 * (self.outside - self.room) + 1.5 * int(action)
        self.steps += 1
        comfortable = abs(self.room - 20.0) <= 1.0
        truncated = self.steps >= 50  # a time limit: the task itself never ends
        return self._look(), float(comfortable), False, truncated, {"is_success": comfortable}

    def _look(self) -> np.ndarray:
        return np.array([self.room], dtype=np.float32)


run = rookery.train(
    env=Thermostat,
    seed=1,
    overrides=[
        "env.normalize_obs=true",
        "net.hidden=[64]",
        "run.env_steps=3000",
        "eval.period=1000",
        "eval.target=45",
        "replay={capacity: 10000, learning_starts: 500, samples_per_insert: 16}",
        "actor.epsilon_steps=2000",
    ],
)
print(f"{run.run_dir}: best score {run.answer['best_score']:.1f} of 50")

# The class came from this script, so the folder alone does not know it: hand it over again.
policy = rookery.load(run.run_dir, env=Thermostat)
env = Thermostat()
obs, _ = env.reset(seed=7)
score, over = 0.0, False
while not over:
    action, _ = policy.act(obs)
    obs, reward, terminated, truncated, _ = env.step(action)
    score, over = score + reward, terminated or truncated
print(f"one more episode: {score:.0f} of 50")
