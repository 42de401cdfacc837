"""What the console knows of a run: events in, the newest facts out."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rookery.config import Config
from rookery.event import Counters, Evaluated, Event, Logged, Saved, Started, Stopped, Warned

RECENT = 30  # log marks the speed of progress is taken from


class View:
    """The newest facts. Read by a thread that draws while events arrive: each is set whole."""

    def __init__(self, config: Config, now: Callable[[], float], scores: Sequence[float] = ()):
        self.config, self._now = config, now
        self.counters, self.metrics = Counters(), dict[str, float]()
        self.scores, self.best = list(scores), max(scores, default=None)
        self.run_dir, self.about, self.resumed = "", dict[str, Any](), False
        self.faults, self.limit = 0, ""
        self.stopped: Stopped | None = None
        self._saved_at: float | None = None
        self._wall_s, self._seen_at = 0.0, now()
        self._marks: deque[tuple[float, float]] = deque(maxlen=RECENT)  # wall_s, progress
        self._take: dict[type, Callable[[Any], None]] = {
            Started: self._started,
            Logged: self._logged,
            Evaluated: self._evaluated,
            Saved: self._saved,
            Warned: self._warned,
            Stopped: self._stopped,
        }

    def observe(self, event: Event) -> None:
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    @property
    def wall_s(self) -> float:
        """Seconds the run has taken; goes on between events and stands still after the last."""
        return self._wall_s + (0.0 if self.stopped else self._now() - self._seen_at)

    @property
    def checkpoint_age_s(self) -> float | None:
        return None if self._saved_at is None else self._now() - self._saved_at

    @property
    def progress(self) -> float:
        """The share done, 0 to 1, by whichever limit of the run comes first."""
        return self._share(self.counters, self.wall_s)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the speed of the latest marks; a target may end a run before."""
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

    def _started(self, event: Started) -> None:
        self.counters, self.about = event.counters, dict(event.about)
        self.run_dir, self.resumed = event.run_dir, event.resumed

    def _logged(self, event: Logged) -> None:
        self.counters, self.metrics = event.counters, event.metrics
        self.limit = event.limit or self.limit
        self._set_clock(event.wall_s)
        self._marks.append((event.wall_s, self._share(event.counters, event.wall_s)))

    def _evaluated(self, event: Evaluated) -> None:
        self.scores.append(event.score)
        self.best = max(self.scores)

    def _saved(self, event: Saved) -> None:
        self._saved_at = self._now()

    def _warned(self, event: Warned) -> None:
        self.faults += 1

    def _stopped(self, event: Stopped) -> None:
        self.counters = event.counters
        self._set_clock(event.wall_s)
        self.stopped = event

    def _set_clock(self, wall_s: float) -> None:
        self._wall_s, self._seen_at = wall_s, self._now()
