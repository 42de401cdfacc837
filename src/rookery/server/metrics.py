"""Counts of a service, and their text for Prometheus (its exposition format, version 0.0.4)."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "rookery_server_"
# name → its label, its help
COUNTERS = {
    "messages_total": ("kind", "Messages that were let in."),
    "refused_total": ("code", "Messages and updates that were refused."),
    "seconds_total": ("kind", "Seconds from a message's head to its answer."),
    "received_bytes_total": ("kind", "Bytes of bodies received."),
    "sent_bytes_total": ("kind", "Bytes of bodies sent."),
}


class Metrics:
    """Counters, each by one label. Any thread may count."""

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

    def text(self, gauges: Mapping[str, Any]) -> str:
        """Returns everything for Prometheus; of the gauges, those that are numbers."""
        gauges = {"uptime_seconds": self.uptime_s, **gauges}
        lines = [*self._counter_lines(), *_gauge_lines(gauges)]
        return "\n".join(lines) + "\n"

    def _counter_lines(self) -> Iterator[str]:
        totals = self.totals()
        for name, (label, about) in COUNTERS.items():
            yield f"# HELP {PREFIX}{name} {about}"
            yield f"# TYPE {PREFIX}{name} counter"
            for key, value in sorted(totals[name].items()):
                yield f'{PREFIX}{name}{{{label}="{_escaped(key)}"}} {value:.10g}'


def _gauge_lines(gauges: Mapping[str, Any]) -> Iterator[str]:
    for name, value in gauges.items():
        if samples := list(_samples(value)):
            yield f"# TYPE {PREFIX}{name} gauge"
            for label, number in samples:
                yield f"{PREFIX}{name}{label} {float(number):.10g}"


def _samples(value: Any) -> Iterator[tuple[str, float]]:
    """Yields labels and numbers: of a list its length, of a mapping each entry that is a number."""
    if isinstance(value, int | float):
        yield "", value
    elif isinstance(value, list):
        yield "", len(value)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if isinstance(entry, int | float):
                yield f'{{key="{_escaped(str(key))}"}}', entry


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


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
