"""Wrappers that check every value that one environment returns.

Gymnasium's vector environments copy returned values into their own arrays. In this copy a wrong
shape becomes an error about buffers, a reward of shape (1,) becomes a number, and `info` entries of
differing types are cast to the type of the first. These wrappers check each value before the copy.
"""

from collections import UserDict
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.env_calls import EnvCalls
from rookery.envs.env_fault import ENV_ERRORS, OLD_STEP, RESET_FORM, STEP_FORM, Fault, raised
from rookery.envs.nested import Place, Space, leaf_spaces
from rookery.envs.spaces import SpaceCodec, narrowed

Env: TypeAlias = gym.Env[Any, Any]

NOT_WITHIN = "reset returned an observation that is not within the observation space; correct one"
BOX = "each"  # key of a vector's info with each environment's own info, unchanged


class Guard(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that raises `Fault` if an environment's `reset` or `step` fails.

    They fail if they raise an exception or return an invalid value.
    """

    def __init__(
        self, env: Env, codec: SpaceCodec, index: int = 0, calls: EnvCalls | None = None
    ) -> None:
        super().__init__(env)
        self._codec, self._index, self._calls = codec, index, calls or EnvCalls()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result = self._call("reset", seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise Fault(f"reset returned {_shape_of(result)}; {RESET_FORM}", self._index)
        self._check_obs("reset", result[0])
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self._call("step", action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise Fault(_wrong_step(result), self._index)
        obs, reward, terminated, truncated, info = result
        self._check_obs("step", obs)
        self._check_reward(reward)
        self._check_flag("terminated", terminated)
        self._check_flag("truncated", truncated)
        if terminated or truncated:  # the reset that follows may write into the same memory
            obs, info = deepcopy(obs), dict(info)
        return obs, reward, bool(terminated), bool(truncated), info

    def _call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._calls.during(call):
                return getattr(self.env, call)(*args, **kwargs)
        except Fault:
            raise
        except ENV_ERRORS as error:  # a user's environment may raise anything
            raise Fault(raised(call, error), self._index) from error

    def _check_obs(self, call: str, obs: Any) -> None:
        try:
            self._codec.check(obs)
        except Fault as fault:
            raise Fault(f"{call}: {fault.what}", self._index) from fault.__cause__

    def _check_reward(self, reward: Any) -> None:
        if isinstance(reward, float | int | np.floating | np.integer | np.bool_):
            return
        array = np.asarray(reward)
        if array.shape or array.dtype.kind not in "fiub":
            raise Fault(
                f"step returned the reward {reward!r} of type {type(reward).__name__}; "
                "it must be one number; return float(reward)",
                self._index,
            )

    def _check_flag(self, name: str, value: Any) -> None:
        if not isinstance(value, bool | np.bool_):
            raise Fault(
                f"step returned {name} = {value!r} of type {type(value).__name__}; "
                f"it must be a bool; return bool({name})",
                self._index,
            )


class BoxingGuard(Guard):
    """Wrapper that checks an environment as `Guard` does, and protects `info` from being merged.

    Gymnasium's vectors merge the info dicts of all environments into arrays, and fail or round
    values if types differ. This wrapper puts `info` into a `UserDict`, which is no dict and
    therefore not merged.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**kwargs)
        return obs, _boxed(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, _boxed(info)


def _boxed(info: dict[str, Any]) -> dict[str, Any]:
    return {BOX: UserDict(info)} if info else {}


class CheckGuard(Guard):
    """Wrapper that checks an environment as `Guard` does, and rewards and first observations too.

    Gymnasium's checker compares rewards of two runs, and so calls a NaN "not deterministic". Of an
    observation it says that it is not within its space, and not why. This wrapper says why.

    Raises `Fault` for a reward that is not finite, with its value and the number of the step, and
    for an observation of `reset` that is not within the observation space, with the reason.
    """

    def __init__(self, env: Env, codec: SpaceCodec, calls: EnvCalls) -> None:
        super().__init__(env, codec, calls=calls)
        self._steps = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**kwargs)
        if not self.observation_space.contains(obs):
            parts = leaf_spaces(self.observation_space)
            reasons = (_reason(obs, space, path) for path, space in parts)
            reason = next((reason for reason in reasons if reason), None)
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


def _reason(obs: Any, space: Space, path: Place) -> str | None:
    """Returns why an array of an observation is not within its space; None if that is not known."""
    if not isinstance(space, spaces.Box):
        return None
    array = np.asarray(reduce(getitem, path, obs))
    title = f"observation {'/'.join(map(str, path))!r}" if path else "observation"
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


def _wrong_step(result: Any) -> str:
    old = isinstance(result, tuple) and len(result) == 4
    return f"step returned {_shape_of(result)}; {OLD_STEP if old else STEP_FORM}"


def _shape_of(result: Any) -> str:
    """Describes the type of what `reset` or `step` returned, for error messages.

    For a tuple, the description has its length and the types of its entries.
    """
    if not isinstance(result, tuple):
        return f"a {type(result).__name__}"
    return f"a tuple of {len(result)}: ({', '.join(type(part).__name__ for part in result)})"
