"""`EnvCalls`: which call of an environment runs now, and a heartbeat after each call.

A vector that is stepped one environment after another makes many calls in one step. A time limit is
for one call of one environment, so that the watchdog needs a heartbeat after each of them.
"""

from collections.abc import Callable


def _no_beat() -> None:
    """Does nothing: no watchdog reads the heartbeats of these environments."""


class EnvCalls:
    """Record of the calls of a vector's environments; a watchdog thread reads it.

    Code that calls an environment sets `running` to the name of the call, and afterwards to an
    empty string, and then calls `beat`.
    """

    def __init__(self, beat: Callable[[], None] = _no_beat):
        self.running = ""  # such as "step", "reset" or "the constructor"
        self.beat = beat
