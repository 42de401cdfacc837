"""A berth: a station as the learner sees it. Whoever lies in it may be replaced.

Orders go out, answers come in their order, and nobody waits here: `hear` takes in what has come.
A station that is silent for `cluster.absent_s` counts as absent: it is not drawn from, and batches
that wait for it are made up by others. When it answers again it is back. In sync mode everybody is
waited for.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rookery.engines.interface import Failed
from rookery.engines.remote import Host
from rookery.event import Traced
from rookery.loops.player import Report
from rookery.loops.station import (
    Adopt,
    Borrow,
    Borrowed,
    Brought,
    Cut,
    Deal,
    Facts,
    Look,
    Looked,
    Play,
    Pull,
    Rerank,
    Restore,
    Save,
    Seat,
    Tend,
    Unsaved,
)
from rookery.replay.kept import Extent
from rookery.replay.pool import Drained, Found
from rookery.types import Array, Floats, Rows

NOTHING = Facts(0.0, Extent(0, 0), 0.0, 0)
SLOW = (Play, Cut, Deal, Save, Unsaved, Restore, Adopt, Seat)  # orders that may take any time


@dataclass
class Berth:
    """One station's place: its actors' numbers stay, whoever plays them. Also a `Shard`."""

    place: int
    actors: tuple[int, ...]
    incarnations: tuple[int, ...]  # of the actors
    tag: int
    wait: Callable[[], None]  # lets time pass until something may have come
    absent_s: float
    patient: bool  # is it waited for until it is lost?
    host: Host | None = None
    node: str | None = None  # where it was put
    cpus: float = 0.0  # that Ray counts for it
    shunned: str | None = None  # where the last one fell silent
    placed: float = 0.0  # when
    up: bool = False  # has this one answered?
    proven: bool = False  # has any brought something?
    facts: Facts = NOTHING
    acknowledged: Extent = NOTHING.extent  # its rows that the learner has been told of
    order: Any = None  # that somebody waits for
    reply: Any = None  # to it
    tending: bool = False
    tended: float = 0.0
    full: bool = False  # did it take in more than half of what it might?
    version: int = 0  # of the weights sent last
    strikes: int = 0
    next_try: float = 0.0
    empty_since: float = 0.0
    recalled: Any = None  # what the next station gets back of the shard
    failed: Failed | None = None
    brought: list[Brought] = field(default_factory=list)
    unread: list[Brought] = field(default_factory=list)  # reports and complaints
    drained: list[Brought] = field(default_factory=list)  # by the last `drain`
    borrowed: list[Borrowed] = field(default_factory=list)  # that nobody has taken yet
    heard: int = 0  # env steps that it has told of, ever
    _made: int | None = None  # room that the learner had ever made, at the last round
    _allowance: int = 0  # what is left of the last round's
    _questions: list[tuple[Floats, float]] = field(default_factory=list)  # not sent yet
    _asked: int = 0  # questions so far
    _open: deque[int] = field(default_factory=deque)  # those without an answer, in order
    _answers: dict[int, Found] = field(default_factory=dict)
    _waived: set[int] = field(default_factory=set)  # nobody waits for them any more
    _expected: deque[Any] = field(default_factory=deque)  # orders, oldest first

    # As a shard.

    @property
    def spread(self) -> float:
        return 0.0 if self._passed_over else self.facts.spread

    @property
    def absent(self) -> bool:
        """Is there nobody, or somebody who does not answer?"""
        return self.host is None or not self.up or self.host.silence_s > self.absent_s

    @property
    def _passed_over(self) -> bool:
        """Do others make up for it? In sync it is waited for: a run is a function of its seed."""
        return (self.host is None or not self.up) if self.patient else self.absent

    def drain(self) -> Drained:
        """Returns what was brought since the last call."""
        self.drained, self.brought = self.brought, []
        parts = [brought.drained for brought in self.drained]
        return Drained(-1, sum(part.count for part in parts), sum(part.steps for part in parts))

    @property
    def observed(self) -> list[tuple[dict[str, Array], Array]]:
        """Of the rows drained last, where statistics are kept."""
        return [brought.observed for brought in self.drained if brought.observed is not None]

    def ask(self, places: Floats, spread: float) -> int:
        self._questions.append((places, spread))
        self._asked += 1
        self._open.append(self._asked)
        return self._asked

    def post(self) -> None:
        """Sends the questions that were asked, in one order."""
        if self._questions:
            self.send(Look(tuple(self._questions)))
            self._questions = []

    def answer(self, question: int) -> Found | None:
        """Waits for an answer; None where the station is absent or was lost since."""
        self.post()
        while question not in self._answers:
            if self._passed_over or question not in self._open:
                self._waived.add(question)
                return None
            self.wait()
        return self._answers.pop(question)

    def rerank(self, rows: Rows, td_error: Array) -> None:
        if not self._passed_over:
            self.send(Rerank(rows, td_error))

    # As a station.

    def send(self, order: Any, parcel: Any = None) -> None:
        if self.host is not None:
            self._expected.append(order)
            self.host.send(order, parcel)

    @property
    def where(self) -> str:
        address = self.host.address if self.host is not None else None
        return f"station {self.place}" + (f" on {address}" if address else "")

    @property
    def owes(self) -> bool:
        return bool(self._expected)

    @property
    def pulling(self) -> bool:
        return any(isinstance(order, Pull) for order in self._expected)

    @property
    def lending(self) -> int | None:
        """How many rows of its host's pool are on their way; None where it was not asked."""
        asked = [order.rows for order in self._expected if isinstance(order, Borrow)]
        return sum(asked) if asked else None

    @property
    def slow(self) -> bool:
        """Was it told to do something that may take long?"""
        return any(isinstance(order, SLOW) for order in self._expected)

    @property
    def silence_s(self) -> float:
        """How long it has not answered; in sync Ray alone says whether one that plays lives."""
        plays = any(isinstance(order, Play) for order in self._expected)
        return 0.0 if plays or self.host is None else self.host.silence_s

    @property
    def uncounted(self) -> int:
        """Env steps that it has told of and nobody has drained yet."""
        return sum(brought.drained.steps for brought in self.brought)

    def appetite(self, made: int) -> int:
        """Returns how much of all the room the learner ever made is new since the last round."""
        before, self._made = self._made, made
        return 0 if before is None else max(0, made - before)

    def hear(self) -> None:
        """Takes in what has come."""
        while self.host is not None and self.failed is None:
            message = self.host.receive(0.0)
            if message is None:
                return
            if isinstance(message, Failed):
                self.failed = message
                return
            self._take(self._expected.popleft(), message)

    def _take(self, order: Any, answer: Any) -> None:
        self.up = True
        facts = getattr(answer, "facts", None)
        self.facts = facts if facts is not None else self.facts
        if isinstance(answer, Looked):
            self._look(answer)
        elif isinstance(answer, Borrowed):
            self.borrowed.append(answer)
        elif isinstance(answer, Brought):
            self.incarnations, self.acknowledged = answer.incarnations, answer.facts.extent
            self.heard += answer.drained.steps
            self.brought.append(answer)
            self.unread.append(answer)
            if answer.drained.steps:  # before that nobody knows whether its actors can play
                self.strikes, self.proven = 0, True
        if isinstance(order, Tend):
            self.tending, taken = False, answer.drained.steps
            self.full = 2 * taken > self._allowance > 0
            self._allowance = order.allowance - taken
        if order is self.recalled:
            self.recalled = None  # it may be large
        if order is self.order:
            self.order, self.reply = None, answer

    def _look(self, looked: Looked) -> None:
        for found in looked.answers:
            question = self._open.popleft()
            if question in self._waived:
                self._waived.discard(question)
            else:
                self._answers[question] = found

    def empty(self, tag: int) -> None:
        """Nobody lies here any more: what was asked of it is not answered."""
        self._questions, self.failed = [], None
        for waited in (self._open, self._waived, self._answers, self._expected, self.borrowed):
            waited.clear()
        self.host, self.up, self.tending, self.version = None, False, False, 0
        self.facts, self.acknowledged, self.tag = NOTHING, NOTHING.extent, tag


def shifted(report: Report, by_s: float) -> Report:
    """Returns a report whose trace is in our clock: every host has its own."""
    traced = report.traced
    if traced is None:
        return report
    spans = tuple(
        span._replace(began=span.began + by_s, ended=span.ended + by_s) for span in traced.spans
    )
    moved: Traced = replace(
        traced, began=traced.began + by_s, ended=traced.ended + by_s, spans=spans
    )
    return report._replace(traced=moved)
