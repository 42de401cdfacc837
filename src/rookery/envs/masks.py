"""Masks at the environment's door: which actions are allowed, and what to do where none is.

An environment that forbids some of its n Discrete actions says so in its observation, a Dict with
an entry `action_mask` of n zeros and ones. One that says so in `info` gets a wrapper:

    env:
      id: Taxi
      wrappers: [rookery.envs.masks:MaskFromInfo]
"""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.fault import Fault
from rookery.errors import ConfigError, EnvError, ProtocolError
from rookery.types import MASK, OBSERVATION, Array, Bools, EnvSpec, Obs

EMPTY = (
    f"the observation's {MASK!r} allows nothing, and an action is due; it must allow at least one "
    "action until the episode ends; end the episode there, or add an action that passes"
)


def newest(obs: Obs, spec: EnvSpec) -> Array:
    """Returns the masks [E, n] of stored observations: of a stack of frames the latest."""
    assert isinstance(obs, dict), "a mask is an entry of a Dict"
    return obs[MASK][:, -spec.action.n :]


def refuse_empty(obs: Obs, spec: EnvSpec) -> None:
    """Refuses observations [E] that somebody has to act on where nothing is allowed."""
    if spec.masked and not newest(obs, spec).any(1).all():
        raise EnvError(f"{spec.name}: {EMPTY}")


def refuse_forbidden(obs: Obs, action: Array, spec: EnvSpec, idle: Bools) -> None:
    """Refuses actions [E] that their observations forbid, except where nobody looks at them.

    Where nothing is allowed it is the environment's `Fault`. Otherwise it is the policy's, and
    none of ours; one of a user's own may not know of masks.
    """
    mask = newest(obs, spec)
    wrong = (mask[np.arange(len(mask)), action] == 0) & ~idle
    if not np.count_nonzero(wrong):
        return
    index = int(wrong.argmax())
    if not mask[index].any():
        raise Fault(EMPTY, index)
    raise ProtocolError(
        f"{spec.name}, environment {index}: the policy chose action "
        f"{int(action[index]) + spec.action.start}, which the observation's {MASK!r} forbids; an "
        "algorithm must choose among those that are allowed, see rookery.algos.masks"
    )


class MaskFromInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Puts `info["action_mask"]` beside the observation; a Dict gets one more entry.

    Where an episode ends `info` may leave it out.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        action, seen = env.action_space, env.observation_space
        if not isinstance(action, spaces.Discrete):
            raise ConfigError(
                f"MaskFromInfo masks Discrete actions, and these are {action}; leave it out of "
                "env.wrappers"
            )
        self._is_dict = isinstance(seen, spaces.Dict)
        entries = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {OBSERVATION: seen}
        if MASK in entries:
            raise ConfigError(
                f"MaskFromInfo adds {MASK!r} to observations that have one: {seen}; leave it out "
                "of env.wrappers"
            )
        self._none = np.zeros(int(action.n), dtype=np.int8)
        entries[MASK] = spaces.Box(0, 1, self._none.shape, np.int8)
        self.observation_space = spaces.Dict(entries)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._beside(obs, info), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        told = {MASK: self._none, **info} if terminated or truncated else info
        return self._beside(obs, told), reward, terminated, truncated, info

    def _beside(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK not in info:
            raise Fault(
                f"info has no {MASK!r}: {sorted(info)}; MaskFromInfo needs it from every reset and "
                "step; leave the wrapper out where an environment has no masks"
            )
        seen = obs if self._is_dict else {OBSERVATION: obs}
        return {**seen, MASK: np.asarray(info[MASK])}

    def export_state(self) -> dict[str, Any]:
        return {}  # it remembers nothing

    def restore_state(self, state: dict[str, Any]) -> None: ...


class Corrected(gym.Wrapper[Any, Any, Any, Any]):
    """Does the next allowed action in the place of a forbidden one.

    For those who play at random and do not know of masks, such as gymnasium's checker.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._mask = np.asarray(obs[MASK])
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        assert isinstance(self.action_space, spaces.Discrete), "a mask is one of choices"
        start = self.action_space.start
        onward = np.roll(self._mask, start - action)  # from this action on, and round
        result = self.env.step(start + (action - start + onward.argmax()) % len(onward))
        self._mask = np.asarray(result[0][MASK])
        return result
