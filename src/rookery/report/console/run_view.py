"""State of a run as the console shows it, updated by the run's events."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rookery.config import Config
from rookery.event import Counters, Evaluated, Event, Logged, Saved, Started, Stopped, Warned

RECENT = 30  # log marks the speed of progress is taken from


class View:
    """Newest values of a run; a thread may read them while events are observed."""

    def __init__(self, config: Config, now: Callable[[], float], scores: Sequence[float] = ()):
        self.config, self._now = config, now
        self.counters, self.metrics = Counters(), dict[str, float]()
        self.scores, self.best = list(scores), max(scores, default=None)
        self.run_dir, self.about = "", dict[str, Any]()
        self.faults, self.limit = 0, ""
        self.stopped: Stopped | None = None
        self._saved_at: float | None = None
        self._wall_s, self._seen_at = 0.0, now()
        self._marks: deque[tuple[float, float]] = deque(maxlen=RECENT)  # wall_s, progress

    def observe(self, event: Event) -> None:
        if isinstance(event, Started):
            self.counters, self.run_dir, self.about = event.counters, event.run_dir, event.about
        elif isinstance(event, Logged):
            self.counters, self.metrics = event.counters, event.metrics
            self.limit = event.limit or self.limit
            self._wall_s, self._seen_at = event.wall_s, self._now()
            self._marks.append((event.wall_s, self._share(event.counters, event.wall_s)))
        elif isinstance(event, Evaluated):
            self.scores.append(event.score)
            self.best = max(self.scores)
        elif isinstance(event, Saved):
            self._saved_at = self._now()
        elif isinstance(event, Warned):
            self.faults += 1
        elif isinstance(event, Stopped):
            self.counters, self._wall_s, self.stopped = event.counters, event.wall_s, event

    @property
    def wall_s(self) -> float:
        """Seconds since the run began; they continue between events and stop with the last."""
        return self._wall_s + (0.0 if self.stopped else self._now() - self._seen_at)

    @property
    def checkpoint_age_s(self) -> float | None:
        return None if self._saved_at is None else self._now() - self._saved_at

    @property
    def figures(self) -> dict[str, float | None]:
        """The newest metrics, and what the console itself counts."""
        counted = {"episodes": self.counters.episodes, "faults": self.faults}
        return {**self.metrics, **counted, "checkpoint_age_s": self.checkpoint_age_s}

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1, by the limit that is reached first."""
        return self._share(self.counters, self.wall_s)

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds to the end, at the latest speed; a target may end the run earlier."""
        if len(self._marks) < 2:
            return None
        (then, before), (last, done) = self._marks[0], self._marks[-1]
        if done <= before:
            return None
        since = self.wall_s - last
        return max(0.0, (1 - done) * (last - then) / (done - before) - since)

    def _share(self, counters: Counters, wall_s: float) -> float:
        run = self.config.run
        shares = [counters.env_steps / run.env_steps]
        if run.episodes is not None:
            shares.append(counters.episodes / run.episodes)
        if run.minutes is not None:
            shares.append(wall_s / (60 * run.minutes))
        return min(1.0, max(shares))
