"""Counts of the env steps sampled for one buffer id: own ones, and those of other runs.

Several replay buffers of a process may be built on one id, such as that of an SB3 model and a
second one that the user has built to read statistics. They count into the same `SampleCounts`, so
that each of them reports the same numbers.
"""

from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet


class CountSource(Protocol):
    """Samples env steps for a buffer id (`Borrower`), and counts a part of them by itself."""

    @property
    def num_peers(self) -> int:
        """Number of other runs' replay buffers that are read now."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Reason for each replay buffer that is not read, by buffer id."""

    def collect_counts(self) -> None:
        """Adds the counts that are not in `SampleCounts` yet to it."""


class SampleCounts:
    """Numbers of env steps sampled for a buffer id in this process, by all who sample for it."""

    def __init__(self) -> None:
        self.local = self.foreign = self.short = self.overwritten = 0  # env steps
        self.by_peer: dict[str, int] = {}  # env steps by buffer id, also of closed buffers
        self._sources: WeakSet[CountSource] = WeakSet()

    def add_source(self, source: CountSource) -> None:
        """Asks `source` for its counts whenever statistics are read, as long as it exists."""
        self._sources.add(source)

    def add_borrowed(self, name: str, rows: int) -> None:
        """Counts env steps that were sampled from the other run's replay buffer `name`."""
        self.by_peer[name] = self.by_peer.get(name, 0) + rows

    def stats(self) -> dict[str, Any]:
        """Returns the numbers of own and other runs' env steps sampled so far, and by buffer.

        `refused` holds the replay buffers that are not read, each with the reason.
        """
        sources = tuple(self._sources)
        for source in sources:
            source.collect_counts()
        total = self.local + self.foreign
        return {
            "local_samples": self.local,
            "distributed_samples": self.foreign,
            "total_samples": total,
            "distributed_ratio": self.foreign / total if total else 0.0,
            "num_shared_buffers": max((source.num_peers for source in sources), default=0),
            "short_samples": self.short,
            "overtaken_samples": self.overwritten,
            "by_peer": dict(self.by_peer),
            "refused": {name: why for one in sources for name, why in one.refused.items()},
        }
