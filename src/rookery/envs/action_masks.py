"""Action masks of environments: which of n Discrete actions are allowed.

An environment gives its mask in the observation: a Dict with an entry `action_mask` of n zeros and
ones. An environment that gives it in `info` needs a wrapper:

    env:
      id: Taxi
      wrappers: [rookery.envs.action_masks:MaskFromInfo]
"""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rookery.envs.env_fault import Fault
from rookery.errors import ConfigError, EnvError, ProtocolError
from rookery.types import MASK, OBSERVATION, Array, Bools, EnvSpec, Obs

EMPTY = (
    f"the observation's {MASK!r} allows no action before the episode's end; it must allow at least "
    "one; end the episode there, or add an action that passes"
)


def newest(obs: Obs, spec: EnvSpec) -> Array:
    """Returns the action masks [E, n] in a batch of E observations, for n discrete actions.

    If an observation is a stack of frames, its mask is that of the newest frame.
    """
    assert isinstance(obs, dict), "a mask is an entry of a Dict"
    return obs[MASK][:, -spec.action.n :]


def refuse_empty(obs: Obs, spec: EnvSpec) -> None:
    """Raises `EnvError` if an action mask in a batch of observations allows no action.

    Does nothing if the environment has no action masks.
    """
    if spec.masked and not newest(obs, spec).any(1).all():
        raise EnvError(f"{spec.name}: {EMPTY}")


def refuse_forbidden(obs: Obs, action: Array, spec: EnvSpec, idle: Bools) -> None:
    """Raises an error if an action of one of E environments is forbidden by its action mask.

    Environments that are True in `idle` [E] ignore their action and are not checked. A mask that
    allows no action raises `Fault`, an error of the environment. Any other forbidden action raises
    `ProtocolError`, an error of the policy, such as a user's own algorithm that ignores masks.
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
        "algorithm must choose among those that are allowed, see rookery.algorithms.masking"
    )


class MaskFromInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that adds `info["action_mask"]` to the observation, as an entry of a Dict.

    An observation that is not a Dict becomes the entry `observation`. If `info` lacks the mask,
    the last step of an episode gets a mask of zeros; `reset` and other steps raise `Fault`.
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

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        given = {MASK: self._none, **info} if terminated or truncated else info
        return self._with_mask(obs, given), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK not in info:
            raise Fault(
                f"info has no {MASK!r}: {sorted(info)}; MaskFromInfo needs it from every reset and "
                "step; leave the wrapper out where an environment has no masks"
            )
        seen = obs if self._is_dict else {OBSERVATION: obs}
        return {**seen, MASK: np.asarray(info[MASK])}

    def export_state(self) -> dict[str, Any]:
        return {}  # the wrapper has no state

    def restore_state(self, state: dict[str, Any]) -> None: ...


class Corrected(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that replaces a forbidden action by the next higher allowed action.

    After the highest action the search for an allowed one continues at the lowest. The wrapper lets
    random policies that ignore masks, such as gymnasium's checker, step a masked environment.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._mask = np.asarray(obs[MASK])
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        assert isinstance(self.action_space, spaces.Discrete), "only Discrete actions have masks"
        start = self.action_space.start
        onward = np.roll(self._mask, start - action)  # from this action on, and round
        result = self.env.step(start + (action - start + onward.argmax()) % len(onward))
        self._mask = np.asarray(result[0][MASK])
        return result
