"""timeline.jsonl: what each process did when.

    {"event": "started", "env_steps": 0, "learner_steps": 0, "episodes": 0, "resumed": false}
    {"event": "traced", "env_steps": 512, "learner_steps": 90, "episodes": 7, "process": "actor-0",
     "began": 8123.25, "ended": 8124.25, "spans": [["play", 0, 1843], ["write", 1843, 71], ...],
     "totals": {"play": 0.9, ...}, "amounts": {"play": 512.0, ...}, "dropped": 0}

A span is an activity, the microseconds from the mark's `began` to its own beginning, and how many
it took. Clocks of two sessions have nothing in common; `started` stands between them.

The file stays below LIMIT bytes however long the run. Whenever it is full, `stride` doubles: spans
are kept in every second, then every fourth, ... window of WINDOW_S seconds, the same windows in
every process, and marks in between are added up into one. Totals and amounts stay exact.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

from rookery.event import Activity, Counters, Event, Span, Started, Traced
from rookery.report.trackers import jsonl
from rookery.report.trackers.whole_lines import Lines

NAME = "timeline.jsonl"
LIMIT = 10_000_000  # bytes
WINDOW_S = 4.0
MOST = 1 << 20  # windows; six weeks


class Timeline:
    """Writes the file; there is none before the first mark."""

    def __init__(self, run_dir: Path, limit: int = LIMIT):
        self._path, self._limit = run_dir / NAME, limit
        self._lines: Lines | None = None
        self._started: Started | None = None  # stands before the session's first mark
        self._stride = 1  # not kept: a reopened file finds its own again when it is full

    def write(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Traced):
            self._append(thinned(event, self._stride))

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _append(self, event: Traced) -> None:
        if self._lines is None:
            self._lines = Lines(self._path)
        if self._started is not None:
            self._lines.append(line(self._started))
            self._started = None
        self._lines.append(line(event))
        if self._lines.size > self._limit:
            self._thin(self._lines)

    def _thin(self, lines: Lines) -> None:
        """Rewrites the file with fewer spans, mark by mark: it need not fit into memory."""
        while lines.size > self._limit // 2 and self._stride < MOST:
            self._stride *= 2
            lines.replace(map(line, thin(read(self._path), self._stride)))


def line(event: Started | Traced) -> str:
    """Returns an event as one line of JSON."""
    entry = jsonl.record(event)
    if isinstance(event, Started):
        entry = {name: entry[name] for name in entry if name not in ("run_dir", "about")}
    else:
        began, ended = round(event.began, 6), round(event.ended, 6)
        spans = [
            [activity, round((start - began) * 1e6), round((end - start) * 1e6)]
            for activity, start, end in event.spans
        ]
        entry |= {"began": began, "ended": ended, "spans": spans}
    return json.dumps(entry, separators=(",", ":"))


def read(path: Path) -> Iterator[Started | Traced]:
    """Yields the events of the file, none if it is missing; unreadable lines are left out."""
    if not path.exists():
        return
    latest: dict[str, float] = {}  # process → end of its newest mark
    with path.open(encoding="utf-8", errors="replace") as file:
        for event in map(parse, file):
            if isinstance(event, Started):
                latest.clear()
                yield event
            elif event is not None and event.began >= latest.get(event.process, event.began):
                latest[event.process] = event.ended  # one that is earlier was written twice
                yield event


def parse(text: str) -> Started | Traced | None:
    """Returns the event of one line, or None if the line is not valid."""
    entry = jsonl.parse(text) or {}
    try:
        counters = Counters(*(int(entry[name]) for name in asdict(Counters())))
        if entry["event"] == "started":
            return Started("", counters, bool(entry["resumed"]), {})
        return _parse_traced(entry, counters) if entry["event"] == "traced" else None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _parse_traced(entry: dict[str, Any], counters: Counters) -> Traced:
    began = _finite(entry["began"])
    return Traced(
        counters=counters,
        process=str(entry["process"]),
        began=began,
        ended=_finite(entry["ended"]),
        spans=tuple(
            Span(Activity(name), began + int(at) * 1e-6, began + (int(at) + int(took)) * 1e-6)
            for name, at, took in entry["spans"]
        ),
        totals={str(name): _finite(value) for name, value in entry["totals"].items()},
        amounts={str(name): _finite(value) for name, value in entry["amounts"].items()},
        dropped=int(entry["dropped"]),
    )


def _finite(value: Any) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is no number")
    return float(value)


def thin(events: Iterable[Started | Traced], stride: int) -> Iterator[Started | Traced]:
    """Keeps the spans of every `stride`-th window, and joins the marks of `stride` windows."""
    growing: dict[str, Traced] = {}
    for event in events:
        if isinstance(event, Started):
            yield from growing.values()
            growing.clear()
            yield event
            continue
        before, fresh = growing.get(event.process), thinned(event, stride)
        if before is not None and _block(before, stride) == _block(fresh, stride):
            fresh = joined(before, fresh)
        elif before is not None:
            yield before
        growing[event.process] = fresh
    yield from growing.values()


def _block(event: Traced, stride: int) -> int:
    return int(event.began // (WINDOW_S * stride))


def thinned(event: Traced, stride: int) -> Traced:
    """Drops the spans that touch no window whose number is a multiple of `stride`."""
    kept = tuple(span for span in event.spans if _touches(span, stride))
    return replace(event, spans=kept, dropped=event.dropped + len(event.spans) - len(kept))


def _touches(span: Span, stride: int) -> bool:
    first = -int(-(span.began // WINDOW_S) // stride) * stride  # the next such window, or this one
    return first <= span.ended // WINDOW_S


def joined(one: Traced, two: Traced) -> Traced:
    """Returns one mark for two consecutive marks of a process."""
    return replace(
        two,
        began=one.began,
        spans=one.spans + two.spans,
        totals=added(one.totals, two.totals),
        amounts=added(one.amounts, two.amounts),
        dropped=one.dropped + two.dropped,
    )


def added(one: dict[str, float], two: dict[str, float]) -> dict[str, float]:
    """Adds up two sets of sums, name by name."""
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in one | two}
