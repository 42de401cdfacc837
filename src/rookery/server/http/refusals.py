"""Refusals: their HTTP status, and a log that nobody can flood."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from rookery.errors import RefusedError
from rookery.server.http.prometheus import Metrics

LOG = logging.getLogger("rookery.server")
PERIOD_S = 10.0  # one line for each code
STATUS = {
    "auth": 401,
    "length": 411,
    "size": 413,
    "late": 408,
    "rate": 429,
    "quarantined": 403,
    "busy": 503,
    "malformed": 400,
    "digest": 400,
}
OTHER = 422  # what the parameter server itself refuses


class Refusals:
    """Counts every refusal, and logs one of each code now and then."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic):
        self._metrics, self._clock = metrics, clock
        self._said: dict[str, float] = {}
        self._silent: Counter[str] = Counter()

    def note(self, refusal: RefusedError, peer: str) -> None:
        """Hears of one; its message must not hold a key."""
        code, now = refusal.code, self._clock()
        self._metrics.count("refused_total", code)
        if now - self._said.get(code, float("-inf")) < PERIOD_S:
            self._silent[code] += 1
            return
        self._said[code] = now
        more = f" ({n} more since the last such line)" if (n := self._silent.pop(code, 0)) else ""
        LOG.warning("refused (%s) %s: %.300s%s", code, peer, refusal, more)


def status(code: str) -> int:
    """Returns the HTTP status of a refusal."""
    return STATUS.get(code, OTHER)
