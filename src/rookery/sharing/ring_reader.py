"""Ring reader: samples from another run's replay ring buffer while that run keeps writing to it.

    reader = RingReader(Ring.open(path), spec, n_step=3, gamma=0.99)
    batch = reader.sample(64, rng)

The reader takes no lock and sends no message. It picks random rows (env steps) that can start an
n-step transition or a sequence, copies them, then reads again which rows the writer may overwrite.
A sampled row is valid if none of the rows read for it, its stacked frames included, was overwritten
meanwhile. n, gamma and the sequence length are the reader's, not the writer's.
"""

import numpy as np

from rookery.errors import ConfigError, EmptyReplayError, ProtocolError
from rookery.replay import fold
from rookery.replay.batches import joined, picked
from rookery.replay.ring import Ring, schema_of
from rookery.types import ArrayBatch, Bools, EnvSpec, Rows

TRIES = 100  # attempts to find rows before sampling fails


class RingReader:
    """Samples uniformly from a replay ring buffer while another process writes to it."""

    def __init__(
        self,
        ring: Ring,
        spec: EnvSpec,
        *,
        n_step: int,
        gamma: float,
        sequence: int = 0,
        burn_in: int = 0,
        newest: float = 1.0,
    ):
        """Prepares to sample from a replay ring buffer.

        Only the fraction `newest` of its rows (env steps), the most recent ones, is sampled. Raises
        `ConfigError` if its columns do not fit the environment of `spec`.
        """
        _check_columns(ring, spec)
        self.newest = newest
        self.ring, self.spec = ring, spec
        self.horizon = fold.Horizon(n_step, gamma, sequence)
        self.burn_in = burn_in
        self.overwritten = 0  # rows that their owner overwrote during the copy

    def sample(self, batch: int, rng: np.random.Generator) -> ArrayBatch:
        """Samples `batch` n-step transitions or sequences with replacement, all with weight 1.

        Raises `EmptyReplayError` if `TRIES` attempts do not find enough of them.
        """
        if batch < 1:
            raise ProtocolError(f"a batch has at least one row, got {batch}")
        parts: list[ArrayBatch] = []
        missing = batch
        for _ in range(TRIES):
            part = self._attempt(missing, rng)
            if part is not None:
                parts.append(part)
                missing -= part.rows.size
            if missing == 0:
                return joined(parts)
        raise EmptyReplayError(
            f"found {batch - missing} of {batch} rows in {TRIES} tries among rows "
            f"{self.ring.oldest} to {self.ring.committed}; sample again once its owner has "
            "written more rows"
        )

    def _attempt(self, batch: int, rng: np.random.Generator) -> ArrayBatch | None:
        """Tries once to sample up to `batch` transitions or sequences from the ring buffer.

        Returns those that were not overwritten during the copy, or None if there are none.
        """
        oldest, committed = self.ring.oldest, self.ring.committed
        if oldest >= committed:
            return None
        first = committed - max(1, int(self.newest * (committed - oldest)))
        guess = rng.integers(first, committed, size=batch + batch // 8 + 8)
        rows = guess[self._may_begin(guess, oldest)][:batch]
        if rows.size == 0:
            return None
        found = fold.gather(
            self.ring,
            self.spec,
            rows,
            np.ones(rows.size, dtype=np.float32),
            self.horizon,
            oldest,
        )
        touched = fold.stacks(self.ring, rows, self.spec.frame_stack, oldest)[:, 0]
        return self._valid(found, touched >= self.ring.oldest)  # read again after the copy

    def _may_begin(self, rows: Rows, oldest: int) -> Bools:
        closed = fold.is_closed(self.ring, rows, self.horizon.window, self.burn_in)
        if self.spec.frame_stack > 1:
            closed &= fold.is_whole(self.ring, rows, self.spec.frame_stack, oldest)
        return closed

    def _valid(self, found: ArrayBatch, valid: Bools) -> ArrayBatch | None:
        if valid.all():
            return found
        self.overwritten += int((~valid).sum())
        return picked(found, valid) if valid.any() else None


def _check_columns(ring: Ring, spec: EnvSpec) -> None:
    needed = schema_of(spec)
    if ring.schema == needed:
        return
    unknown = [column for column in ring.schema if column not in needed]
    missing = [column for column in needed if column not in ring.schema]
    raise ConfigError(
        f"a ring with columns {unknown or 'in another order'} cannot be read by a run of "
        f"{spec.name}, which needs {missing or 'its own order'}; "
        "share between runs of one environment"
    )
