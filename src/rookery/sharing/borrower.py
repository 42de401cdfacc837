"""The borrower: draws rows from the other buffers of a pool, as a strategy says.

    borrower = Borrower(registry, buffer_id, [own], leaves, action, strategy=..., ratio=0.2, seed=3)
    loan = borrower.borrow(256, n_step=1, gamma=0.99)     # its first rows are there; None: none is

It looks around about once a second, and only while somebody draws: new rings are mapped, silent
and removed ones let go, those of the dead cleared away. A pool that is gone, or too short, is no
reason to stop: the rest of the batch is a run's own, and what was missing is counted.
"""

import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.config.schema import Strategy
from rookery.errors import ConfigError, ProtocolError, RegistryError
from rookery.replay.loans import Lender, Loan, Loans, Odds, refuse_stranger
from rookery.replay.ring import Column, Ring
from rookery.sharing.appetite import Appetite, Planned
from rookery.sharing.registry import Registry
from rookery.types import Array, Rows

LOOK_S = 1.0  # between two looks around
SWEEP_S = 30.0  # between two looks for buffers of the dead
FRESH_S = 0.1  # a folder's clock is coarse: another change may bear the time of one so recent


class Borrower:
    """One buffer's view of the others in its pool."""

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
        """`chained`: reads only rings whose rows lead to each other, for frames and sequences."""
        refuse_ratio(ratio)
        self._chained = chained
        self.registry, self.buffer_id, self.own = registry, buffer_id, tuple(own)
        self._family = registry.note(buffer_id)["family"]
        self.leaves, self.action = tuple(leaves), action
        self.strategy, self.ratio = strategy, ratio
        self._rng = np.random.default_rng(seed)
        self._peers: dict[str, Lender] = {}
        self._refused: dict[str, str] = {}  # peers that are not read, and why
        self._lent: dict[str, int] = {}  # rows of each, in rings that were let go too
        self.local = self.foreign = self.short = 0  # rows
        self._overtaken = 0
        self._appetite: Appetite = Planned(strategy, ratio, self._rng)
        self._loans = self._fresh_loans()
        self._odds: Odds | None = None
        self._rows = 0.0  # of each row of a batch: how much of it comes from the pool
        self._listed_at = -1
        self._look_at = self._sweep_at = -1.0
        self._gone = False

    @property
    def active(self) -> bool:
        """Could a batch hold rows of the pool at all?"""
        return self.ratio > 0 and self.strategy is not Strategy.LOCAL_ONLY

    def borrow(
        self,
        batch: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        reward_scale: float = 1.0,
        reward_clip: float = np.inf,
    ) -> Loan | None:
        """Returns a batch whose first rows come from the pool, as many as it can give."""
        if not self.active:
            self.local += batch
            return None
        self.look()
        if self._odds is None:
            self.local += batch
            self.short += round(self.ratio * batch)
            return None
        loan = self._loans.take(
            self._rows * batch,
            self._odds,
            batch,
            n_step=n_step,
            gamma=gamma,
            reward_scale=reward_scale,
            reward_clip=reward_clip,
        )
        self.short += loan.asked - loan.filled
        self.foreign += loan.foreign
        self.local += batch - loan.foreign
        if loan.strange:
            self._quarantine()
        return loan

    def deal(self, batch: int, rng: np.random.Generator) -> list[tuple[Lender, int]]:
        """Returns how many rows of a batch are whose, for those who read them by other means.

        They say what became of it: `count`, or `miss`.
        """
        self.local += batch
        if not self.active:
            return []
        self.look()
        wanted = self._rows * batch
        rows = int(wanted) + int(rng.random() < wanted - int(wanted))
        if self._odds is None:
            self.short += rows
            return []
        dealt = rng.multinomial(rows, np.diff(self._odds.upto, prepend=0.0))
        pairs = zip(self._loans.lenders, dealt, strict=True)
        return [(lender, int(count)) for lender, count in pairs if count]

    def count(self, lender: Lender, rows: int) -> None:
        """Counts rows that `deal` gave to a lender, and that it had."""
        if lender.name in self._peers:
            self._lent[lender.name] = self._lent.get(lender.name, 0) + rows
            self.foreign += rows
            self.local -= rows

    def miss(self, rows: int) -> None:
        """Counts rows that a lender had not."""
        self.short += rows

    @property
    def newest(self) -> float:
        """The share of a buffer that counts, the most recent rows."""
        return self._odds.newest if self._odds is not None else 1.0

    def observe(self, td_error: Array) -> None:
        """Takes the TD errors of own rows, where the shares follow them."""
        if self._appetite.observe(td_error):
            self._weigh()

    # --- looking around

    def look(self) -> None:
        """Looks around where it is time to."""
        if time.monotonic() >= self._look_at:
            self.look_around()

    def look_around(self) -> None:
        """Finds out who is there now, and how much they have."""
        now = time.monotonic()
        self._look_at = now + LOOK_S
        if not self.registry.available:
            self._lose()
            return
        if now >= self._sweep_at:
            self._sweep_at = now + min(SWEEP_S, self.registry.stale_s / 4)
            self.registry.sweep()
        self._settle()
        self._gone = False
        if self._meet():
            self._loans = self._fresh_loans()
        self._weigh()

    def _meet(self) -> bool:
        """Maps rings that are new and lets go of those that are gone; returns whether any is."""
        try:
            changed = os.stat(self.registry.path).st_mtime_ns
        except FileNotFoundError:  # at this moment: the next look finds the pool gone
            return False
        if changed == self._listed_at:
            return False
        self._listed_at = changed if time.time_ns() - changed > FRESH_S * 1e9 else -1
        there = self.registry.others(self.buffer_id)
        gone = [name for name in self._peers if name not in there]
        for name in gone:
            self._peers.pop(name).ring.close()
        for name in gone + [name for name in self._refused if name not in there]:
            self._refused.pop(name, None)
        fresh = [name for name in there if name not in self._peers and name not in self._refused]
        return sum(map(self._map, fresh)) > 0 or bool(gone)

    def _map(self, name: str) -> bool:
        try:
            family = self.registry.note(name).get("family")
            if family is not None and family == self._family:
                return False
            ring = self.registry.open_ring(name)
        except (FileNotFoundError, RegistryError):  # nobody has attached to it yet, or it left
            return False
        except ProtocolError as error:  # not ours, or no ring
            self._refuse(name, str(error))
            return False
        try:
            refuse_stranger(Lender(name, ring), self.leaves, self.action)
            self._refuse_pairs(name, ring)
        except ConfigError as error:
            ring.close()
            self._refuse(name, str(error))
            return False
        self._peers[name] = Lender(name, ring)
        return True

    def _refuse_pairs(self, name: str, ring: Ring) -> None:
        if self._chained and ring.paired:
            raise ConfigError(
                f"rows of {name} are single transitions, and this run stacks frames or learns from "
                "sequences; stack them in a wrapper of the environment, in all runs alike"
            )

    def _refuse(self, name: str, why: str) -> None:
        self._refused[name] = why
        warnings.warn(f"buffer {name} is not read: {why}", stacklevel=2)

    def _quarantine(self) -> None:
        """Reads no more of whoever lends what is not finite; own rows are only left out."""
        strange = np.flatnonzero(self._loans.tally.strange)
        names = [self._loans.lenders[index].name for index in strange if index >= len(self.own)]
        self._loans.tally.strange[:] = 0
        if not names:
            return
        self._settle()
        for name in names:
            self._peers.pop(name).ring.close()
            self._refuse(name, "it lent rows that are not finite, or rewards beyond all measure")
        self._loans = self._fresh_loans()
        self._weigh()

    def _lose(self) -> None:
        """Goes on alone: the pool was stopped, or somebody has removed its folder."""
        self._settle()
        for lender in self._peers.values():
            lender.ring.close()
        self._peers.clear()
        self._loans, self._odds, self._listed_at = self._fresh_loans(), None, -1
        if not self._gone:
            self._gone = True
            warnings.warn(
                f"the pool in {self.registry.path} is gone; this run goes on with its own rows",
                stacklevel=2,
            )

    def _fresh_loans(self) -> Loans:
        seed = int(self._rng.integers(1 << 62))
        lenders = [*self.own, *self._peers.values()]
        return Loans(self.leaves, self.action, lenders, seed=seed, own=len(self.own))

    def follow(self, appetite: Appetite) -> None:
        """Borrows as this one says from now on."""
        self._appetite = appetite
        self._weigh()

    @property
    def filled(self) -> dict[str, int]:
        """How many rows each buffer has that is read, the own ones first; a silent one has none."""
        names = [lender.name for lender in self._loans.lenders]
        return dict(zip(names, self._sizes().tolist(), strict=True))

    def _sizes(self) -> Rows:
        sizes = self._loans.sizes
        for index, lender in enumerate(self._peers.values(), start=len(self.own)):
            if lender.ring.silence_s > self.registry.stale_s:
                sizes[index] = 0
        return sizes

    def _weigh(self) -> None:
        """Makes the odds from what everybody has by now."""
        names = [lender.name for lender in self._loans.lenders]
        fare = self._appetite.weigh(len(self.own), names, self._sizes())
        self._odds = Odds.of(fare.weights, fare.newest) if fare.weights.any() else None
        self._rows = fare.share

    # --- what happened

    def _settle(self) -> None:
        """Puts the counts of the present loans to those of the ones before."""
        tally = self._loans.tally
        for name, rows in zip(self._peers, tally.lent[len(self.own) :], strict=True):
            self._lent[name] = self._lent.get(name, 0) + int(rows)
        self._overtaken += int(tally.overtaken.sum())
        tally.lent[:] = tally.overtaken[:] = 0

    def stats(self) -> dict[str, Any]:
        """Returns what was drawn so far, in rows."""
        self._settle()
        total = self.local + self.foreign
        return {
            "local_samples": self.local,
            "distributed_samples": self.foreign,
            "total_samples": total,
            "distributed_ratio": self.foreign / total if total else 0.0,
            "num_shared_buffers": len(self._peers),
            "short_samples": self.short,
            "overtaken_samples": self._overtaken,
            "by_peer": dict(self._lent),
            "refused": dict(self._refused),
        }

    def close(self) -> None:
        """Lets go of every ring but the own."""
        self._settle()
        for lender in self._peers.values():
            lender.ring.close()
        self._peers.clear()
        self._loans, self._odds = self._fresh_loans(), None


def refuse_ratio(ratio: float) -> None:
    """Refuses shares that no batch can have."""
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(
            f"cross_sample_ratio is {ratio}, the share of a batch that comes from other runs; "
            "give a number from 0 to 1"
        )
