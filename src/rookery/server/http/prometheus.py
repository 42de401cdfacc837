"""Counts of a service for JSON and Prometheus, and its log of refusals; needs extra `server`."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rookery.errors import RefusedError

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "rookery_server_"
LOG = logging.getLogger("rookery.server")
PERIOD_S = 10.0  # one line for each code of refusals, whose length a flood does not change
# name → its label, its help
COUNTERS = {
    "messages_total": ("kind", "Messages that were let in."),
    "refused_total": ("code", "Messages and updates that were refused."),
    "seconds_total": ("kind", "Seconds from a message's head to its answer."),
    "received_bytes_total": ("kind", "Bytes of bodies received."),
    "sent_bytes_total": ("kind", "Bytes of bodies sent."),
}


class Metrics:
    """Counters of one service, each by one label."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._counts = {name: defaultdict[str, float](float) for name in COUNTERS}

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def count(self, name: str, label: str, amount: float = 1) -> None:
        if amount:
            self._counts[name][label] += amount

    def totals(self) -> dict[str, dict[str, float]]:
        """Returns every counter by its label."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def text(self, gauges: Mapping[str, Any], *, counters: bool = True) -> str:
        """Returns the gauges that are numbers, and the counters, as Prometheus reads them."""
        families = Families(_gauges({"uptime_seconds": self.uptime_s, **gauges}))
        for name, (label, about) in COUNTERS.items() if counters else ():
            families.append(counter := CounterMetricFamily(PREFIX + name, about, labels=[label]))
            for key, value in sorted(self._counts[name].items()):
                counter.add_metric([key], value)
        return generate_latest(families).decode()


class Refusals:
    """Counts every refusal, and logs one of each code in ten seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic):
        self._metrics, self._clock = metrics, clock
        self._logged: dict[str, float] = {}
        self._silent: Counter[str] = Counter()

    def note(self, refusal: RefusedError, peer: str) -> None:
        """Takes note of one; its message must not hold a key."""
        code, now = refusal.code, self._clock()
        self._metrics.count("refused_total", code)
        if now - self._logged.get(code, float("-inf")) < PERIOD_S:
            self._silent[code] += 1
            return
        self._logged[code] = now
        more = f" ({n} more since the last such line)" if (n := self._silent.pop(code, 0)) else ""
        LOG.warning("refused (%s) %s: %.300s%s", code, peer, refusal, more)


class Families(list[Metric], Collector):
    """What one request for /metrics is answered."""

    def collect(self) -> list[Metric]:
        return self


def _gauges(values: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the numbers: of a list its length, of a mapping each entry that is a number."""
    for name, value in values.items():
        about = f"The server's {name} now."
        if isinstance(value, int | float | list):
            number = len(value) if isinstance(value, list) else value
            yield GaugeMetricFamily(PREFIX + name, about, value=number)
        elif isinstance(value, Mapping):
            family = GaugeMetricFamily(PREFIX + name, about, labels=["key"])
            for key, entry in value.items():
                if isinstance(entry, int | float):
                    family.add_metric([str(key)], entry)
            if family.samples:
                yield family
