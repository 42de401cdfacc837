"""Counts of the env steps sampled for one buffer id: own ones, and those of other runs.

Several replay buffers of a process may be built on one id, such as that of an SB3 model and a
second one that the user has built to read statistics. They count into the same `SampleCounts`, so
that each of them reports the same numbers.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from rookery.sharing.borrower import Borrower

METRICS = {  # names of the metrics of a run, and of the statistics that they are
    "sharing/local_rows": "local_samples",
    "sharing/foreign_rows": "distributed_samples",
    "sharing/foreign_share": "distributed_ratio",
    "sharing/short_rows": "short_samples",
    "sharing/peers": "num_shared_buffers",
}


class SampleCounts:
    """Numbers of env steps sampled for a buffer id in this process, by all who sample for it."""

    def __init__(self) -> None:
        self.local = 0  # own env steps
        self.foreign = 0  # env steps of other runs
        self.short = 0  # env steps that the pool did not have; own ones replaced them
        self.overwritten = 0  # env steps that their owner overwrote during the copy
        self.by_peer: dict[str, int] = {}  # env steps by buffer id, also of closed buffers
        self.borrowers: WeakSet[Borrower] = WeakSet()  # count a part of the steps by themselves

    def add_foreign(self, rows: int) -> None:
        """Counts env steps of other runs, which are in a batch in place of own ones."""
        self.foreign += rows
        self.local -= rows

    def add_borrowed(self, name: str, rows: int) -> None:
        """Counts env steps that were sampled from the other run's replay buffer `name`."""
        self.by_peer[name] = self.by_peer.get(name, 0) + rows

    def stats(self) -> dict[str, Any]:
        """Returns the numbers of own and other runs' env steps sampled so far, and by buffer.

        `refused` holds the replay buffers that are not read, each with the reason.
        """
        borrowers = tuple(self.borrowers)
        for borrower in borrowers:
            borrower.collect_counts()
        total = self.local + self.foreign
        return {
            "local_samples": self.local,
            "distributed_samples": self.foreign,
            "total_samples": total,
            "distributed_ratio": self.foreign / total if total else 0.0,
            "num_shared_buffers": max((len(one.peers) for one in borrowers), default=0),
            "short_samples": self.short,
            "overtaken_samples": self.overwritten,
            "by_peer": dict(self.by_peer),
            "refused": {name: why for one in borrowers for name, why in one.refused.items()},
        }


def sharing_metrics(stats: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of replay sharing, such as the share of other runs' env steps."""
    return {name: float(stats[key]) for name, key in METRICS.items()}
