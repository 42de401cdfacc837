"""Timeline of a run for charts: one lane for each process, on one clock.

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


class ActivityLook(NamedTuple):
    """Colour of an activity in charts, and the unit of its amounts."""

    colour: str
    unit: str = ""  # of what its amounts count; waiting handles nothing


LOOKS: dict[str, ActivityLook] = {
    Activity.PLAY: ActivityLook("#009e73", "rows"),
    Activity.WRITE: ActivityLook("#56b4e9", "rows"),
    Activity.DRAIN: ActivityLook("#0072b2", "rows"),
    Activity.LEARN: ActivityLook("#e69f00", "batches"),
    Activity.PUBLISH: ActivityLook("#d55e00", "versions"),
    Activity.EVALUATE: ActivityLook("#cc79a7", "evaluations"),
    Activity.SAVE: ActivityLook("#777777", "checkpoints"),
    Activity.WAIT: ActivityLook("#dcdcdc"),
}  # all but the greys from Okabe and Ito: most colour-blind readers can distinguish them


class Lane(NamedTuple):
    """Activities of one process: its `Traced` events (marks) in order."""

    process: str
    marks: list[Traced]

    @property
    def spans(self) -> Iterator[Span]:
        """All recorded spans, in order."""
        return (span for mark in self.marks for span in mark.spans)

    @property
    def seconds(self) -> float:
        """Seconds that were traced."""
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
        """Activity → amount per second, in the units of LOOKS."""
        return self._per_second("amounts")

    def _per_second(self, what: str) -> dict[str, float]:
        sums: dict[str, float] = reduce(added, [getattr(mark, what) for mark in self.marks], {})
        seconds = self.seconds
        return {name: value / seconds for name, value in sums.items()} if seconds > 0 else {}

    def does(self, *activities: Activity) -> bool:
        """Returns whether the process spent time on one of these activities."""
        return any(str(activity) in mark.totals for mark in self.marks for activity in activities)


class History(NamedTuple):
    """Timeline of a whole run: the lanes of its processes."""

    lanes: list[Lane]  # actors, learner, evaluator
    sessions: list[float]  # when each began
    seconds: float

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Process → activity → share of the time."""
        return {lane.process: lane.shares for lane in self.lanes}


def load(run_dir: Path) -> History:
    """Reads the timeline of a run folder; without traces it has no lanes."""
    lanes: dict[str, Lane] = {}
    sessions, end = [], 0.0
    for marks in _sessions(run_dir):
        first = _first(marks)
        moved = [_moved(mark, first, end) for mark in marks]
        sessions.append(end)
        for mark in moved:
            lanes.setdefault(mark.process, Lane(mark.process, [])).marks.append(mark)
        end = max(mark.ended for mark in moved)
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
    """Returns the time at which the first activity other than waiting began."""
    busy = [
        span.began for mark in marks for span in mark.spans if span.activity is not Activity.WAIT
    ]
    unknown = [mark.began for mark in marks if mark.dropped and not mark.spans]
    return min(busy + unknown, default=min(mark.began for mark in marks))


def _moved(mark: Traced, first: float, start: float) -> Traced:
    """Puts a mark on the run's clock, on which its session begins at `start`.

    Leaves out what the process waited before the session's first span.
    """
    shift = start - first
    early = sum(min(ended, first) - began for _, began, ended in mark.spans if began < first)
    waited = mark.totals.get(str(Activity.WAIT), 0.0)
    totals = mark.totals | {str(Activity.WAIT): max(0.0, waited - early)}
    return replace(
        mark,
        began=max(mark.began, first) + shift,
        ended=max(mark.ended, first) + shift,
        spans=tuple(
            Span(activity, max(began, first) + shift, ended + shift)
            for activity, began, ended in mark.spans
            if ended > first
        ),
        totals={name: seconds for name, seconds in totals.items() if seconds},
    )


def _place(lane: Lane) -> tuple[int, list[str | int]]:
    """Orders lanes along the data path, then actor-2 before actor-10."""
    roles = (Activity.PLAY, Activity.LEARN, Activity.DRAIN, Activity.EVALUATE)
    role = next((i for i, activity in enumerate(roles) if lane.does(activity)), len(roles))
    parts = split(r"(\d+)", lane.process)  # text, number, text, ...: never compared across
    return role, [int(part) if i % 2 else part for i, part in enumerate(parts)]


def busiest(history: History, began: float, ended: float, length: float) -> tuple[float, float]:
    """Returns the window of a length, between two moments, in which most processes are at work.

    Of several such windows, the one with most activities, then spans.
    """
    if ended - began <= length:
        return began, ended
    step = length / 3
    thirds: dict[int, Counter[tuple[str, Activity]]] = {}  # of windows: the spans that begin there
    for lane in history.lanes:
        for span in lane.spans:
            if began <= span.began < ended:
                third = thirds.setdefault(int((span.began - began) / step), Counter())
                third[lane.process, span.activity] += 1

    def worth(start: int) -> tuple[int, int, int, int]:
        seen = sum((thirds.get(start + i, Counter()) for i in range(3)), Counter())
        return len({process for process, _ in seen}), len(seen), seen.total(), -start

    first = min(began + max(thirds, key=worth, default=0) * step, ended - length)
    return first, first + length
