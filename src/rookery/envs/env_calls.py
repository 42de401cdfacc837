"""`EnvCalls`: which call of an environment runs now, and a heartbeat after each call.

A vector that is stepped one environment after another makes many calls in one step. A time limit is
for one call of one environment, so that the watchdog needs a heartbeat after each of them.
"""

from collections.abc import Callable
from typing import Self


def _no_beat() -> None:
    """Does nothing: no watchdog reads the heartbeats of these environments."""


class EnvCalls:
    """Record of the calls of a vector's environments; a watchdog thread reads it.

    with calls.during("step"):     # the name of the call
        env.step(action)
    """

    def __init__(self, beat: Callable[[], None] = _no_beat):
        self.running = ""  # such as "step", "reset" or "the constructor"; empty: no call runs
        self.beat = beat

    def during(self, call: str) -> Self:
        """Returns the context manager of one call; a class is faster than contextlib's function."""
        self.running = call
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.running = ""
        self.beat()
