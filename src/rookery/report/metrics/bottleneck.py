"""What limits a run: the process that the others wait for.

Roles follow from what processes do, not from their names: one that plays is an actor, one that
drains or learns is the learner. A process that records no waits waits whenever it does nothing.
Where one process does everything there are no waits, and the longer part is the limit.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple, TypeAlias

from rookery.event import Activity, Traced

NOTICEABLE = 0.05  # waits below this share of the time limit nothing
ENOUGH_S = 2.0  # of a process's time before its share counts: traces arrive about once a second
TOGETHER, EVALUATOR = "together", "evaluator"  # names of processes

Shares: TypeAlias = Mapping[str, float]  # activity → share of the time, 0 to 1


class LimitedBy(StrEnum):
    """The part of a run that limits its speed."""

    ACTORS = "actors"
    LEARNER = "learner"
    LIMITER = "limiter"
    EVALUATOR = "evaluator"
    NONE = "none"


class Bottleneck(NamedTuple):
    """The part of a run that limits its speed, and the share of the time in which it shows."""

    role: LimitedBy
    share: float  # 0 to 1
    sign: str  # by what it shows: "the learner waits"

    @property
    def sentence(self) -> str:
        """The bottleneck as one line of text."""
        head = "balanced" if self.role is LimitedBy.NONE else f"limited by {self.role}"
        return f"{head}: {self.sign} {100 * self.share:.0f} % of the time"


def bottleneck(processes: Mapping[str, Shares]) -> Bottleneck:
    """Finds the bottleneck of a run from the shares of time of each process's activities."""
    actors = [one for one in processes.values() if _takes(one, Activity.PLAY)]
    learners = [one for one in processes.values() if _takes(one, Activity.LEARN, Activity.DRAIN)]
    alone = any(one in learners for one in actors)
    found = _phases(actors) if alone else _waits(actors, learners)
    waited = max((_takes(one, Activity.EVALUATE) for one in actors + learners), default=0.0)
    found.append(
        (waited, Bottleneck(LimitedBy.EVALUATOR, waited, "training waits for evaluations"))
    )
    worst = max(found, key=lambda item: item[0])[1]
    if worst.share < NOTICEABLE:
        return Bottleneck(LimitedBy.NONE, worst.share, "no process waits for more than")
    return worst


def _phases(processes: Sequence[Shares]) -> list[tuple[float, Bottleneck]]:
    """Returns candidates for processes that play and learn in turn, with their weights."""
    plays = fmean(_takes(one, Activity.PLAY, Activity.WRITE) for one in processes)
    learning = (Activity.LEARN, Activity.DRAIN, Activity.PUBLISH)
    learns = fmean(_takes(one, *learning) for one in processes)
    return [
        (plays, Bottleneck(LimitedBy.ACTORS, plays, "playing takes")),
        (learns, Bottleneck(LimitedBy.LEARNER, learns, "learning takes")),
    ]


def _waits(actors: Sequence[Shares], learners: Sequence[Shares]) -> list[tuple[float, Bottleneck]]:
    """Returns candidates for separate processes; the limiter's share is when both sides waited."""
    learner, actor = (fmean(map(_wait, side)) if side else 0.0 for side in (learners, actors))
    both = max(0.0, learner + actor - 1.0)
    return [
        (learner - both, Bottleneck(LimitedBy.ACTORS, learner, "the learner waits")),
        (actor - both, Bottleneck(LimitedBy.LEARNER, actor, "the actors wait")),
        (both, Bottleneck(LimitedBy.LIMITER, both, "actors and learner wait at once")),
    ]


def _takes(shares: Shares, *activities: Activity) -> float:
    return min(1.0, sum(shares.get(activity, 0.0) for activity in activities))


def _wait(shares: Shares) -> float:
    return _takes(shares, Activity.WAIT) or max(0.0, 1.0 - sum(shares.values()))


class ActivityLedger:
    """Finds a run's bottleneck from traces of a learner, its actors and an evaluator.

    `alone` says that learner and actors share one process.
    """

    def __init__(self, *, actors: int, alone: bool):
        self._training, self._alone = actors + 1, alone
        self._totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._seconds: dict[str, float] = defaultdict(float)
        self.verdict = ""  # a sentence, once there are enough traces

    def add(self, traced: Traced) -> None:
        """Adds the trace of one process."""
        for activity, seconds in traced.totals.items():
            self._totals[traced.process][activity] += seconds
        self._seconds[traced.process] += traced.ended - traced.began
        traces = [seconds for name, seconds in self._seconds.items() if name != EVALUATOR]
        if len(traces) == self._training and min(traces) >= ENOUGH_S:
            self.verdict = bottleneck(self._shares()).sentence
            self._totals.clear()
            self._seconds.clear()

    def _shares(self) -> Mapping[str, Shares]:
        """Returns the shares of time of each process; actors and learner of one process as one."""
        shares: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for process, totals in self._totals.items():
            name = TOGETHER if self._alone and process != EVALUATOR else process
            for activity, seconds in totals.items():
                shares[name][activity] += seconds / self._seconds[process]
        return shares
