"""Rewards, from what an environment gives to what is stored."""

import numpy as np

from rookery.config.schema import EnvConfig
from rookery.types import Array


def learned_reward(reward: Array, env: EnvConfig) -> Array:
    """Returns rewards as they are stored: scaled, then clipped."""
    if env.reward_scale != 1.0:
        reward = reward * np.float32(env.reward_scale)
    if env.reward_clip is not None:
        reward = reward.clip(-env.reward_clip, env.reward_clip)
    return reward
