"""Time from the publication of weights to the first row that was played with them."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

import numpy as np

KEPT = 1_000  # versions not yet played with, and measured times


class Freshness:
    """Measures for each version of the weights when its first row arrives in replay."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._published: OrderedDict[int, float] = OrderedDict()
        self._took: deque[float] = deque(maxlen=KEPT)
        self.version = 0  # the newest that was played with

    def published(self, version: int) -> None:
        self._published[version] = self._now()
        if len(self._published) > KEPT:
            self._published.popitem(last=False)

    def seen(self, version: int) -> None:
        """Notes that the newest env steps in replay were played with this weight version."""
        if version <= self.version:
            return
        self.version = version
        if version in self._published:
            self._took.append(self._now() - self._published[version])
        while self._published and next(iter(self._published)) <= version:
            self._published.popitem(last=False)

    def metrics(self) -> dict[str, float]:
        """Returns median and 99th percentile in milliseconds, over the last thousand versions."""
        if not self._took:
            return {}
        p50, p99 = np.percentile(self._took, (50, 99)) * 1000
        return {"actors/fresh_ms_p50": float(p50), "actors/fresh_ms_p99": float(p99)}
