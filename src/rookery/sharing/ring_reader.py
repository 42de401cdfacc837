"""Ring reader: samples from another run's replay ring buffer while that run keeps writing to it.

    reader = RingReader(spec, Horizon(n_step=3, gamma=0.99))
    batch = reader.sample(Ring.open(path), 64, rng)

The reader takes no lock and sends no message. It picks random rows (env steps) that can start an
n-step transition or a sequence, copies them, then reads again which rows the writer may overwrite.
A sampled row is valid if none of the rows read for it, its stacked frames included, was overwritten
meanwhile. n, gamma and the sequence length are the reader's, not the writer's.
"""

import numpy as np

from rookery.errors import EmptyReplayError, ProtocolError
from rookery.replay import fold
from rookery.replay.batches import joined, picked
from rookery.replay.fold import Horizon
from rookery.replay.ring import Ring
from rookery.types import ArrayBatch, EnvSpec

TRIES = 100  # attempts to find rows before sampling fails


class RingReader:
    """Samples uniformly from replay ring buffers while other processes write to them."""

    def __init__(self, spec: EnvSpec, horizon: Horizon, burn_in: int = 0):
        self.spec, self.horizon, self.burn_in = spec, horizon, burn_in
        self.overwritten = 0  # rows that their owner overwrote during the copy

    def sample(
        self, ring: Ring, batch: int, rng: np.random.Generator, newest: float = 1.0
    ) -> ArrayBatch:
        """Samples `batch` n-step transitions or sequences with replacement, all with weight 1.

        Only the fraction `newest` of the ring buffer's rows (env steps), the most recent ones, is
        sampled. Raises `EmptyReplayError` if `TRIES` attempts do not find enough of them.
        """
        if batch < 1:
            raise ProtocolError(f"a batch has at least one row, got {batch}")
        parts: list[ArrayBatch] = []
        missing = batch
        for _ in range(TRIES):
            part = self._attempt(ring, missing, rng, newest)
            if part is not None:
                parts.append(part)
                missing -= part.rows.size
            if missing == 0:
                return joined(parts)
        raise EmptyReplayError(
            f"found {batch - missing} of {batch} rows in {TRIES} tries among rows "
            f"{ring.oldest} to {ring.committed}; sample again once its owner has "
            "written more rows"
        )

    def _attempt(
        self, ring: Ring, batch: int, rng: np.random.Generator, newest: float
    ) -> ArrayBatch | None:
        """Tries once to sample up to `batch` transitions or sequences from a ring buffer.

        Returns those that were not overwritten during the copy, or None if there are none.
        """
        oldest, committed, depth = ring.oldest, ring.committed, self.spec.frame_stack
        if oldest >= committed:
            return None
        first = committed - max(1, int(newest * (committed - oldest)))
        rows = rng.integers(first, committed, size=batch + batch // 8 + 8)
        may_begin = fold.is_closed(ring, rows, self.horizon.window, self.burn_in)
        if depth > 1:
            may_begin &= fold.is_whole(ring, rows, depth, oldest)
        rows = rows[may_begin][:batch]
        if rows.size == 0:
            return None
        weight = np.ones(rows.size, dtype=np.float32)
        found = fold.gather(ring, self.spec, rows, weight, self.horizon, oldest)
        touched = fold.stacks(ring, rows, depth, oldest)[:, 0]
        valid = touched >= ring.oldest  # read again after the copy
        self.overwritten += int((~valid).sum())
        return picked(found, valid) if valid.any() else None
