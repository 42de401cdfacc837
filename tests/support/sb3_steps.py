"""Steps of made-up environments, for buffers of Stable-Baselines3, and what samples must be."""

from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

POINT = spaces.Box(-100.0, 100.0, (3,), np.float32)
PUSH = spaces.Box(-2.0, 2.0, (2,), np.float32)


class Story:
    """T steps of E environments. An observation tells its row's number, the next one its end."""

    def __init__(self, steps: int, envs: int = 1, seed: int = 0, first: int = 0):
        rng = np.random.default_rng(seed)
        self.steps, self.envs, self.first = steps, envs, first
        self.reward = rng.normal(size=(steps, envs)).astype(np.float32)
        self.done = rng.random((steps, envs)) < 0.2
        self.timeout = self.done & (rng.random((steps, envs)) < 0.5)

    def obs(self, row: int) -> Any:
        return np.array([self.first + row, row % self.envs, 1.0], dtype=np.float32)

    def next_obs(self, row: int) -> Any:
        return self.obs(row) + np.float32(0.5)

    def action(self, row: int) -> Any:
        return np.array([row % 7, -1.0], dtype=np.float32)

    def tell(self, *buffers: Any, keys: tuple[str, ...] = ()) -> None:
        """Adds every step to each of the buffers; with keys as Dict observations."""
        for t in range(self.steps):
            rows = range(t * self.envs, (t + 1) * self.envs)
            obs, then, action = (
                np.stack([tell(row) for row in rows])
                for tell in (self.obs, self.next_obs, self.action)
            )
            infos = [{"TimeLimit.truncated": bool(over)} for over in self.timeout[t]]
            for buffer in buffers:
                now: Any = dict.fromkeys(keys, obs) or obs
                later: Any = dict.fromkeys(keys, then) or then
                buffer.add(now, later, action, self.reward[t], self.done[t], infos)

    def window(self, row: int, n: int, gamma: float, scale: float = 1.0, clip: float = np.inf):
        """Returns n-step reward, discount, done and last row, as the definition says."""
        total, factor = 0.0, 1.0
        for _ in range(n):
            t, env = divmod(row, self.envs)
            total += factor * float(np.clip(scale * self.reward[t, env], -clip, clip))
            factor *= gamma
            last = row
            row += self.envs
            if self.done[t, env] or t == self.steps - 1:
                break
        t, env = divmod(last, self.envs)
        return Window(total, factor, bool(self.done[t, env] and not self.timeout[t, env]), last)


class Window(NamedTuple):
    reward: float
    discount: float
    done: bool
    last: int


def live(space: Any, action_space: Any, steps: int, envs: int, seed: int = 3) -> Any:
    """Yields steps with observations and actions of any space."""
    rng = np.random.default_rng(seed)
    space, action_space = deepcopy(space), deepcopy(action_space)
    space.seed(seed)
    action_space.seed(seed)
    for _ in range(steps):
        now, then = ([space.sample() for _ in range(envs)] for _ in range(2))
        done = rng.random(envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        action = np.stack([np.asarray(action_space.sample()) for _ in range(envs)])
        yield stacked(now), stacked(then), action, rng.normal(size=envs), done, infos


def stacked(samples: Any) -> Any:
    if isinstance(samples[0], dict):
        return {key: np.stack([np.asarray(s[key]) for s in samples]) for key in samples[0]}
    return np.stack([np.asarray(sample) for sample in samples])


class Still(gym.Env[Any, Any]):
    """Has spaces, and nothing happens in it."""

    def __init__(self, space: Any, action_space: Any):
        self.observation_space, self.action_space = space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def normalizer(space: Any, action_space: Any = PUSH, clip_reward: float = 0.8) -> VecNormalize:
    """A VecNormalize that has seen something."""
    env = VecNormalize(
        DummyVecEnv([lambda: Still(space, action_space)]), clip_reward=clip_reward, clip_obs=5.0
    )
    env.ret_rms.var = np.array(1.7)
    for rms in env.obs_rms.values() if isinstance(env.obs_rms, dict) else [env.obs_rms]:
        rms.mean = rms.mean + 1.5
        rms.var = rms.var * 3.0
    return env
