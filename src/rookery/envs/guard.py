"""The guard in front of one environment.

A vector of environments writes single answers into its own arrays, and there a wrong shape becomes
an error about buffers, a reward of shape (1,) a number, and `info` entries of differing types the
type of the first. The guard looks at each answer before that happens.
"""

from copy import deepcopy
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from rookery.envs.fault import OLD_STEP, RESET_FORM, STEP_FORM, Fault, raised
from rookery.envs.spaces import Codec

Env: TypeAlias = gym.Env[Any, Any]

BOX = "each"  # where a vector's info keeps each environment's own info, as it came


class Guard(gym.Wrapper[Any, Any, Any, Any]):
    """Checks one environment's answers; what cannot be used is a `Fault` that names `index`."""

    def __init__(self, env: Env, codec: Codec, index: int = 0) -> None:
        super().__init__(env)
        self._codec, self._index = codec, index

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result = self._ask("reset", seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise Fault(f"reset returned {_shape_of(result)}; {RESET_FORM}", self._index)
        self._look("reset", result[0])
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self._ask("step", action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise Fault(_wrong_step(result), self._index)
        obs, reward, terminated, truncated, info = result
        self._look("step", obs)
        self._scalar(reward)
        self._flag("terminated", terminated)
        self._flag("truncated", truncated)
        if terminated or truncated:  # the reset that follows may write into the same memory
            obs, info = deepcopy(obs), dict(info)
        return obs, reward, bool(terminated), bool(truncated), info

    def _ask(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, call)(*args, **kwargs)
        except Fault:
            raise
        except Exception as error:  # anything may come out of a user's environment: it gets a name
            raise Fault(raised(call, error), self._index) from error

    def _look(self, call: str, obs: Any) -> None:
        try:
            self._codec.check(obs)
        except Fault as fault:
            raise Fault(f"{call}: {fault.what}", self._index) from fault.__cause__

    def _scalar(self, reward: Any) -> None:
        if isinstance(reward, float | int | np.floating | np.integer | np.bool_):
            return
        array = np.asarray(reward)
        if array.shape or array.dtype.kind not in "fiub":
            raise Fault(
                f"step returned the reward {reward!r} of type {type(reward).__name__}; "
                "it must be one number; return float(reward)",
                self._index,
            )

    def _flag(self, name: str, value: Any) -> None:
        if not isinstance(value, bool | np.bool_):
            raise Fault(
                f"step returned {name} = {value!r} of type {type(value).__name__}; "
                f"it must be a bool; return bool({name})",
                self._index,
            )


class BoxingGuard(Guard):
    """A guard for a place in a vector: `info` travels as one object.

    A vector merges what its environments say into arrays, and fails or rounds where their types
    differ. What is not a dict it leaves alone, and a mapping proxy is none.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs, _boxed(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, _boxed(info)


def _boxed(info: dict[str, Any]) -> dict[str, Any]:
    return {BOX: MappingProxyType(info)} if info else {}


def _wrong_step(result: Any) -> str:
    old = isinstance(result, tuple) and len(result) == 4
    return f"step returned {_shape_of(result)}; {OLD_STEP if old else STEP_FORM}"


def _shape_of(result: Any) -> str:
    """Says what kind of thing came back, in the words of a signature."""
    if not isinstance(result, tuple):
        return f"a {type(result).__name__}"
    return f"a tuple of {len(result)}: ({', '.join(type(part).__name__ for part in result)})"
