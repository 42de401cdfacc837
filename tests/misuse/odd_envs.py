"""Environments that break Gymnasium's API, one way each, for `make misuse`.

They are not those of the unit tests. `After` environments behave for `GOOD` steps first.
"""

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

GOOD = 120  # steps before an environment misbehaves


class Thermostat(gym.Env[Any, Any]):
    """A well-behaved task: keep a temperature near 20 degrees with off, low and high heating."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-50.0, 90.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.steps = self.played = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.inside = 0, float(self.np_random.uniform(10, 30))
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.inside, self.steps], dtype=np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.played += 1
        self.inside += 0.5 * (int(np.asarray(action).flat[0]) - 1)
        return self.seen(), -abs(self.inside - 20.0), False, self.steps >= 25, {}

    @property
    def odd(self) -> bool:
        return self.played > GOOD


class NanObs(Thermostat):
    def seen(self) -> Any:
        return super().seen() * (np.nan if self.odd else 1.0)


class InfObs(Thermostat):
    def seen(self) -> Any:
        return super().seen() + (np.inf if self.odd else 0.0)


class NanReward(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if self.odd else reward, *rest


class InfReward(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, float("-inf") if self.odd else reward, *rest


class NoReward(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, None if self.odd else reward, *rest


class ListReward(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, [reward, reward] if self.odd else reward, *rest


class TextReward(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, "warm" if self.odd else reward, *rest


class FourValues(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.odd:
            return obs, reward, terminated or truncated, info
        return obs, reward, terminated, truncated, info


class NothingReturned(Thermostat):
    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return None if self.odd else answer


class IntegerFlags(Thermostat):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated) if self.odd else terminated, truncated, info


class NoInfo(Thermostat):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, None if self.odd else info


class WrongShape(Thermostat):
    def seen(self) -> Any:
        return super().seen()[:1] if self.odd else super().seen()


class WrongType(Thermostat):
    def seen(self) -> Any:
        return "cold" if self.odd else super().seen()


class OutsideSpace(Thermostat):
    def seen(self) -> Any:
        return super().seen() + (1e6 if self.odd else 0.0)


class Raises(Thermostat):
    def step(self, action: Any) -> Any:
        if self.odd:
            raise KeyError("heater")
        return super().step(action)


class RaisesInReset(Thermostat):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.odd:
            raise OSError(5, "the heater does not answer")
        return super().reset(seed=seed, options=options)


class RaisesInConstructor(Thermostat):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no heater is connected")


class RaisesInClose(Thermostat):
    def close(self) -> None:
        raise RuntimeError("the heater cannot be switched off")


class Exits(Thermostat):
    def step(self, action: Any) -> Any:
        if self.odd:
            sys.exit(0)
        return super().step(action)


class ExitsInReset(Thermostat):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.odd:
            sys.exit("out of fuel")
        return super().reset(seed=seed, options=options)


class ExitsInConstructor(Thermostat):
    def __init__(self) -> None:
        super().__init__()
        sys.exit(0)


class Interrupts(Thermostat):
    """Raises KeyboardInterrupt itself: this is not the user's Ctrl+C."""

    def step(self, action: Any) -> Any:
        if self.odd:
            raise KeyboardInterrupt
        return super().step(action)


class Kills(Thermostat):
    def step(self, action: Any) -> Any:
        if self.odd:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Crashes(Thermostat):
    def step(self, action: Any) -> Any:
        if self.odd:
            os.abort()
        return super().step(action)


class Hangs(Thermostat):
    def step(self, action: Any) -> Any:
        if self.odd:
            time.sleep(3600)
        return super().step(action)


class HangsInReset(Thermostat):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(3600)
        return super().reset(seed=seed, options=options)


class HangsInConstructor(Thermostat):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(3600)


class NoSpaces(gym.Env[Any, Any]):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}


class TextSpace(Thermostat):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(8)


class GraphActions(Thermostat):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Graph(spaces.Box(0, 1, (1,)), None)


class OldReset(Thermostat):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]


class NotAnEnvironment:
    pass


def not_a_class() -> int:
    return 3


NUMBER = 5
