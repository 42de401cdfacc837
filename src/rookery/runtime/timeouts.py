"""The heartbeat timeout of a process."""

import time
from collections.abc import Callable

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the one that heartbeats are in
SHARE = 4  # looks, at least, before it is at an end


def _now() -> float:
    return time.clock_gettime(CLOCK)


class Patience:
    """Heartbeat timeout of a process; a suspended machine or busy supervisor does not trigger it.

    The supervisor calls `at_end` repeatedly, and the time without a heartbeat is summed up over
    these calls. The time between two calls counts as at most a quarter of the timeout.
    """

    def __init__(self, now: Callable[[], float] = _now):
        self._now, self._looked, self.silent_s = now, now(), 0.0

    def at_end(self, silence_s: float, limit_s: float) -> bool:
        """Returns whether the process has sent no heartbeat for more than `limit_s`.

        `silence_s` is the time since its last heartbeat. Must be called repeatedly, since each
        call adds at most a quarter of `limit_s` to the time counted.
        """
        now = self._now()
        gap, self._looked = now - self._looked, now
        since = 0.0 if silence_s <= gap else self.silent_s
        self.silent_s = since + min(silence_s, gap, limit_s / SHARE)
        return self.silent_s > limit_s
