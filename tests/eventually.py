"""Waiting for a condition, with a bound."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    """Looks until the condition holds or time is up; returns whether it held."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
