"""Borrower: samples env steps from the other runs' replay buffers in a pool, by a sharing strategy.

    borrower = Borrower(registry, buffer_id, [own], leaves, action, strategy=..., ratio=0.2, seed=3)
    borrowed = borrower.borrow(256, Returns(n=1, gamma=0.99))     # None: no rows

A pool is a folder in shared memory with the replay ring buffers of several runs. About once a
second, while it samples, the borrower updates its list of ring buffers: it maps new ones, closes
removed ones, ignores those without a recent heartbeat, and deletes those of dead processes. If the
pool was removed or has too few rows (env steps), the run uses more of its own rows instead; the
borrower counts how many.
"""

import os
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from rookery.config.schema import Strategy
from rookery.errors import ConfigError, EmptyReplayError, ProtocolError, RegistryError
from rookery.replay.ring import Column
from rookery.sharing.argument_types import is_number
from rookery.sharing.borrowed_rows import (
    ONE_STEP,
    REWARD_LIMIT,
    BorrowedRows,
    Lender,
    Returns,
    RowCopier,
    check_columns,
)
from rookery.sharing.registry import Registry
from rookery.sharing.ring_reader import RingReader
from rookery.sharing.strategies import (
    AssignedWeights,
    BorrowPlan,
    rounded,
    strategy_plan,
    uses_pool,
)
from rookery.types import ArrayBatch, Rows

REFRESH_S = 1.0  # seconds between two refreshes of the pool's buffers
SWEEP_S = 30.0  # seconds between two searches for abandoned buffers
CLOCK_S = 0.1  # resolution of a folder's mtime: a later change may have the same time


class Borrower:
    """Samples, for one run, env steps from the replay buffers that other runs share with it."""

    def __init__(
        self,
        registry: Registry,
        buffer_id: str,
        own: Sequence[Lender],
        leaves: Sequence[Column],
        action: Column,
        *,
        strategy: Strategy,
        ratio: float,
        seed: int,
        chained: bool = False,
    ):
        """Prepares to sample from the replay buffers in `registry`; `own` are the run's own.

        With `chained`, only ring buffers whose env steps are linked to their next step are read.
        Frame stacks and sequences need that. Raises `ConfigError` if `ratio` is not between 0 and
        1.
        """
        refuse_ratio(ratio)
        self._chained = chained
        self.registry, self.buffer_id, self.own = registry, buffer_id, tuple(own)
        self._family = registry.note(buffer_id)["family"]
        self.leaves, self.action = tuple(leaves), action
        self.strategy, self.ratio = strategy, ratio
        self._rng = np.random.default_rng(seed)
        self.peers: dict[str, Lender] = {}  # that are read, by buffer id
        self.refused: dict[str, str] = {}  # reason for each buffer that is not read
        self.counts = registry.counts(buffer_id)
        self.counts.borrowers.add(self)
        self._assigned: AssignedWeights | None = None  # on a host of a cluster
        self._copier = self._new_copier()
        self._plan: BorrowPlan | None = None  # None: nothing is sampled from the pool
        self._listed_at = -1
        self._refresh_at = self._sweep_at = -1.0
        self._pool_lost = False

    def borrow(self, batch: int, returns: Returns = ONE_STEP) -> BorrowedRows | None:
        """Samples a batch whose first `filled` env steps come from the shared replay buffers.

        Returns None if the shared buffers have no steps, or the settings allow no other runs'
        steps.
        """
        if not self._may_borrow(batch):
            return None
        if self._plan is None:
            self.counts.short += round(self.ratio * batch)
            return None
        borrowed = self._copier.take(self._plan.share * batch, self._plan, batch, returns)
        self.counts.short += borrowed.asked - borrowed.filled
        self.counts.add_foreign(borrowed.foreign)
        if borrowed.invalid:
            self._refuse_invalid()
        return borrowed

    def borrow_by(
        self, reader: RingReader, batch: int, rng: np.random.Generator
    ) -> Iterator[tuple[ArrayBatch, bool]]:
        """Samples the part of a batch that comes from shared replay buffers, with `reader`.

        Yields the env steps of each ring buffer, and whether they are another run's.
        """
        if not self._may_borrow(batch):
            return
        plan = self._plan
        if plan is None:
            self.counts.short += rounded(self.ratio * batch, rng)
            return
        dealt = rng.multinomial(rounded(plan.share * batch, rng), plan.shares).tolist()
        for (name, ring), count in zip(self._copier.lenders, dealt, strict=True):
            if not count:
                continue
            try:
                part = reader.sample(ring, count, rng, plan.newest)
            except EmptyReplayError:
                self.counts.short += count
                continue
            foreign = name in self.peers
            if foreign:
                self.counts.add_borrowed(name, count)
                self.counts.add_foreign(count)
            yield part, foreign

    def _may_borrow(self, batch: int) -> bool:
        """Counts a batch of own env steps; returns whether some may come from the pool instead."""
        self.counts.local += batch
        if not uses_pool(self.strategy, self.ratio):
            return False
        self.refresh_if_due()
        return True

    # --- the buffers of the pool

    def refresh_if_due(self) -> None:
        """Updates the list of shared replay buffers, at most once in `REFRESH_S` seconds."""
        if time.monotonic() >= self._refresh_at:
            self.refresh()

    def refresh(self) -> None:
        """Updates the list of shared replay buffers, their sizes and their sampling weights."""
        now = time.monotonic()
        self._refresh_at = now + REFRESH_S
        if not self.registry.available:
            self._continue_alone()
            return
        if now >= self._sweep_at:
            self._sweep_at = now + min(SWEEP_S, self.registry.stale_s / 4)
            self.registry.sweep()
        self.collect_counts()
        self._pool_lost = False
        if self._update_peers():
            self._copier = self._new_copier()
        self._update_plan()

    def _update_peers(self) -> bool:
        """Maps replay buffers of new runs and closes removed ones; returns whether any changed."""
        try:
            changed = os.stat(self.registry.path).st_mtime_ns
        except FileNotFoundError:  # the next refresh finds the pool removed
            return False
        if changed == self._listed_at:
            return False
        self._listed_at = changed if time.time_ns() - changed > CLOCK_S * 1e9 else -1
        there = self.registry.others(self.buffer_id)
        gone = [name for name in self.peers if name not in there]
        for name in gone:
            self.peers.pop(name).ring.close()
        for name in gone + [name for name in self.refused if name not in there]:
            self.refused.pop(name, None)
        fresh = [name for name in there if name not in self.peers and name not in self.refused]
        return sum(map(self._map_ring, fresh)) > 0 or bool(gone)

    def _map_ring(self, name: str) -> bool:
        try:
            family = self.registry.note(name).get("family")
            if family is not None and family == self._family:
                return False
            ring = self.registry.open_ring(name)
        except (FileNotFoundError, RegistryError):  # it has no ring yet, or was removed
            return False
        except ProtocolError as error:  # another user's file, or not a ring
            self._refuse(name, str(error))
            return False
        try:
            check_columns(Lender(name, ring), self.leaves, self.action)
            if self._chained and ring.paired:
                raise ConfigError(
                    f"rows of {name} are single transitions, and this run stacks frames or learns "
                    "from sequences; stack frames in a wrapper of the environment, in all runs"
                )
        except ConfigError as error:
            ring.close()
            self._refuse(name, str(error))
            return False
        self.peers[name] = Lender(name, ring)
        return True

    def _refuse(self, name: str, why: str) -> None:
        self.refused[name] = why
        warnings.warn(f"buffer {name} is not read: {why}", stacklevel=2)

    def _refuse_invalid(self) -> None:
        """Stops reading other runs' replay buffers that hold nan, infinite or huge values.

        The run's own buffers are still read; only their env steps with such values are skipped.
        """
        invalid = np.flatnonzero(self._copier.counts.invalid)
        names = [self._copier.lenders[index].name for index in invalid if index >= len(self.own)]
        self._copier.counts.invalid[:] = 0
        if not names:
            return
        self.collect_counts()
        for name in names:
            self.peers.pop(name).ring.close()
            self._refuse(name, f"it has rows that are not finite, or returns over {REWARD_LIMIT:g}")
        self._copier = self._new_copier()
        self._update_plan()

    def _continue_alone(self) -> None:
        """Stops sampling from other runs, after the pool of shared replay buffers was removed."""
        self.close()
        self._listed_at = -1
        if not self._pool_lost:
            self._pool_lost = True
            warnings.warn(
                f"the pool in {self.registry.path} is gone; this run continues with its own rows",
                stacklevel=2,
            )

    def _new_copier(self) -> RowCopier:
        seed = int(self._rng.integers(1 << 62))
        lenders = [*self.own, *self.peers.values()]
        return RowCopier(self.leaves, self.action, lenders, seed=seed, own=len(self.own))

    def assign(self, assigned: AssignedWeights) -> None:
        """Uses these weights of the replay buffers from now on, in place of the strategy's."""
        self._assigned = assigned
        self._update_plan()

    @property
    def filled(self) -> dict[str, int]:
        """Number of env steps in each shared replay buffer that is read, by buffer id.

        The run's own buffers come first. It is 0 for a buffer without a recent heartbeat.
        """
        names = [lender.name for lender in self._copier.lenders]
        return dict(zip(names, self._sizes().tolist(), strict=True))

    def _sizes(self) -> Rows:
        sizes = self._copier.sizes
        for index, lender in enumerate(self.peers.values(), start=len(self.own)):
            if lender.ring.silence_s > self.registry.stale_s:
                sizes[index] = 0
        return sizes

    def _update_plan(self) -> None:
        """Computes the sampling weight of each shared replay buffer from the present sizes."""
        sizes = self._sizes()
        if self._assigned is None:
            plan = strategy_plan(self.strategy, self.ratio, len(self.own), sizes)
        else:
            plan = self._assigned.plan([lender.name for lender in self._copier.lenders], sizes)
        self._plan = plan if plan.weights.any() else None

    # --- counts

    def collect_counts(self) -> None:
        """Adds the counts of the `RowCopier`, which copies other runs' env steps, to `counts`.

        Then resets them to 0.
        """
        copied = self._copier.counts
        for name, rows in zip(self.peers, copied.lent[len(self.own) :], strict=True):
            self.counts.add_borrowed(name, int(rows))
        self.counts.overwritten += int(copied.overwritten.sum())
        copied.lent[:] = copied.overwritten[:] = 0

    def close(self) -> None:
        """Unmaps the other runs' replay ring buffers, so that this run no longer reads them."""
        self.collect_counts()
        for lender in self.peers.values():
            lender.ring.close()
        self.peers.clear()
        self._copier, self._plan = self._new_copier(), None


def refuse_ratio(ratio: float) -> None:
    """Raises `ConfigError` unless `cross_sample_ratio` is between 0 and 1.

    It is the share of a batch that is sampled from the replay buffers that runs share.
    """
    if not (is_number(ratio) and 0.0 <= ratio <= 1.0):
        raise ConfigError(
            f"cross_sample_ratio is {ratio!r}, the share of a batch that comes from other runs; "
            "give a number from 0 to 1"
        )
