"""Patience with processes: how long a silence may last, and a pause before the next try."""

import time
from collections.abc import Callable

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the one that heartbeats are in
SHARE = 4  # looks, at least, before it is at an end
BACK_OFF_S = 0.5  # before the second restart in a row; doubles with each one


def back_off_s(strikes: int) -> float:
    """Returns how long to wait after so many losses in a row."""
    return BACK_OFF_S * 2 ** (strikes - 2) if strikes > 1 else 0.0


def _now() -> float:
    return time.clock_gettime(CLOCK)


class Patience:
    """Adds up a silence from look to look, beginning now.

    A machine that slept, or a looker who was stopped or busy, is nobody else's fault: the time
    between two looks never counts for more than a quarter of the limit.
    """

    def __init__(self, now: Callable[[], float] = _now):
        self._now, self._looked, self.silent_s = now, now(), 0.0

    def at_end(self, silence_s: float, limit_s: float) -> bool:
        """Looks at how long ago the last sign of life was. Was it silent for too long?"""
        now = self._now()
        gap, self._looked = now - self._looked, now
        since = 0.0 if silence_s <= gap else self.silent_s
        self.silent_s = since + min(silence_s, gap, limit_s / SHARE)
        return self.silent_s > limit_s
