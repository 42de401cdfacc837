"""The envoy: a run on a cluster, in the pools of all its hosts. To a loop it is a `Member`.

Each station is a member of the pool on its own host, lends its shard there, and borrows rows for
the learner (`station.Borrow`). What from whom, the envoy says: it hears from every station what
there is, applies the run's strategy to all of it at once, and asks each for its part.

Rows are asked for ahead, so that nobody waits for the network. A station that is silent or lost is
left out meanwhile, as the depot does; what is missing then is own rows, and counted.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rookery.config.schema import Strategy
from rookery.loops.berth import Berth
from rookery.loops.fleet import Fleet
from rookery.loops.station import Borrow, Borrowed
from rookery.replay.batches import joined, picked
from rookery.sharing.appetite import Fare, Planned, Told
from rookery.sharing.blend import Blend, Counts
from rookery.sharing.member import Lent
from rookery.types import Array, Batch, Floats, Rows

PACK = 8  # batches' worth of rows asked for in one message
LOOK_S = 1.0  # between two questions to a station, at most, while anybody draws
NOTHING = Fare(np.zeros(0), 1.0, 0.0)


class Stock:
    """Borrowed rows that are here already. Each is handed out once, in any order."""

    def __init__(self) -> None:
        self._lots: deque[tuple[Lent, Rows]] = deque()  # and which rows of it are left
        self.size = 0

    def put(self, lent: Lent, rng: np.random.Generator) -> None:
        """Shuffles: stacks of frames come one lender after another."""
        self._lots.append((lent, rng.permutation(lent.foreign.size)))
        self.size += lent.foreign.size

    def take(self, rows: int) -> list[Lent]:
        """Takes so many, or all there are."""
        taken = []
        while rows > 0 and self._lots:
            lent, left = self._lots.popleft()
            some, rest = left[:rows], left[rows:]
            taken.append(Lent(picked(lent.batch, some), lent.foreign[some]))
            if rest.size:
                self._lots.appendleft((lent, rest))
            rows -= some.size
            self.size -= some.size
        return taken


@dataclass
class Till:
    """What the pool of one station's host has for us."""

    berth: Berth
    own: str = ""  # the station's own buffer; none: it has not said anything yet
    filled: dict[str, int] = field(default_factory=dict)  # rows of each buffer it reads
    refused: tuple[str, ...] = ()  # those it does not
    weights: dict[str, float] = field(default_factory=dict)  # its part of what is borrowed
    stock: Stock = field(default_factory=Stock)
    fresh: bool = True  # is there something that was not weighed yet?
    asked: float = -math.inf  # when
    dry: float = -math.inf  # until when it is left alone: it had not what it was asked for

    def hear(self, rng: np.random.Generator) -> None:
        """Takes what the station has sent."""
        heard, self.berth.borrowed = self.berth.borrowed, []
        for answer in heard:
            self._read(answer, rng)

    def _read(self, answer: Borrowed, rng: np.random.Generator) -> None:
        self.fresh = True
        self.own, self.filled, self.refused = answer.own, answer.filled, answer.refused
        if answer.lent is not None:
            self.stock.put(answer.lent, rng)
        elif answer.asked:
            self.dry = time.monotonic() + LOOK_S

    @property
    def weight(self) -> float:
        """How much of what is borrowed comes from here, beside what the others weigh."""
        there = not self.berth.absent and time.monotonic() >= self.dry
        return sum(self.weights.values()) if there else 0.0

    def ask(self, need: float, newest: float) -> None:
        """Keeps `PACK` times the need of a batch here or on its way, and knows what is there."""
        coming = self.berth.lending
        if self.stock.size + (coming or 0) < PACK * need:
            self._send(Borrow(math.ceil(PACK * need), Told(self.weights, newest)))
        elif coming is None and time.monotonic() - self.asked >= LOOK_S:
            self._send(Borrow(0, Told({}, newest)))

    def _send(self, order: Borrow) -> None:
        self.asked = time.monotonic()
        self.berth.send(order)

    def take(self, rows: int, rng: np.random.Generator) -> list[Lent]:
        """Takes rows; waits for some that are on their way from a station that answers."""
        self.hear(rng)
        while self.stock.size < rows and self.berth.lending and not self.berth.absent:
            self.berth.wait()
            self.hear(rng)
        return self.stock.take(rows)


class Envoy(Blend):
    """Borrows through the stations of a fleet."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator):
        sharing = fleet.config.sharing
        self.fleet, self._rng = fleet, rng
        self._active = sharing.cross_sample_ratio > 0 and sharing.strategy != Strategy.LOCAL_ONLY
        self._ratio = sharing.cross_sample_ratio
        self._appetite = Planned(sharing.strategy, sharing.cross_sample_ratio, rng)
        self._fare = NOTHING
        self._tills: dict[int, Till] = {}  # by tag: whoever replaces a station begins anew
        self._local = self._foreign = self._short = 0

    def borrow(self, batch: int) -> Batch | None:
        if not self._active:
            self._local += batch
            return None
        self._hear()
        weights = np.array([till.weight for till in self._tills.values()])
        shares = weights / (weights.sum() or 1.0)
        self._ask(batch, shares)
        wanted = self._rounded((self._fare.share if weights.any() else self._ratio) * batch)
        lent = self._take(wanted, shares) if weights.any() else []
        foreign = sum(int(part.foreign.sum()) for part in lent)
        self._short += wanted - sum(part.foreign.size for part in lent)
        self._foreign += foreign
        self._local += batch - foreign
        return joined([part.batch for part in lent]) if lent else None

    def _rounded(self, rows: float) -> int:
        """The next lower or higher whole number, so that the mean is right."""
        return int(rows) + int(self._rng.random() < rows - int(rows))

    def _hear(self) -> None:
        berths = self.fleet.berths
        if self._tills.keys() != {berth.tag for berth in berths}:
            self._tills = {b.tag: self._tills.get(b.tag) or Till(b) for b in berths}
        for till in self._tills.values():
            till.hear(self._rng)
        if any(till.fresh for till in self._tills.values()):
            self._weigh()

    def _weigh(self) -> None:
        """Applies the strategy to what all hosts have; where several see a buffer, they share it.

        Stations see the same buffers where they are on the same host.
        """
        known = [till for till in self._tills.values() if till.own]
        own = {till.own: till.filled[till.own] for till in known}
        peers = {name: rows for till in known for name, rows in till.filled.items()}
        sizes = {**own, **{name: rows for name, rows in peers.items() if name not in own}}
        self._fare = self._appetite.weigh(
            len(own), list(sizes), np.array(list(sizes.values()), dtype=np.int64)
        )
        weight = dict(zip(sizes, self._fare.weights.tolist(), strict=True))
        seen = Counter(name for till in known for name in till.filled)
        for till in self._tills.values():
            till.fresh = False
        for till in known:
            till.weights = {name: weight[name] / seen[name] for name in till.filled}

    def _ask(self, batch: int, shares: Floats) -> None:
        for till, share in zip(self._tills.values(), shares.tolist(), strict=True):
            till.ask(self._fare.share * batch * share, self._fare.newest)

    def _take(self, rows: int, shares: Floats) -> list[Lent]:
        dealt: Sequence[int] = self._rng.multinomial(rows, shares).tolist()
        tills = zip(tuple(self._tills.values()), dealt, strict=True)
        return [lent for till, count in tills for lent in till.take(count, self._rng)]

    def observe(self, td_error: Array) -> None:
        if self._appetite.observe(td_error):
            self._weigh()

    def beat(self) -> None:
        """The stations do, where the rows are."""

    def counts(self) -> Counts:
        tills = self._tills.values()
        peers = {name for till in tills for name in till.filled} - {till.own for till in tills}
        refused = {name for till in tills for name in till.refused}
        return Counts(self._local, self._foreign, self._short, len(peers), len(refused))

    def close(self) -> None:
        """The stations leave the pools."""
