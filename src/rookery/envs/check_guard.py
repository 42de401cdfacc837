"""`CheckGuard`: the wrapper around an environment that gymnasium's checker tests.

The checker compares rewards of two runs, and so calls a NaN "not deterministic". Of an observation
it says that it is not within its space, and not why. This wrapper raises an error that says it.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.env_calls import EnvCalls
from rookery.envs.env_fault import Fault
from rookery.envs.lookup import Env
from rookery.envs.spaces import SpaceCodec, narrowed
from rookery.envs.step_checks import Guard


class CheckGuard(Guard):
    """Wrapper that checks an environment as `Guard` does, and rewards and first observations too.

    Raises `Fault` for a reward that is not finite, with its value and the number of the step, and
    for an observation of `reset` that is not within the observation space, with the reason.
    """

    def __init__(self, env: Env, codec: SpaceCodec, calls: EnvCalls) -> None:
        super().__init__(env, codec, calls=calls)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        if not self.observation_space.contains(obs):
            reason = _reason(obs, self.observation_space)
            raise Fault(f"reset: {reason}" if reason else NOT_WITHIN)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if not np.isfinite(narrowed(np.asarray(reward))):
            raise Fault(
                f"step {self._steps}: the reward is {reward}; it must be a finite 32-bit float; "
                "look at what step computes, or clip it there"
            )
        return obs, reward, terminated, truncated, info


NOT_WITHIN = "reset returned an observation that is not within the observation space; correct one"


def _reason(obs: Any, space: spaces.Space[Any], path: tuple[str, ...] = ()) -> str | None:
    """Returns why an observation is not within its space; None if that is not known."""
    if isinstance(space, spaces.Dict):
        parts = ((key, obs[key], part) for key, part in space.spaces.items())
        reasons = (_reason(own, part, (*path, key)) for key, own, part in parts)
        return next((reason for reason in reasons if reason), None)
    if not isinstance(space, spaces.Box):
        return None
    array, title = np.asarray(obs), f"observation {'/'.join(path)!r}" if path else "observation"
    if not np.can_cast(array.dtype, space.dtype):
        return (
            f"{title} is {array.dtype}; its space says {space.dtype}; cast it in the environment "
            f"with np.asarray(obs, dtype=np.{space.dtype}), correct the space, or set "
            "env.check=false to skip this check"
        )
    outside = np.argwhere(~((array >= space.low) & (array <= space.high)))
    if not len(outside):
        return None
    at = tuple(outside[0])
    return (
        f"the observation is not within the observation space: {title}{list(map(int, at))} is "
        f"{array[at]}; allowed there: {space.low[at]} to {space.high[at]}; clip it in the "
        "environment, correct the space, or set env.check=false to skip this check"
    )
