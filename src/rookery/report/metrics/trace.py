"""Activities of a process over time, recorded by the process itself.

trace = Trace("actor-0")
began = time.monotonic()
rows = play()
trace.note(Activity.PLAY, began, time.monotonic(), rows)    # under a microsecond
...
event = trace.take(counters)                                # at a mark; begins anew
"""

import time
from collections.abc import Callable

from rookery.event import Activity, Counters, Span, Traced

JOIN_S = 100e-6  # a gap too short to be seen


class Trace:
    """Collects spans between two calls of `take`, for one thread; spans are noted as they end."""

    def __init__(
        self, process: str, room: int = 2_000, *, now: Callable[[], float] = time.monotonic
    ):
        self.process, self._room, self._now = process, room, now
        self._began = now()
        self._clear()

    def _clear(self) -> None:
        self._spans: list[tuple[Activity, float, float]] = []
        self._sums = {activity: [0.0, 0.0] for activity in Activity}  # seconds, amount
        self._last: Activity | None = None  # of the newest span that was kept
        self._dropped = 0

    def note(self, activity: Activity, began: float, ended: float, amount: float = 0.0) -> None:
        """Adds a span, or extends the previous span if the same activity continues.

        `amount` counts what was handled: rows played, written or drained, batches learned,
        versions published. Sums stay exact when there is no room for more spans.
        """
        sums = self._sums[activity]
        sums[0] += ended - began
        sums[1] += amount
        spans = self._spans
        if activity is self._last and began - spans[-1][2] < JOIN_S:
            spans[-1] = (activity, spans[-1][1], ended)
        elif len(spans) < self._room:
            spans.append((activity, began, ended))
            self._last = activity
        else:
            self._last = None  # what follows does not touch the span that was kept last
            self._dropped += 1

    @property
    def age_s(self) -> float:
        """Seconds since the last call of `take`."""
        return self._now() - self._began

    def take(self, counters: Counters) -> Traced:
        """Returns the spans and sums since the last call as a `Traced` event, and starts again."""
        began, self._began = self._began, self._now()
        event = Traced(
            counters=counters,
            process=self.process,
            began=began,
            ended=self._began,
            spans=tuple(map(Span._make, self._spans)),
            totals=self._column(0),
            amounts=self._column(1),
            dropped=self._dropped,
        )
        self._clear()
        return event

    def _column(self, at: int) -> dict[str, float]:
        return {str(name): float(sums[at]) for name, sums in self._sums.items() if sums[at]}
