"""Environments that misbehave on purpose, by name: `--env misbehaving_envs:Wander`."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FOREVER_S = 3600.0


class Wander(gym.Env[Any, Any]):
    """A noisy walk that ends by chance. It cannot export its state, like most environments."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place, self.steps = np.zeros(2, np.float32), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2).astype(np.float32), 0
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        drift = self.np_random.normal(size=2) + (0.5 if action else -0.5)
        self.place = np.clip(self.place + drift, -100, 100).astype(np.float32)
        self.steps += 1
        ended = bool(self.np_random.random() < 0.02)
        return self.place, float(self.place[0] > 0), ended, self.steps >= 100, {}


class Maturing(Wander):
    """Begins further out with every episode: how many it has begun is its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.begun = self.place + np.float32(self.begun % 50), self.begun + 1
        return self.place, {}

    def export_progress(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def restore_progress(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"]


class Staged(Wander):
    """Stops for ever at one stage of a run, having made the file `reached`.

    make: its constructor, in the training process. judge make: its constructor, in the evaluation
    process. check: gymnasium's checker resets it. wire: the actor resets it. play: the actor has
    played a while. judge: the evaluator plays. compiled: like play, but where no signal gets
    through. close: the run is over and says goodbye. seize: like judge, and no other thread runs
    Python.
    """

    made = 0  # in this process

    def __init__(self, reached: str, at: str) -> None:
        super().__init__()
        type(self).made += 1
        self._reached, self._at, self._checked = Path(reached), at, type(self).made == 1
        self._hang("judge make" if judging() else "make")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if not judging():
            self._hang("check" if self._checked else "wire")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if judging():
            self._hang("judge")
            self._hang("seize")
        elif self.steps == 60:
            self._hang("play")
            self._hang("compiled")
        return super().step(action)

    def close(self) -> None:
        if not self._checked and not judging():
            self._hang("close")

    def _hang(self, stage: str) -> None:
        if stage == self._at:
            self._reached.touch()
            HANGS.get(stage, lambda: time.sleep(FOREVER_S))()


class Sluggish(Wander):
    """Takes some time for every step, except where it is judged."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.0 if judging() else self._step_s)
        return super().step(action)


class Brood(Wander):
    """Starts a process of its own where it is judged, and never ends it."""

    def __init__(self) -> None:
        super().__init__()
        if judging():
            subprocess.Popen(["sleep", "600"])


class Moody(Wander):
    """Does something at its k-th step, counted over all episodes of one environment."""

    def __init__(self, mood: str, at: int = 100, where: str = "everywhere") -> None:
        super().__init__()
        self._mood, self._at, self._where, self._count = mood, at, where, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        self._count += 1
        if self._count >= self._at and PLACES[self._where]():
            return MOODS[self._mood](answer)
        return answer


def _raise(answer: Any) -> Any:
    raise RuntimeError("the motor is on fire")


def _leave(answer: Any) -> Any:
    sys.exit(0)


def _nan(answer: Any) -> Any:
    return np.full(2, np.nan, np.float32), *answer[1:]


def _tuple(answer: Any) -> Any:
    return answer[:4]


def _die(answer: Any) -> Any:
    ctypes.string_at(0)  # SIGSEGV
    return answer


def _hang(answer: Any) -> Any:
    time.sleep(FOREVER_S)
    return answer


def _dawdle(answer: Any) -> Any:
    time.sleep(0.005)
    return answer


def _crawl(answer: Any) -> Any:
    time.sleep(0.025)
    return answer


def _huge(answer: Any) -> Any:
    return answer[0], 3e38, *answer[2:]


MOODS = {
    "raise": _raise,
    "leave": _leave,
    "nan": _nan,
    "tuple": _tuple,
    "die": _die,
    "hang": _hang,
    "dawdle": _dawdle,
    "crawl": _crawl,
    "huge": _huge,
}


def process() -> str:
    """Returns the name of this process, as `ps` shows it."""
    return Path("/proc/self/comm").read_text().strip()


def judging() -> bool:
    """Is this the evaluation process?"""
    return process() == "rookery-eval"


def _before() -> bool:
    """Has another process of this run been here? Says so to those that come after this one."""
    mark = Path(f"first-{os.getppid()}")
    try:
        with mark.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return mark.read_text() != str(os.getpid())
    return False


PLACES = {
    "everywhere": lambda: True,
    "nowhere": lambda: False,
    "judge": judging,
    "first actor": lambda: process() == "rookery-actor-0",
    "first actor once": lambda: process() == "rookery-actor-0" and not _before(),
    "actors": lambda: "-actor-" in process(),
}


def seize() -> None:
    """Sleeps without giving up the interpreter."""
    while True:
        ctypes.PyDLL(None).sleep(int(FOREVER_S))


def deadlock() -> None:
    """Locks a lock twice in the C library: no signal ends the wait, and Python runs no handler."""
    lock = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


HANGS = {"compiled": deadlock, "seize": seize}
