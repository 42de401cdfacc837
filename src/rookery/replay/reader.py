"""Readers: drawing from another run's replay ring while its owner goes on writing.

    reader = Reader(Ring.open(path), spec, n_step=3, gamma=0.99)
    batch = reader.draw(64, rng)

Nobody is asked and nothing is locked. A reader guesses rows, keeps those that may begin a walk,
copies, then looks at the ring's `reserved` again: a row is good if the oldest row that was touched
for it, the first frame of its stack included, had not been overtaken by then. n, gamma and the
length of sequences are the reader's own, whatever the writer's are.
"""

import numpy as np

from rookery.errors import ConfigError, EmptyReplayError, ProtocolError
from rookery.replay import fold
from rookery.replay.batches import joined, picked
from rookery.replay.ring import Ring, schema_of
from rookery.types import Batch, Bools, EnvSpec, Rows

TRIES = 100  # rounds of guessing before a draw gives up


class Reader:
    """Draws uniformly from a ring that somebody else writes."""

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
        """Draws from the newest share of the rows that are there."""
        _refuse_stranger(ring, spec)
        self.newest = newest
        self.ring, self.spec = ring, spec
        self.n_step, self.gamma, self.sequence = n_step, gamma, sequence
        self.burn_in = burn_in
        self.overtaken = 0  # rows that were overwritten while they were being copied

    def draw(self, batch: int, rng: np.random.Generator) -> Batch:
        """Draws B rows with replacement and folds them, every weight 1.

        Raises `EmptyReplayError` where a bounded number of tries does not find enough rows.
        """
        if batch < 1:
            raise ProtocolError(f"a batch has at least one row, got {batch}")
        parts: list[Batch] = []
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
            f"{self.ring.oldest} to {self.ring.committed}; draw once the owner has learned a while"
        )

    def _attempt(self, batch: int, rng: np.random.Generator) -> Batch | None:
        """Returns at most `batch` rows that were whole from the first look to the second."""
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
            n_step=self.n_step,
            gamma=self.gamma,
            sequence=self.sequence,
            oldest=oldest,
        )
        touched = fold.stacks(self.ring, rows, self.spec.frame_stack, oldest)[:, 0]
        return self._kept(found, touched >= self.ring.oldest)  # the second look

    def _may_begin(self, rows: Rows, oldest: int) -> Bools:
        window = max(self.n_step, self.sequence)
        closed = fold.is_closed(self.ring, rows, window, self.burn_in)
        if self.spec.frame_stack > 1:
            closed &= fold.is_whole(self.ring, rows, self.spec.frame_stack, oldest)
        return closed

    def _kept(self, found: Batch, good: Bools) -> Batch | None:
        if good.all():
            return found
        self.overtaken += int((~good).sum())
        return picked(found, good) if good.any() else None


def _refuse_stranger(ring: Ring, spec: EnvSpec) -> None:
    wanted = schema_of(spec)
    if ring.schema == wanted:
        return
    strange = [column for column in ring.schema if column not in wanted]
    missing = [column for column in wanted if column not in ring.schema]
    raise ConfigError(
        f"a ring with columns {strange or 'in another order'} cannot be read by a run of "
        f"{spec.name}, which needs {missing or 'its own order'}; "
        "share between runs of one environment"
    )
