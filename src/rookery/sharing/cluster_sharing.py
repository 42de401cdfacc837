"""Replay sharing on a cluster: a run samples from other runs' replay buffers on all its hosts.

A pool is the set of replay buffers that the runs on one host share. The run's worker process on
each host adds its replay shard (the part of the run's replay on this host) to the pool there, and
samples env steps of other runs for the learner (`BorrowRows`). Every host reports the sizes of the
buffers in its pool. The learner applies the sharing strategy to all of them and requests steps from
each host.

The learner requests steps in advance, so that it does not wait for the network. It sends no
requests to a host that is lost or does not answer, and uses more of its own steps instead.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.host_handle import HostHandle
from rookery.cluster.messages import AskPeers
from rookery.replay.batches import joined, picked
from rookery.sharing.mixed_batches import MixedBatches
from rookery.sharing.pool_member import BorrowedBatch, PoolMember
from rookery.sharing.sample_counts import SampleCounts
from rookery.sharing.strategies import (
    AssignedWeights,
    BorrowPlan,
    rounded,
    strategy_plan,
    uses_pool,
)
from rookery.types import ArrayBatch, Floats, Rows

PREFETCH_BATCHES = 8  # batches of borrowed rows in one request
POLL_S = 1.0  # most seconds between two requests to a host while the learner samples
NO_PLAN = BorrowPlan(np.zeros(0))


class BorrowRows(NamedTuple):
    """Request of the learner to a host: send env steps of the replay buffers that runs share on it.

    The host also reports the sizes of these buffers. A request for 0 rows (env steps) asks only for
    the sizes.
    """

    rows: int
    assigned: AssignedWeights


class RowsBorrowed(NamedTuple):
    """Answer of a host to the request `BorrowRows` of the learner.

    It holds sampled env steps, and the sizes of the replay buffers that runs share on the host.
    """

    asked_rows: int  # rows that were requested
    borrowed: BorrowedBatch | None  # None if the pool has no such rows
    own: str  # id of the host's own buffer
    filled: dict[str, int]  # rows of each buffer that the host reads, its own included
    refused: tuple[str, ...]  # buffers that the host does not read


class HostPoolMember(PoolMember):
    """Replay sharing in the run's worker process on one host of a cluster.

    It samples from the replay buffers that runs share on this host, for the learner.
    """

    def answer(self, question: object) -> RowsBorrowed:
        assert isinstance(question, BorrowRows), "not from a `ClusterPoolMember`"
        borrowed = self.fetch(question.rows, question.assigned)
        return RowsBorrowed(
            asked_rows=question.rows,
            borrowed=borrowed,
            own=self.borrower.buffer_id,
            filled=self.borrower.filled,
            refused=tuple(self.borrower.refused),
        )


class PrefetchedRows:
    """Env steps of shared replay buffers that hosts have sent to the learner in advance.

    Each step is used once, in random order.
    """

    def __init__(self) -> None:
        self._lots: deque[tuple[BorrowedBatch, Rows]] = deque()  # with the indices of unused rows
        self.size = 0

    def put(self, borrowed: BorrowedBatch, rng: np.random.Generator) -> None:
        """Adds received env steps in random order, since they may be sorted by replay buffer."""
        self._lots.append((borrowed, rng.permutation(borrowed.foreign.size)))
        self.size += borrowed.foreign.size

    def take(self, rows: int) -> list[BorrowedBatch]:
        """Removes and returns `rows` prefetched env steps, or all of them if there are fewer."""
        taken = []
        while rows > 0 and self._lots:
            borrowed, left = self._lots.popleft()
            some, rest = left[:rows], left[rows:]
            taken.append(BorrowedBatch(picked(borrowed.batch, some), borrowed.foreign[some]))
            if rest.size:
                self._lots.appendleft((borrowed, rest))
            rows -= some.size
            self.size -= some.size
        return taken


@dataclass
class HostPool:
    """The learner's view of one host: sizes and weights of the replay buffers shared there.

    Also holds the env steps of these buffers that the host has sent in advance.
    """

    handle: HostHandle
    own: str = ""  # id of the host's own buffer; "" until the host has answered
    filled: dict[str, int] = field(default_factory=dict)  # rows of each buffer the host reads
    refused: tuple[str, ...] = ()  # buffers the host does not read
    weights: dict[str, float] = field(default_factory=dict)  # its part of the borrow plan
    stock: PrefetchedRows = field(default_factory=PrefetchedRows)
    changed: bool = True  # has the host answered since the last plan?
    asked_at: float = -math.inf  # time of the last request
    retry_at: float = -math.inf  # no request before this time: the pool had no rows

    def receive(self, rng: np.random.Generator) -> None:
        """Stores env steps and replay buffer sizes that the host has sent since the last call."""
        answers, self.handle.of_peers = self.handle.of_peers, []
        for answer in answers:
            assert isinstance(answer, RowsBorrowed), "not from a `HostPoolMember`"
            self.changed = True
            self.own, self.filled, self.refused = answer.own, answer.filled, answer.refused
            if answer.borrowed is not None:
                self.stock.put(answer.borrowed, rng)
            elif answer.asked_rows:
                self.retry_at = time.monotonic() + POLL_S

    @property
    def weight(self) -> float:
        """Sum of the sampling weights of the shared replay buffers on this host.

        It is 0 while the host is lost, and for `POLL_S` seconds after it had no env steps to send.
        """
        can_lend = not self.handle.absent and time.monotonic() >= self.retry_at
        return sum(self.weights.values()) if can_lend else 0.0

    def ask(self, need: float, newest: float) -> None:
        """Requests env steps from the host, to keep enough for `PREFETCH_BATCHES` batches.

        `need` is the mean number of this host's steps in a batch. Only the share `newest` of a
        replay buffer, its most recent steps, may be sampled. While enough steps have arrived or
        been requested, requests only the buffer sizes, every `POLL_S` seconds.
        """
        coming = self.handle.lending
        if self.stock.size + (coming or 0) < PREFETCH_BATCHES * need:
            rows = math.ceil(PREFETCH_BATCHES * need)
            self._send(BorrowRows(rows, AssignedWeights(self.weights, newest)))
        elif coming is None and time.monotonic() - self.asked_at >= POLL_S:
            self._send(BorrowRows(0, AssignedWeights({}, newest)))

    def _send(self, order: BorrowRows) -> None:
        self.asked_at = time.monotonic()
        self.handle.send(AskPeers(order.rows, order))

    def take(self, rows: int, rng: np.random.Generator) -> list[BorrowedBatch]:
        """Returns `rows` env steps that the host has sent; waits for steps that were requested.

        Returns fewer if the host sends too few or stops answering.
        """
        self.receive(rng)
        while self.stock.size < rows and self.handle.lending and not self.handle.absent:
            self.handle.wait()
            self.receive(rng)
        return self.stock.take(rows)


class ClusterPoolMember(MixedBatches):
    """Replay sharing in the learner process of a run on a cluster.

    Mixes env steps of other runs, which the run's worker process on each host samples, into
    batches.
    """

    def __init__(self, actors: ClusterActors, rng: np.random.Generator):
        sharing = actors.config.sharing
        self.actors, self._rng = actors, rng
        self._strategy, self._ratio = sharing.strategy, sharing.cross_sample_ratio
        self._plan = NO_PLAN
        self._hosts: dict[int, HostPool] = {}  # by tag; a replaced host has a new tag
        self._counts = SampleCounts()

    def borrow(self, batch: int) -> ArrayBatch | None:
        self._counts.local += batch
        if not uses_pool(self._strategy, self._ratio):
            return None
        self._receive()
        weights = np.array([host.weight for host in self._hosts.values()])
        shares = weights / (weights.sum() or 1.0)
        for host, share in zip(self._hosts.values(), shares.tolist(), strict=True):
            host.ask(self._ratio * batch * share, self._plan.newest)
        rows = rounded(self._ratio * batch, self._rng)
        borrowed = self._take(rows, shares) if weights.any() else []
        foreign = sum(int(part.foreign.sum()) for part in borrowed)
        self._counts.short += rows - sum(part.foreign.size for part in borrowed)
        self._counts.add_foreign(foreign)
        return joined([part.batch for part in borrowed]) if borrowed else None

    def _receive(self) -> None:
        handles = self.actors.handles
        if self._hosts.keys() != {handle.tag for handle in handles}:
            self._hosts = {b.tag: self._hosts.get(b.tag) or HostPool(b) for b in handles}
        for host in self._hosts.values():
            host.receive(self._rng)
        if any(host.changed for host in self._hosts.values()):
            self._update_plan()

    def _update_plan(self) -> None:
        """Computes by the sharing strategy how often each shared replay buffer is sampled.

        Worker processes of this run on the same machine read the same buffers, so each of them gets
        an equal part of a buffer's sampling weight.
        """
        known = [host for host in self._hosts.values() if host.own]
        own = {host.own: host.filled[host.own] for host in known}
        peers = {name: rows for host in known for name, rows in host.filled.items()}
        sizes = {**own, **{name: rows for name, rows in peers.items() if name not in own}}
        rows = np.array(list(sizes.values()), dtype=np.int64)
        self._plan = strategy_plan(self._strategy, self._ratio, len(own), rows)
        weight = dict(zip(sizes, self._plan.weights.tolist(), strict=True))
        seen = Counter(name for host in known for name in host.filled)
        for host in self._hosts.values():
            host.changed = False
        for host in known:
            host.weights = {name: weight[name] / seen[name] for name in host.filled}

    def _take(self, rows: int, shares: Floats) -> list[BorrowedBatch]:
        dealt: Sequence[int] = self._rng.multinomial(rows, shares).tolist()
        hosts = zip(tuple(self._hosts.values()), dealt, strict=True)
        return [borrowed for host, count in hosts for borrowed in host.take(count, self._rng)]

    def beat(self) -> None:
        """Does nothing: the run's worker processes on the hosts write the heartbeats."""

    def statistics(self) -> dict[str, Any]:
        hosts = self._hosts.values()
        peers = {name for host in hosts for name in host.filled} - {host.own for host in hosts}
        refused = {name for host in hosts for name in host.refused}
        return {**self._counts.stats(), "num_shared_buffers": len(peers), "refused": refused}

    def close(self) -> None:
        """Does nothing: the run's worker process on each host ends the sharing of its replay."""
