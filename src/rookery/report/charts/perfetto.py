"""A timeline as trace events, the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each process of the run is a process of the trace with one thread. Spans are complete events (X),
names are metadata (M), and rows, batches and versions per second are counters (C), one value for
each mark. Times are microseconds.
"""

import json
from collections.abc import Iterator
from typing import Any

from rookery.event import Traced
from rookery.report.charts.timeline_lanes import LOOKS, History, Lane

THREAD = 1


def lines(history: History, began: float, ended: float) -> Iterator[str]:
    """Yields the file's lines: one event on each, so that a long run need not fit into memory."""
    yield '{"displayTimeUnit":"ms","traceEvents":['
    first = True
    for event in events(history, began, ended):
        yield ("" if first else ",") + json.dumps(event, separators=(",", ":"))
        first = False
    yield "]}"


def events(history: History, began: float, ended: float) -> Iterator[dict[str, Any]]:
    """Yields the trace events that overlap the time between two moments."""
    for pid, lane in enumerate(history.lanes, start=1):
        yield from _names(pid, lane)
        for span in lane.spans:
            if span.began < ended and span.ended > began:
                took = _micros(max(0.0, span.ended - span.began))
                event = _event("X", str(span.activity), pid, span.began)
                yield event | {"cat": "rookery", "dur": took}
        for mark in lane.marks:
            if mark.began < ended and mark.ended > began:
                yield from _counters(pid, mark)


def _names(pid: int, lane: Lane) -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", pid, 0.0) | {"args": {"name": lane.process}}
    yield _event("M", "process_sort_index", pid, 0.0) | {"args": {"sort_index": pid}}
    yield _event("M", "thread_name", pid, 0.0) | {"args": {"name": lane.process}}


def _counters(pid: int, mark: Traced) -> Iterator[dict[str, Any]]:
    took = mark.ended - mark.began
    for name, amount in mark.amounts.items():
        unit = LOOKS[name].unit if name in LOOKS else ""
        if unit and took > 0:
            counter = _event("C", f"{name}: {unit}/s", pid, mark.began)
            yield counter | {"args": {unit: round(amount / took, 3)}}


def _event(phase: str, name: str, pid: int, moment: float) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": pid, "tid": THREAD, "ts": _micros(moment)}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)
