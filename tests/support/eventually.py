"""Waiting for a condition, with a bound."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], within_s: float, every_s: float = 0.005) -> bool:
    """Looks until the condition holds or time is up; returns whether it held.

    A look that is dear is taken less often: what is waited for needs the processor too.
    """
    began = time.monotonic()
    deadline = began + within_s
    while not condition():
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(max(every_s, min(9.0 * (now - began), 0.5)))
        began = time.monotonic()
    return True
