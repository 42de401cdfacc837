"""Wrappers for Atari games, which `env.wrappers` takes by their names in `NAMES`.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", and the Baselines of
OpenAI, whose order the wrapper `atari` follows. Only `FrameSkip` needs pixels; the others need the
game's action meanings or its lives.
"""

from typing import Any, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from rookery.errors import ConfigError

Env: TypeAlias = gym.Env[Any, Any]
Answer: TypeAlias = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]

NOOP, FIRE = "NOOP", "FIRE"


class NoopReset(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that begins each episode with a random number of no-ops, from 1 to `most`."""

    def __init__(self, env: Env, most: int = 30):
        if _meanings(env)[0] != NOOP or most < 1:
            raise ConfigError(
                f"noop_reset needs a game whose action 0 is {NOOP}, and at least 1 no-op, got "
                f"{_meanings(env)} and {most}; leave the wrapper out"
            )
        super().__init__(env)
        self.most = most

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        for _ in range(int(self.np_random.integers(1, self.most + 1))):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that presses FIRE at the start of each episode of a game that waits for it.

    As in the Baselines it plays action 2 afterwards. A game without FIRE is not changed.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        self._presses = (1, 2) if _meanings(env)[1:2] == [FIRE] else ()

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        for action in self._presses:
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that terminates an episode with each lost life; the game goes on in the next one.

    A new game begins where the game is over, or `reset` is given a seed or options.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        _lives(env)
        self._left, self._over = 0, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        again = not self._over and seed is None and options is None
        if again:
            obs, _, terminated, truncated, info = self.env.step(0)
            again = not (terminated or truncated)
        if not again:
            obs, info = self.env.reset(seed=seed, options=options)
        self._left, self._over = _lives(self.env), False
        return obs, info

    def step(self, action: Any) -> Answer:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lost, self._left = _lives(self.env) < self._left, _lives(self.env)
        return obs, reward, terminated or lost, truncated, info


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that repeats each action `skip` times; returns the maximum of the last two frames.

    Games draw some sprites only in every other frame. Gymnasium's wrapper of this kind returns old
    frames where the episode ends before the last repetition.
    """

    def __init__(self, env: Env, skip: int = 4):
        frames = getattr(env.unwrapped, "_frameskip", 1)
        if frames != 1 or skip < 1:
            raise ConfigError(
                f"max_and_skip needs a game that skips no frames, and a skip of at least 1, got "
                f"frameskip {frames} and skip {skip}; set env.kwargs={{frameskip: 1}}"
            )
        super().__init__(env)
        self.skip = skip

    def step(self, action: Any) -> Answer:
        frames: list[Any] = []
        earned = 0.0
        for _ in range(self.skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            frames, earned = [*frames[-1:], obs], earned + float(reward)
            if terminated or truncated:
                break
        return np.max(frames, axis=0), earned, terminated, truncated, info


def atari(env: Env, *, noop_max: int = 30, skip: int = 4, life: bool = True, size: int = 84) -> Env:
    """Wraps a game as the Baselines do: all wrappers of this file, then small grey frames.

    `noop_max` 0 leaves out the no-ops, `life` false the end of episodes with each life.
    """
    env = NoopReset(env, noop_max) if noop_max else env
    env = FrameSkip(env, skip)
    env = FireReset(EpisodicLife(env) if life else env)
    return wrappers.ResizeObservation(wrappers.GrayscaleObservation(env), (size, size))


NAMES = {
    "atari": atari,
    "noop_reset": NoopReset,
    "fire_reset": FireReset,
    "episodic_life": EpisodicLife,
    "max_and_skip": FrameSkip,
}


def _meanings(env: Env) -> list[str]:
    try:
        return list(env.get_wrapper_attr("get_action_meanings")())
    except AttributeError as error:
        raise _no_game(env) from error


def _lives(env: Env) -> int:
    try:
        return int(env.get_wrapper_attr("ale").lives())
    except AttributeError as error:
        raise _no_game(env) from error


def _no_game(env: Env) -> ConfigError:
    return ConfigError(
        f"{env} is no Atari game: it has no action meanings or lives; leave the wrappers "
        f"{', '.join(NAMES)} out of env.wrappers"
    )
