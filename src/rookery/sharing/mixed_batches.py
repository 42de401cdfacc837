"""Mixed batches: env steps of a run's own replay, and steps sampled from other runs' replay.

    batch = peers.sample(replay, 64, beta)                 # instead of replay.sample
    peers.update_priorities(replay, batch.rows, td_error)  # instead of replay.update_priorities

A row is one stored env step. Own rows are sampled as without sharing, so prioritized replay still
applies to them. Rows of other runs ("borrowed rows") are sampled uniformly from buffers that the
sharing strategy weighs. Their row number is `BORROWED`, their priorities are never updated, and
their importance weight is the mean weight of the batch's own rows.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.replay.batches import joined
from rookery.replay.replay import Replay
from rookery.sharing.sample_counts import sharing_metrics
from rookery.types import Array, ArrayBatch, Rows, SampledBatch

if TYPE_CHECKING:
    from torch import Tensor

BORROWED = -1  # row number of every borrowed row


class MixedBatches(ABC):
    """Base class that samples batches of a run's own env steps and env steps of other runs."""

    @abstractmethod
    def borrow(self, batch: int) -> ArrayBatch | None:
        """Samples the part of a batch of `batch` env steps that comes from shared replay buffers.

        Some sharing strategies sample the run's own buffer here too, besides those of other runs.
        Returns None if no steps come from shared buffers.
        """

    @abstractmethod
    def beat(self) -> None:
        """Writes the heartbeat of this run's replay buffers, which other runs check."""

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Returns the numbers of env steps sampled so far, as `SampleCounts.stats`."""

    @abstractmethod
    def close(self) -> None:
        """Ends sharing: removes this run's replay buffers from the pool of shared buffers."""

    def sample(self, pool: Replay, batch: int, beta: float) -> SampledBatch:
        """Samples a batch of env steps of the run's own replay `pool` and of other runs' replay."""
        borrowed = self.borrow(batch)
        if borrowed is None:
            return pool.sample(batch, beta=beta)
        missing = batch - borrowed.rows.size
        if missing == 0:
            return borrowed
        own = pool.sample(missing, beta=beta)
        assert own.weight is not None  # only replay on a host is shared
        borrowed.weight[:] = own.weight.mean()
        return joined([own, borrowed])

    def update_priorities(self, pool: Replay, rows: Rows, td_error: "Array | Tensor") -> None:
        """Updates the priorities of those batch rows (env steps) that are in the run's own replay.

        `pool` is that replay. TD errors of other runs' rows are ignored.
        """
        own = rows != BORROWED
        if not own.all():
            rows, td_error = rows[own], np.asarray(td_error)[own]
        if rows.size:
            pool.update_priorities(rows, td_error)

    def stats(self) -> dict[str, float]:
        """Returns the metrics of replay sharing, such as the share of other runs' env steps."""
        found = self.statistics()
        return {**sharing_metrics(found), "sharing/refused": float(len(found["refused"]))}
