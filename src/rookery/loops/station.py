"""The station: a host's part of a run on a cluster. Its actors, and the shard they fill.

Actors live in processes of this host and write into its shared memory, as they do without a
cluster; the station drains them into its shard of replay, looks after them, and hands the learner
what it asks for. A `Host` of the ray engine keeps one (`engines/ray.py`), and the learner's side of
it is a `Berth` (`fleet.py`).

In sync mode it plays what it is told to. In async it roams: it drains and looks around all the
time, and is told now and then whether actors may go on (`Tend`).

Where the run shares, the shard is lent in the pool of this host, and the learner is lent rows of
whatever else is in that pool (`Borrow`). One that the learner has given up lends what it has until
it is ended: it takes in no more than it was last allowed, so the pool soon ignores it.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rookery.board import Board
from rookery.config.schema import ClusterConfig, Config, Engine
from rookery.loops.crew import Crew, Dealt
from rookery.loops.player import Report
from rookery.loops.progress import Standing
from rookery.loops.shard import build_shard
from rookery.replay.kept import Extent, Kept, Stretch
from rookery.replay.pool import Drained, Found, Pool
from rookery.replay.shards import seen
from rookery.sharing.appetite import Told
from rookery.sharing.member import Lent, Member
from rookery.types import Array, EnvSpec, Floats, Rows

NEWS_S = 0.02  # between two looks for the actors' messages
NAP_S = 0.002  # where nothing was there to drain


class Badge(NamedTuple):
    """Who a run is in the pool it shares with."""

    run_id: str
    family: str  # the stations of a run have the same, and do not borrow from each other


class Setup(NamedTuple):
    """What a station is built from."""

    config: Config
    spec: EnvSpec
    factory: Any  # the user's environment, where it was given from Python
    actors: tuple[int, ...]  # their numbers in the run
    incarnations: tuple[int, ...]
    shards: int  # that share the capacity
    version: int
    weights: dict[str, Array]
    place: int = 0  # of the station, among those of its run
    badge: Badge | None = None  # where the run shares
    progress: tuple[Standing, ...] = ()  # of its actors' environments


class Facts(NamedTuple):
    """What the learner must know of a shard."""

    spread: float
    extent: Extent
    fill: float
    stale: int  # rows that came too late to be drawn


# Orders, and their answers.


class Play(NamedTuple):
    """Play a chunk with every actor, and drain it."""

    env_steps: int
    episodes: int | None
    epsilons: tuple[float, ...]


class Roam(NamedTuple):
    """Have all actors play by themselves from now on."""


class Tend(NamedTuple):
    """Open or close the actors' gates, and say what happened since the last time.

    After about so many env steps the station closes the gates by itself: behind a learner that is
    busy, actors come to a halt. Those that the answer tells of are among them: the learner had not
    heard of them when it made its terms.
    """

    go: bool
    epsilons: tuple[float, ...]
    allowance: int


class Brought(NamedTuple):
    """The answer to `Play`, `Tend` and `Cut`: what has arrived in the shard since the last one."""

    reports: tuple[Report, ...]  # in sync: one for each actor, in their order
    drained: Drained
    version: int  # the newest that rows were played with; 0 without rows
    observed: tuple[dict[str, Array], Array] | None  # where statistics are kept of it
    complaints: tuple[str, ...]
    incarnations: tuple[int, ...]
    facts: Facts
    clock: float  # the host's own, monotonic


class Pull(NamedTuple):
    """Publish these weights to the actors."""

    version: int
    parcel: Mapping[str, Array] | None = None  # filled in on the way


class Look(NamedTuple):
    """Look up rows, for several batches."""

    questions: tuple[tuple[Floats, float], ...]  # places, and the spread they were made for


class Looked(NamedTuple):
    answers: tuple[Found, ...]
    facts: Facts


class Rerank(NamedTuple):
    """Give rows the priorities of new TD errors."""

    rows: Rows
    td_error: Array


class Borrow(NamedTuple):
    """Lend rows out of the pool of this host, and say what is in it; 0 rows: only say so."""

    rows: int
    told: Told


class Borrowed(NamedTuple):
    asked: int  # rows
    lent: Lent | None  # None where the pool has no such rows
    own: str  # the buffer that is the station's own
    filled: dict[str, int]  # rows of each buffer that it reads, the own one included
    refused: tuple[str, ...]  # buffers that it does not read
    facts: Facts


class Done(NamedTuple):
    """The answer to orders that have no other."""

    facts: Facts


class Deal(NamedTuple):
    """Say how the actors are, for a checkpoint."""


class Cut(NamedTuple):
    """End all open episodes here."""


class Save(NamedTuple):
    """Say how the shard is, for a checkpoint, with its rows from `saved` on."""

    saved: int


class Unsaved(NamedTuple):
    """Copy the rows from `saved` on."""

    saved: int


class Restore(NamedTuple):
    """Go on from what a checkpoint says of the shard."""

    numbers: Mapping[str, Any]
    arrays: Mapping[str, Array]
    segments: tuple[tuple[int, Mapping[str, Array]], ...]


class Adopt(NamedTuple):
    """Take in rows of another cut of the replay."""

    columns: Mapping[str, Array]


class Seat(NamedTuple):
    """Put the actors back to where they were."""

    numbers: Mapping[str, Any]
    arrays: Mapping[str, Array]


@dataclass
class Tally:
    """What has arrived and was not told yet."""

    count: int = 0
    steps: int = 0
    version: int = 0
    reports: list[Report] = field(default_factory=list)
    observed: list[tuple[dict[str, Array], Array]] = field(default_factory=list)


class Station:
    """Obeys orders with a crew and a shard."""

    def __init__(self, setup: Setup):
        self.config = at_home(setup.config)
        self.roaming = False
        self._tally = Tally()
        self._terms = Tend(False, (), 0)
        self._told = 0  # env steps, since these terms
        self._heard = 0.0
        self._warned: list[str] = []
        with contextlib.ExitStack() as stack:
            self.board = Board(setup.weights)
            stack.callback(self.board.close)
            self.board.publish(setup.weights, version=setup.version)
            self.crew = Crew(
                self.config,
                setup.spec,
                board_fd=self.board.fd,
                factory=setup.factory,
                incarnations=setup.incarnations,
                numbers=setup.actors,
                progress=setup.progress,
            )
            stack.callback(self.crew.close)
            self.member = self._join(setup)
            if self.member is not None:
                stack.callback(self.member.close)
            self.pool = self._shard(setup)
            stack.pop_all()
        self._orders: dict[type, Callable[[Any], Any]] = {
            Play: self._play,
            Roam: self._roam,
            Tend: self._tend,
            Pull: self._pull,
            Look: self._look,
            Rerank: self._rerank,
            Borrow: self._borrow,
            Deal: self._deal,
            Cut: self._cut,
            Save: self._save,
            Unsaved: self._unsaved,
            Restore: self._restore,
            Adopt: self._adopt,
            Seat: self._seat,
        }

    def _join(self, setup: Setup) -> Member | None:
        if setup.badge is None:
            return None
        run_id, family = setup.badge
        return Member(self.config, setup.spec, run_id, family=family, index=1 + setup.place)

    def _shard(self, setup: Setup) -> Pool:
        rng = np.random.default_rng(0)  # not asked: the learner makes all random numbers
        with self._listening():
            return build_shard(
                self.config,
                setup.spec,
                self.crew.rings,
                rng,
                setup.shards,
                member=self.member,
                place=setup.place,
                factory=setup.factory,
            )

    def do(self, order: Any) -> Any:
        return self._orders[type(order)](order)

    @property
    def facts(self) -> Facts:
        pool = self.pool
        return Facts(pool.sampler.spread, pool.extents[0], pool.fill, pool.stale)

    def _play(self, order: Play) -> Brought:
        for reports in self.crew.play(order.env_steps, order.epsilons, order.episodes):
            self._drain()
            self._tally.reports += reports
        return self._brought()

    def _roam(self, order: Roam) -> Done:
        self.crew.roam()
        self.roaming = True
        return Done(self.facts)

    def roam(self) -> None:
        """Drains what has come, and looks after the actors now and then."""
        arrived = self._drain()
        self._mind_gates()
        if time.monotonic() - self._heard >= NEWS_S:
            self._heard = time.monotonic()
            self._tally.reports += self.crew.news()
        elif not arrived:
            time.sleep(NAP_S)

    def _drain(self) -> int:
        drained, tally = self.pool.drain(), self._tally
        if not drained.count:
            return 0
        tally.count += drained.count
        tally.steps += drained.steps
        tally.version = max(tally.version, self.pool.newest_version(drained))
        if self.config.env.normalize_obs or self.config.env.normalize_reward:
            tally.observed.append(self.pool.observed(drained))
        if self.member is not None:
            self.member.beat()
        return drained.count

    def _tend(self, order: Tend) -> Brought:
        self._terms, self._told = order, 0
        brought = self._brought()
        self._mind_gates()
        return brought

    def _mind_gates(self) -> None:
        go = self._terms.go and self._told + self._tally.steps < self._terms.allowance
        if self._terms.epsilons:
            self.crew.allow(go, list(self._terms.epsilons))

    def _brought(self) -> Brought:
        tally, self._tally = self._tally, Tally()
        self._told += tally.steps
        warned, self._warned = self._warned, []
        return Brought(
            reports=tuple(tally.reports),
            drained=Drained(-1, tally.count, tally.steps),
            version=tally.version,
            observed=seen(tally.observed) if tally.observed else None,
            complaints=(*self.crew.complaints(), *warned),
            incarnations=tuple(self.crew.incarnations),
            facts=self.facts,
            clock=time.monotonic(),
        )

    def _pull(self, order: Pull) -> Done:
        assert order.parcel is not None, "the engine fills it in"
        if order.version > self.board.version:
            self.board.publish(order.parcel, version=order.version)
            self.pool.version = order.version
        return Done(self.facts)

    def _look(self, order: Look) -> Looked:
        return Looked(tuple(self.pool.look_up(*q) for q in order.questions), self.facts)

    def _rerank(self, order: Rerank) -> Done:
        self.pool.rerank(order.rows, order.td_error)
        return Done(self.facts)

    def _borrow(self, order: Borrow) -> Borrowed:
        assert self.member is not None, "only a run that shares borrows"
        with self._listening():
            lent = self.member.fetch(order.rows, order.told)
        borrower = self.member.borrower
        return Borrowed(
            asked=order.rows,
            lent=lent,
            own=borrower.buffer_id,
            filled=borrower.filled,
            refused=tuple(borrower.stats()["refused"]),
            facts=self.facts,
        )

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Has the learner hear of warnings: what is written on this host nobody reads."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield
        self._warned += [str(warning.message) for warning in heard]

    def _deal(self, order: Deal) -> Dealt:
        return self.crew.save()

    def _cut(self, order: Cut) -> Brought:
        self.crew.cut()
        self._drain()
        return self._brought()

    def _save(self, order: Save) -> Kept:
        return self.pool.save([order.saved])

    def _unsaved(self, order: Unsaved) -> Stretch:
        return self.pool.rows_since(order.saved)

    def _restore(self, order: Restore) -> Done:
        self.pool.restore(order.numbers, order.arrays, order.segments)
        return Done(self.facts)

    def _adopt(self, order: Adopt) -> Done:
        self.pool.adopt(order.columns)
        return Done(self.facts)

    def _seat(self, order: Seat) -> Done:
        self.crew.restore(order.numbers, order.arrays)
        return Done(self.facts)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (self.board, self.pool, self.crew, self.member):  # the last first
                if part is not None:
                    stack.callback(part.close)


def at_home(config: Config) -> Config:
    """Returns a run's settings as its part on one host sees them: without a cluster."""
    run = replace(config.run, engine=Engine.PROCESSES)
    return replace(config, run=run, cluster=ClusterConfig())
