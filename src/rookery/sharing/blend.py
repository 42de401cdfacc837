"""Blends: batches of a run's own rows and of rows that are borrowed, wherever those come from.

    batch = blend.draw(pool, 64, beta)              # instead of pool.draw
    blend.rerank(pool, batch.rows, td_error)        # instead of pool.rerank

Own rows come as they would without a pool. Rows of the pool are drawn uniformly within their
strategy, are never reranked (row -1), and get the mean weight of the batch's own rows.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from rookery.replay.batches import joined
from rookery.types import Array, Batch, Rows

NOBODYS = -1  # the row of a loan: it is never reranked


class Replay(Protocol):
    """A run's own replay, however it is kept."""

    def draw(self, batch: int, *, beta: float = ...) -> Batch: ...
    def rerank(self, rows: Rows, td_error: Array) -> None: ...


class Counts(NamedTuple):
    """What a run has drawn so far."""

    local: int  # own rows
    foreign: int  # rows of other runs
    short: int  # rows that the pool had not, and own ones took the place of
    peers: int  # buffers that are read now
    refused: int  # buffers that are not


class Blend(ABC):
    """A run's side of a pool."""

    @abstractmethod
    def borrow(self, batch: int) -> Batch | None:
        """Returns the borrowed rows of a batch of so many; None: all of it is own.

        Their weights are multiples of what they get.
        """

    @abstractmethod
    def observe(self, td_error: Array) -> None:
        """Takes the TD errors of own rows, after each learner step."""

    @abstractmethod
    def beat(self) -> None:
        """Tells the others that rows have come."""

    @abstractmethod
    def counts(self) -> Counts: ...

    @abstractmethod
    def close(self) -> None:
        """Leaves the pool."""

    def draw(self, pool: Replay, batch: int, beta: float) -> Batch:
        """Draws a batch of own rows and of the pool's."""
        loan = self.borrow(batch)
        if loan is None:
            return pool.draw(batch, beta=beta)
        missing = batch - loan.rows.size
        if missing == 0:
            return loan
        own = pool.draw(missing, beta=beta)
        loan.weight[:] *= own.weight.mean()
        return joined([own, loan])

    def rerank(self, pool: Replay, rows: Rows, td_error: Array) -> None:
        """Hands on the TD errors of own rows."""
        own = rows != NOBODYS
        if not own.all():
            rows, td_error = rows[own], td_error[own]
        if rows.size:
            pool.rerank(rows, td_error)
        self.observe(td_error)

    def stats(self) -> dict[str, float]:
        """Returns what was borrowed so far, for a run's metrics."""
        counts = self.counts()
        total = counts.local + counts.foreign
        return {
            "sharing/local_rows": float(counts.local),
            "sharing/foreign_rows": float(counts.foreign),
            "sharing/foreign_share": counts.foreign / total if total else 0.0,
            "sharing/short_rows": float(counts.short),
            "sharing/peers": float(counts.peers),
            "sharing/refused": float(counts.refused),
        }
