"""The ledger: adds up what every process did, and says from time to time what limits the run."""

from collections import defaultdict
from collections.abc import Mapping

from rookery.event import Traced
from rookery.report.bottleneck import bottleneck

ENOUGH_S = 2.0  # of a process's time before it is judged: traces arrive about once a second
TOGETHER, JUDGE = "together", "evaluator"


class Ledger:
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
