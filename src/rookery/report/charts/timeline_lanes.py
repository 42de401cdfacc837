"""A run's timeline as it is drawn: one lane for each process, on one clock.

    history = load(run_dir)
    for lane in history.lanes: lane.process, lane.spans, lane.shares

Time is in seconds since the run's first span that is not waiting: processes that are up wait for
those that are not, and that is not yet the run. Sessions lie end to end: the hours between an
interrupt and `--resume` are not drawn.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from re import split
from typing import NamedTuple

from rookery.event import Activity, Span, Started, Traced
from rookery.report.trackers import timeline_file
from rookery.report.trackers.timeline_file import added

WINDOW_S = 3.0  # what fits on a screen and still shows single spans

UNITS = {
    Activity.PLAY: "rows",
    Activity.WRITE: "rows",
    Activity.DRAIN: "rows",
    Activity.LEARN: "batches",
    Activity.PUBLISH: "versions",
    Activity.EVALUATE: "evaluations",
    Activity.SAVE: "checkpoints",
}  # what amounts count; waiting handles nothing


class Lane(NamedTuple):
    """What one process did, mark by mark."""

    process: str
    marks: list[Traced]

    @property
    def spans(self) -> Iterator[Span]:
        """All that were kept, in order."""
        return (span for mark in self.marks for span in mark.spans)

    @property
    def seconds(self) -> float:
        """How long it was looked at."""
        return sum(mark.ended - mark.began for mark in self.marks)

    @property
    def dropped(self) -> int:
        return sum(mark.dropped for mark in self.marks)

    @property
    def shares(self) -> dict[str, float]:
        """Activity → share of the time, 0 to 1; dropped spans count too."""
        return self._per_second("totals")

    @property
    def rates(self) -> dict[str, float]:
        """Activity → what it handled in a second, see UNITS."""
        return self._per_second("amounts")

    def _per_second(self, what: str) -> dict[str, float]:
        sums: dict[str, float] = reduce(added, [getattr(mark, what) for mark in self.marks], {})
        seconds = self.seconds
        return {name: value / seconds for name, value in sums.items()} if seconds > 0 else {}

    def does(self, *activities: Activity) -> bool:
        """Did it spend any time on one of these?"""
        return any(str(activity) in mark.totals for mark in self.marks for activity in activities)


class History(NamedTuple):
    """A whole run."""

    lanes: list[Lane]  # actors, learner, evaluator
    sessions: list[float]  # when each began
    seconds: float

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Process → activity → share of the time."""
        return {lane.process: lane.shares for lane in self.lanes}


def load(run_dir: Path) -> History:
    """Reads a run's timeline; no lanes where nothing was traced."""
    lanes: dict[str, Lane] = {}
    sessions, end = [], 0.0
    for marks in _sessions(run_dir):
        first = _first(marks)
        shift = end - first
        sessions.append(end)
        for mark in marks:
            lane = lanes.setdefault(mark.process, Lane(mark.process, []))
            lane.marks.append(_shifted(_since(mark, first), shift))
        end = max(mark.ended for mark in marks) + shift
    return History(sorted(lanes.values(), key=_place), sessions, end)


def _sessions(run_dir: Path) -> list[list[Traced]]:
    found: list[list[Traced]] = [[]]
    for event in timeline_file.read(run_dir / timeline_file.NAME):
        if isinstance(event, Started):
            found.append([])
        else:
            found[-1].append(event)
    return [marks for marks in found if marks]


def _first(marks: list[Traced]) -> float:
    """Returns when somebody first did something else than wait."""
    busy = [moment for moment in map(_busy_since, marks) if moment is not None]
    return min(busy, default=min(mark.began for mark in marks))


def _busy_since(mark: Traced) -> float | None:
    if mark.dropped and not mark.spans:
        return mark.began  # it may have done anything
    return next((span.began for span in mark.spans if span.activity is not Activity.WAIT), None)


def _since(mark: Traced, first: float) -> Traced:
    """Leaves out what a process waited before the session's first span."""
    if mark.began >= first:
        return mark
    kept = tuple(span._replace(began=max(span.began, first)) for span in mark.spans)
    waited = sum(
        new.began - old.began if new.ended > first else old.ended - old.began
        for new, old in zip(kept, mark.spans, strict=True)
    )
    wait = str(Activity.WAIT)
    totals = mark.totals | {wait: max(0.0, mark.totals.get(wait, 0.0) - waited)}
    return replace(
        mark,
        began=first,
        ended=max(first, mark.ended),
        spans=tuple(span for span in kept if span.ended > first),
        totals={name: seconds for name, seconds in totals.items() if seconds},
    )


def _shifted(mark: Traced, shift: float) -> Traced:
    spans = tuple(Span(kind, began + shift, ended + shift) for kind, began, ended in mark.spans)
    return replace(mark, began=mark.began + shift, ended=mark.ended + shift, spans=spans)


def _place(lane: Lane) -> tuple[int, list[str | int]]:
    """Orders lanes along the data path, then actor-2 before actor-10."""
    roles = (Activity.PLAY, Activity.LEARN, Activity.DRAIN, Activity.EVALUATE)
    role = next((i for i, activity in enumerate(roles) if lane.does(activity)), len(roles))
    parts = split(r"(\d+)", lane.process)  # text, number, text, ...: never compared across
    return role, [int(part) if i % 2 else part for i, part in enumerate(parts)]


def busiest(history: History, began: float, ended: float, length: float) -> tuple[float, float]:
    """Chooses what to look at between two moments.

    The window with most processes at work; of those the one with most activities, then spans.
    """
    if ended - began <= length:
        return began, ended
    step = length / 3
    cells = _cells(history, began, ended, step)
    best = max(cells, key=lambda start: (*_worth(cells, start), -start), default=0)
    first = min(began + best * step, ended - length)
    return first, first + length


def _cells(
    history: History, began: float, ended: float, step: float
) -> dict[int, Counter[tuple[str, Activity]]]:
    """Counts spans by the third of a window they begin in."""
    cells: dict[int, Counter[tuple[str, Activity]]] = {}
    for lane in history.lanes:
        for span in lane.spans:
            if began <= span.began < ended:
                cell = cells.setdefault(int((span.began - began) / step), Counter())
                cell[lane.process, span.activity] += 1
    return cells


def _worth(cells: dict[int, Counter[tuple[str, Activity]]], start: int) -> tuple[int, int, int]:
    seen: Counter[tuple[str, Activity]] = Counter()
    for i in range(start, start + 3):
        seen.update(cells.get(i, {}))
    return len({process for process, _ in seen}), len(seen), seen.total()
