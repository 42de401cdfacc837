"""Environments that forbid: they raise when they get an action that their mask did not allow."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.algorithms.dqn import Dqn
from rookery.config.algorithms import DqnConfig
from rookery.types import MASK, Array, Bools, EnvSpec, Obs

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
WIDTH = 3  # numbers in an observation
TWENTY = 20  # actions of the pit


class TrespassError(Exception):
    """Somebody did what was forbidden."""


def fenced(actions: int, kind: Any = np.int8) -> spaces.Dict:
    """An observation of a few numbers and a mask."""
    seen = spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
    return spaces.Dict({"observation": seen, MASK: spaces.Box(0, 1, (actions,), kind)})


def random_masks(count: int, actions: int, rng: np.random.Generator) -> Array:
    """Masks of any density that allow at least one action."""
    mask = rng.random((count, actions)) < rng.random((count, 1))
    mask[np.arange(count), rng.integers(actions, size=count)] = True
    return mask.astype(np.int8)


def observations(spec: EnvSpec, count: int, seed: int = 0) -> dict[str, Array]:
    """Stored observations of `fenced` with random masks, frames stacked where they are."""
    rng, frames = np.random.default_rng(seed), spec.frame_stack
    masks = [random_masks(count, spec.action.n, rng) for _ in range(frames)]
    seen = rng.normal(size=(count, WIDTH * frames)).astype(np.float32)
    return {"observation": seen, MASK: np.concatenate(masks, 1)}


def with_masks(obs: Obs, mask: Array) -> dict[str, Array]:
    assert isinstance(obs, dict)
    return {**obs, MASK: mask.astype(np.int8)}


class Fences(VectorEnv[Any, Any, Any]):
    """Short episodes under masks that are drawn anew each step. The last one allows nothing."""

    def __init__(self, num: int, actions: int = 6, mode: AutoresetMode = SAME, seed: int = 0):
        self.num_envs, self.actions, self.mode = num, actions, mode
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = fenced(actions)
        self.single_action_space = spaces.Discrete(actions, start=2)
        self.observation_space = batch_space(self.single_observation_space, num)
        self.action_space = batch_space(self.single_action_space, num)
        self.rng = np.random.default_rng(seed)
        self.ended: Bools = np.zeros(num, dtype=np.bool_)
        self.episodes = self.forced = self.taken = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.ended = np.zeros(self.num_envs, dtype=np.bool_)
        self.mask = random_masks(self.num_envs, self.actions, self.rng)
        return self._obs(self.mask), {}

    def step(self, actions: Array) -> Any:
        idle = self.ended if self.mode is NEXT else np.zeros_like(self.ended)
        choice = actions - self.single_action_space.start
        good = self.mask[np.arange(self.num_envs), choice] > 0
        if not (good | idle).all():
            raise TrespassError(f"{choice} under {self.mask}")
        self.taken += int((~idle).sum())
        self.forced += int((self.mask.sum(1) == 1).sum())
        self.ended = (self.rng.random(self.num_envs) < 0.3) & ~idle
        self.episodes += int(self.ended.sum())
        truncated = self.ended & (self.rng.random(self.num_envs) < 0.5)
        self.mask = random_masks(self.num_envs, self.actions, self.rng)
        final = np.where(self.ended[:, None], 0, self.mask)
        info = {"final_obs": self._obs(final)} if self.mode is SAME and self.ended.any() else {}
        seen = self._obs(self.mask if self.mode is SAME else final)
        reward = self.rng.normal(size=self.num_envs)
        return seen, reward, self.ended & ~truncated, truncated, info

    def _obs(self, mask: Array) -> dict[str, Array]:
        seen = self.rng.normal(size=(self.num_envs, WIDTH)).astype(np.float32)
        return {"observation": seen, MASK: mask.astype(np.int8)}


class Pit(gym.Env[Any, Any]):
    """Behind a door is a pit, in which nothing but the last of twenty actions is allowed.

    In front of the door two are: 0 goes through it and earns 0.4, 1 stays out, earns 0.6 and ends.
    In the pit the last one earns nothing and ends.

    Optimum: 1, return 0.6. Nothing ever teaches a network what the other nineteen are worth in the
    pit, and of nineteen first guesses one is too high: whoever bootstraps from the largest believes
    in more behind the door than there is.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it
    optimal_return = 0.6

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (2,), np.float32),
                MASK: spaces.MultiBinary(TWENTY),
            }
        )
        self.action_space = spaces.Discrete(TWENTY)
        self.inside = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.inside = False
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._obs()[MASK][action]:
            raise TrespassError(f"{action} is forbidden, inside: {self.inside}")
        ends, reward = (True, 0.0) if self.inside else (action == 1, (0.4, 0.6)[int(action)])
        self.inside = not self.inside
        return self._obs(), reward, bool(ends), False, {}

    def _obs(self) -> dict[str, Array]:
        mask = np.zeros(TWENTY, dtype=np.int8)
        mask[[-1] if self.inside else [0, 1]] = 1
        return {"observation": np.eye(2, dtype=np.float32)[int(self.inside)], MASK: mask}


class Forgetful(Dqn):
    """Acts by the mask, and forgets it in its targets."""

    Settings = DqnConfig

    def _next_action(self, batch: Any, next_values: Any, tau: Any, rng: Any) -> Any:
        assert self.config.double
        return self.values.mean(self.online(batch.next_obs)).argmax(1)


class Alley(gym.Env[Any, Any]):
    """Goes one way: of fifty actions the one that comes next is allowed, for ten steps."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self) -> None:
        self.observation_space, self.action_space = fenced(50), spaces.Discrete(50)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action != self.steps:
            raise TrespassError(f"{action} at step {self.steps}")
        self.steps += 1
        return self._obs(), 1.0, self.steps == 10, False, {}

    def _obs(self) -> dict[str, Array]:
        seen = np.full(WIDTH, self.steps, np.float32)
        return {"observation": seen, MASK: np.eye(50, dtype=np.int8)[self.steps]}


class Stuck(Pit):
    """Has no way out of its pit."""

    def _obs(self) -> dict[str, Array]:
        obs = super()._obs()
        return {**obs, MASK: np.zeros(TWENTY, np.int8)} if self.inside else obs


class Heedless(Dqn):
    """An algorithm that does not know of masks."""

    Settings = DqnConfig

    def act(self, obs: Any, rng: Any, **how: Any) -> Any:
        return super().act(with_masks(obs, np.ones_like(obs[MASK])), rng, **how)


class Fence(gym.Env[Any, Any]):
    """One of `Fences`, by itself, with masks of bools; actions are counted from 3."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, actions: int = 5) -> None:
        self.observation_space = fenced(actions, np.bool_)
        self.action_space = spaces.Discrete(actions, start=3)
        self.actions = actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action - 3]:
            raise TrespassError(f"{action} under {self.mask}")
        self.steps += 1
        return self._obs(), float(action == 3), bool(self.np_random.random() < 0.1), False, {}

    def _obs(self) -> dict[str, Array]:
        self.mask = random_masks(1, self.actions, self.np_random)[0] > 0
        return {"observation": self.np_random.normal(size=WIDTH).astype("f4"), MASK: self.mask}
