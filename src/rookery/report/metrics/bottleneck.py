"""What limits a run: whoever the others wait for.

Roles are told by what they do, not by their names: who plays is an actor, who drains or learns is
the learner. Who notes no waits waits whenever it does nothing. Where one process does everything
nobody can wait, and the longer part is the limit.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from rookery.event import Activity, Traced

NOTICEABLE = 0.05  # waits below this share of the time limit nothing

Shares = Mapping[str, float]  # activity → share of the interval, 0 to 1


class Limit(StrEnum):
    """Who a run waits for."""

    ACTORS = "actors"
    LEARNER = "learner"
    LIMITER = "limiter"
    EVALUATOR = "evaluator"
    NOBODY = "nobody"


class Bottleneck(NamedTuple):
    """Who limits a run, and for which share of the time it shows."""

    role: Limit
    share: float  # 0 to 1
    sign: str  # by what it shows: "the learner waits"

    @property
    def sentence(self) -> str:
        """Says it in one line."""
        percent = f"{100 * self.share:.0f} % of the time"
        if self.role is Limit.NOBODY:
            return f"balanced: {self.sign} {percent}"
        return f"limited by {self.role}: {self.sign} {percent}"


def bottleneck(totals: Mapping[str, Mapping[str, float]], seconds: float) -> Bottleneck:
    """Judges an interval by the seconds each process spent on each activity."""
    shares = [
        {activity: min(1.0, spent / seconds) for activity, spent in process.items()}
        for process in totals.values()
        if seconds > 0
    ]
    actors = [share for share in shares if _takes(share, Activity.PLAY)]
    learners = [share for share in shares if _takes(share, Activity.LEARN, Activity.DRAIN)]
    alone = any(_takes(share, Activity.LEARN, Activity.DRAIN) for share in actors)
    found = _phases(actors) if alone else _waits(actors, learners)
    judged = max((_takes(share, Activity.EVALUATE) for share in actors + learners), default=0.0)
    found.append((judged, Bottleneck(Limit.EVALUATOR, judged, "training waits for evaluations")))
    worst = max(found, key=lambda item: item[0])[1]
    if worst.share < NOTICEABLE:
        return Bottleneck(Limit.NOBODY, worst.share, "nobody waits for more than")
    return worst


def _phases(shares: Sequence[Shares]) -> list[tuple[float, Bottleneck]]:
    """For processes that do everything in turn."""
    plays = _mean(shares, Activity.PLAY, Activity.WRITE)
    learns = _mean(shares, Activity.LEARN, Activity.DRAIN, Activity.PUBLISH)
    return [
        (plays, Bottleneck(Limit.ACTORS, plays, "playing takes")),
        (learns, Bottleneck(Limit.LEARNER, learns, "learning takes")),
    ]


def _waits(actors: Sequence[Shares], learners: Sequence[Shares]) -> list[tuple[float, Bottleneck]]:
    """Gives the limiter what both sides must have waited at once, each side the rest."""
    learner, actor = _mean_wait(learners), _mean_wait(actors)
    both = max(0.0, learner + actor - 1.0)
    return [
        (learner - both, Bottleneck(Limit.ACTORS, learner, "the learner waits")),
        (actor - both, Bottleneck(Limit.LEARNER, actor, "the actors wait")),
        (both, Bottleneck(Limit.LIMITER, both, "actors and learner wait at once")),
    ]


def _takes(shares: Shares, *activities: Activity) -> float:
    return sum(shares.get(str(activity), 0.0) for activity in activities)


def _mean(shares: Sequence[Shares], *activities: Activity) -> float:
    return fmean(_takes(share, *activities) for share in shares) if shares else 0.0


def _mean_wait(shares: Sequence[Shares]) -> float:
    return fmean(_wait(share) for share in shares) if shares else 0.0


def _wait(shares: Shares) -> float:
    return _takes(shares, Activity.WAIT) or max(0.0, 1.0 - sum(shares.values()))


ENOUGH_S = 2.0  # of a process's time before it is judged: traces arrive about once a second

TOGETHER, JUDGE = "together", "evaluator"


class ActivityLedger:
    """Takes in traces of a learner, its actors and an evaluator.

    `alone` says that learner and actors share one process.
    """

    def __init__(self, *, actors: int, alone: bool):
        self._everybody, self._alone = actors + 1, alone
        self._totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._seconds: dict[str, float] = defaultdict(float)
        self.verdict = ""  # a sentence, once there is enough to judge by

    def add(self, traced: Traced) -> None:
        """Takes one process's trace into account."""
        for activity, seconds in traced.totals.items():
            self._totals[traced.process][activity] += seconds
        self._seconds[traced.process] += traced.ended - traced.began
        heard = [seconds >= ENOUGH_S for name, seconds in self._seconds.items() if name != JUDGE]
        if len(heard) == self._everybody and all(heard):
            self._judge()

    def _judge(self) -> None:
        self.verdict = bottleneck(self._shares(), 1.0).sentence
        self._totals.clear()
        self._seconds.clear()

    def _shares(self) -> Mapping[str, Mapping[str, float]]:
        """Everybody's time as shares of its own; a process's roles are put together."""
        shares: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for process, totals in self._totals.items():
            name = TOGETHER if self._alone and process != JUDGE else process
            for activity, seconds in totals.items():
                shares[name][activity] += seconds / self._seconds[process]
        return shares
