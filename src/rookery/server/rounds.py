"""One secure sum in time: who is awaited in a stage, until when, and what becomes of it.

    round = Round(conduct, version=7, clock=time.monotonic)
    round.come(Kind.ADVERTISE, "alice", letter, session="", digest="...")     # a code
    round.view("alice", session="")                  # what alice is to do next
    round.tend(active=["alice", "bob", "carol"])     # None, or how it ended

| stage | ends before its deadline when | needs at its deadline |
|---|---|---|
| advertise | the quorum is there, or all that are active | `least` clients: they are the round |
| share | all of the round that are still active have shared | the threshold |
| mask | all who shared and are still active have sent their update | the threshold |
| unmask | the threshold has answered | the threshold |

Too few end the round: it is given up, and nothing of it is kept. The threshold is `stay` of those
with whom it began, rounded up, and more than half of them (`secrets` says why). A letter that comes
again is answered as the first one was; another one under its name is refused.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rookery.errors import ConfigError, RefusedError
from rookery.server import letters
from rookery.server.letters import Invitation, Letter
from rookery.server.masks import Grid
from rookery.server.protocol import STAGES, Kind
from rookery.server.secrets import Collector, refuse_keys
from rookery.server.sums import Advert, Terms

ROOM = 1000  # clients of one sum, at most
BOUND = 1e4  # of a number in an update: far above any change, and the grid is fine all the same
STAY = 2 / 3
TAKEN = frozenset({"ok", "duplicate"})  # codes of letters that count


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How rounds are held."""

    size: int  # P
    stay: float = STAY  # share of a round's clients that must stay to its end
    least: int = 2  # clients that begin a round
    quorum: int | None = None  # clients that begin it before the deadline; None: all active
    deadline_s: float = 30.0  # of each stage
    bound: float = BOUND

    def __post_init__(self) -> None:
        if not 0.5 < self.stay <= 1:
            raise ConfigError(
                "the share of clients that must stay in a secure round must be above 0.5 and up "
                f"to 1, got {self.stay:g}: of half of them, two halves could unmask a client "
                "together; two thirds is usual"
            )
        if self.least < 2 or (self.quorum is not None and self.quorum < self.least):
            raise ConfigError(
                f"a secure sum of {min(self.least, self.quorum or self.least)} clients was asked "
                "for, and a sum of one is that one's update; give a quorum of 2 or more"
            )
        Grid(self.bound, ROOM)

    def threshold(self, clients: int) -> int:
        """Returns how many of a round's clients must stay."""
        return max(clients // 2 + 1, math.ceil(self.stay * clients - 1e-9))


class Ended(NamedTuple):
    """How a round ended."""

    why: str  # "" where there is a sum
    session: str
    clients: tuple[str, ...] = ()  # whose updates are in the sum
    total: npt.NDArray[np.float64] | None = None  # [P]


class View(NamedTuple):
    """What a client sees of a round."""

    code: str  # what it is to send next; "wait"; or "absent": this round goes without it
    letter: Letter


WAIT, ABSENT = View("wait", {}), View("absent", {})


class Round:
    """A round, from its first letter to its sum. What it keeps of updates is their masked sum."""

    def __init__(self, conduct: Conduct, *, version: int, clock: Callable[[], float]):
        self.version, self.stage, self.session = version, Kind.ADVERTISE, ""
        self._conduct, self._clock, self._opened = conduct, clock, clock()
        self._adverts: dict[str, Advert] = {}
        self._collector: Collector | None = None
        self._came: dict[Kind, dict[str, str]] = {stage: {} for stage in STAGES}  # name → digest

    @property
    def clients(self) -> list[str]:
        """Who has come to the present stage."""
        return sorted(self._came[self.stage])

    @property
    def threshold(self) -> int:
        """How many must stay; 0 as long as nobody knows of how many."""
        return 0 if self._collector is None else self._collector.terms.threshold

    @property
    def overdue(self) -> bool:
        return self._clock() - self._opened >= self._conduct.deadline_s

    # Letters.

    def come(self, stage: Kind, worker: str, letter: Letter, *, session: str, digest: str) -> str:
        """Takes a letter; returns what became of it.

        | code | means |
        |---|---|
        | ok | it counts |
        | duplicate | it had come before, and counts once |
        | closed | the round is beyond this stage; wait for the next |
        | absent | the letter is of a round that is over |
        """
        if stage is not Kind.ADVERTISE and session != self.session:
            return "absent"
        known = self._came[stage].get(worker)
        if known == digest:
            return "duplicate"
        if STAGES.index(stage) < STAGES.index(self.stage):
            return "closed"
        if known is not None and stage is not Kind.ADVERTISE:
            raise RefusedError(
                f"{worker} has sent another letter for the stage {stage} of this sum; each client "
                "sends one, and the same one where its answer was lost",
                "twice",
            )
        if stage is Kind.ADVERTISE and worker not in self._adverts and self._full:
            return "closed"
        TAKE[stage](self, worker, letter)
        self._came[stage][worker] = digest
        return "ok"

    @property
    def _full(self) -> bool:
        return len(self._adverts) >= ROOM

    def _admit(self, worker: str, letter: Letter) -> None:
        """Until the round begins the latest keys count: a client may have been started anew."""
        advert = letters.advert(worker, letter)
        refuse_keys(advert)
        others = (other for name, other in self._adverts.items() if name != worker)
        if any({*other[1:]} & {*advert[1:]} for other in others):
            raise RefusedError(f"{worker} sent another client's keys; make keys anew", "key")
        self._adverts[worker] = advert

    def _post(self, worker: str, letter: Letter) -> None:
        self._sum.post(letters.posted(worker, letter))

    def _collect(self, worker: str, letter: Letter) -> None:
        self._sum.collect(letters.masked(worker, letter, self._conduct.size))

    def _answer(self, worker: str, letter: Letter) -> None:
        self._sum.answer(letters.answer(worker, letter))

    @property
    def _sum(self) -> Collector:
        if self._collector is None:
            raise RefusedError("this sum has not begun; advertise keys first", "early")
        return self._collector

    # What clients see.

    def view(self, worker: str, session: str) -> View:
        """Returns what a client is to do next."""
        if session not in ("", self.session) or worker not in self._came[Kind.ADVERTISE]:
            return ABSENT
        awaited = self._awaited()
        if self.stage is Kind.ADVERTISE or worker not in awaited or worker in self.clients:
            return WAIT
        return View(self.stage.value, SHOW[self.stage](self, worker))

    def _invitation(self, worker: str) -> Letter:
        return letters.of_invitation(Invitation(self._sum.terms, self._sum.roster()))

    def _parcels(self, worker: str) -> Letter:
        return letters.of_delivered(self._sum.deliver(worker))

    def _question(self, worker: str) -> Letter:
        return letters.of_question(self._sum.question())

    def _awaited(self) -> Collection[str]:
        """Returns those who may come to the present stage: who came to the one before."""
        at = STAGES.index(self.stage)
        return self._came[STAGES[at - 1]] if at else ()

    # Time.

    def tend(self, active: Collection[str]) -> Ended | None:
        """Ends stages that are complete or overdue; returns how the round ended, once it has.

        `active` are the clients that have not left.
        """
        while self._complete(active) or self.overdue:
            if len(self._present(active)) < self._needed():
                return Ended("quorum", self.session)
            if self.stage is Kind.UNMASK:
                return self._total()
            NEXT[self.stage](self, active)
            self._opened = self._clock()
        return None

    def _complete(self, active: Collection[str]) -> bool:
        came = len(self._present(active))
        if self.stage is Kind.ADVERTISE:
            awaited = len(active) if self._conduct.quorum is None else self._conduct.quorum
            return came >= max(self._conduct.least, awaited)
        if self.stage is Kind.UNMASK and came >= self._needed():
            return True
        return set(self._awaited()) & set(active) <= self._came[self.stage].keys()

    def _present(self, active: Collection[str]) -> list[str]:
        """Keys of who left are of no use; what it sent later counts."""
        came = self._came[self.stage]
        return [n for n in came if n in active] if self.stage is Kind.ADVERTISE else list(came)

    def _needed(self) -> int:
        return self._conduct.least if self._collector is None else self.threshold

    def _begin(self, active: Collection[str]) -> None:
        conduct, present = self._conduct, self._present(active)
        terms = Terms.fresh(
            size=conduct.size,
            bound=conduct.bound,
            clients=len(present),
            threshold=conduct.threshold(len(present)),
        )
        self._collector, self.session = Collector(terms), terms.session.hex()
        came = self._came[Kind.ADVERTISE]
        self._came[Kind.ADVERTISE] = {name: came[name] for name in present}
        for name in present:
            self._collector.admit(self._adverts[name])
        self._collector.roster()
        self.stage = Kind.SHARE

    def _deliver(self, active: Collection[str]) -> None:
        self._sum.deliver(next(iter(self._came[Kind.SHARE])))
        self.stage = Kind.MASK

    def _ask(self, active: Collection[str]) -> None:
        self._sum.question()
        self.stage = Kind.UNMASK

    def _total(self) -> Ended:
        survivors = tuple(sorted(self._came[Kind.MASK]))
        try:
            return Ended("", self.session, survivors, self._sum.total())
        except RefusedError as refusal:  # somebody did not do what it agreed to; nobody sees who
            return Ended(refusal.code, self.session)


TAKE: Mapping[Kind, Callable[[Round, str, Letter], None]] = {
    Kind.ADVERTISE: Round._admit,
    Kind.SHARE: Round._post,
    Kind.MASK: Round._collect,
    Kind.UNMASK: Round._answer,
}
SHOW: Mapping[Kind, Callable[[Round, str], Letter]] = {
    Kind.SHARE: Round._invitation,
    Kind.MASK: Round._parcels,
    Kind.UNMASK: Round._question,
}
NEXT: Mapping[Kind, Callable[[Round, Collection[str]], None]] = {
    Kind.ADVERTISE: Round._begin,
    Kind.SHARE: Round._deliver,
    Kind.MASK: Round._ask,
}
