"""Counts of a service, for JSON and for Prometheus; needs the extra `server`."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from rookery.server.http.extra import missing

try:
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing(error) from error

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "rookery_server_"
# name → its label, its help
COUNTERS = {
    "messages_total": ("kind", "Messages that were let in."),
    "refused_total": ("code", "Messages and updates that were refused."),
    "seconds_total": ("kind", "Seconds from a message's head to its answer."),
    "received_bytes_total": ("kind", "Bytes of bodies received."),
    "sent_bytes_total": ("kind", "Bytes of bodies sent."),
}


class Metrics(Collector):
    """Counters, each by one label, in a registry of their own. Any thread may count."""

    def __init__(self) -> None:
        self._lock, self._begun = threading.Lock(), time.monotonic()
        self._counts: dict[str, dict[str, float]] = {name: defaultdict(float) for name in COUNTERS}

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._begun

    def count(self, name: str, label: str, amount: float = 1) -> None:
        if not amount:
            return
        with self._lock:
            self._counts[name][label] += amount

    def totals(self) -> dict[str, dict[str, float]]:
        """Returns every counter by its label."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._counts.items()}

    def collect(self) -> Iterator[Metric]:
        """Yields the counters."""
        totals = self.totals()
        for name, (label, about) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, about, labels=[label])
            for key, value in sorted(totals[name].items()):
                family.add_metric([key], value)
            yield family

    def text(self, gauges: Mapping[str, Any]) -> str:
        """Returns everything for Prometheus; of the gauges, those that are numbers."""
        return _text(self, Gauges({"uptime_seconds": self.uptime_s, **gauges}))

    def gauges(self, gauges: Mapping[str, Any]) -> str:
        """Returns the gauges that are numbers for Prometheus, and no counter."""
        return _text(Gauges({"uptime_seconds": self.uptime_s, **gauges}))


class Gauges(Collector):
    """Numbers as they are now: of a list its length, of a mapping each entry that is a number."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, value in self._values.items():
            about = f"The server's {name} now."
            if isinstance(value, Mapping):
                entries = {str(k): v for k, v in value.items() if isinstance(v, int | float)}
                family = GaugeMetricFamily(PREFIX + name, about, labels=["key"])
                for key, entry in entries.items():
                    family.add_metric([key], entry)
                if entries:
                    yield family
            elif isinstance(value, int | float | list):
                number = len(value) if isinstance(value, list) else value
                yield GaugeMetricFamily(PREFIX + name, about, value=number)


def _text(*collectors: Collector) -> str:
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode()


def plain(value: Any) -> Any:
    """Returns what JSON can say of a value: numpy's numbers as numbers, nan and inf as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
