"""The limiter: when to learn. It answers a question and never blocks."""

import math

from rookery.errors import ProtocolError


class Limiter:
    """Keeps `drawn / inserted` at `samples_per_insert` once `warmup` rows are there.

        limiter.insert(rows drained)
        while limiter.ready(): draw a batch; learn; limiter.draw(batch)

    Rows of the warm-up are not counted as inserted: they are drawn from, but they do not demand a
    burst of learning. `may_insert()` is the other side: actors wait while the learner is more than
    `slack` rows behind. At least one of the two is always true, so nobody waits for nobody.
    """

    def __init__(self, *, warmup: int, samples_per_insert: float, batch: int, slack: int):
        self.warmup, self.samples_per_insert, self.batch = warmup, samples_per_insert, batch
        least = math.ceil(batch / samples_per_insert) + 1  # less, and both sides could wait
        self.slack = max(slack, least)  # rows that may be inserted ahead of the learner
        self.stored = self.inserted = self.drawn = 0

    def insert(self, rows: int) -> None:
        """Counts rows that arrived in replay."""
        warming = max(0, min(rows, self.warmup - self.stored))
        self.stored += rows
        self.inserted += rows - warming

    def draw(self, rows: int) -> None:
        """Counts rows that a learner was given."""
        if rows <= 0:
            raise ProtocolError(f"a batch has at least one row, got {rows}")
        self.drawn += rows

    def ready(self) -> bool:
        """May a batch be drawn now?"""
        return self.drawn + self.batch <= self.samples_per_insert * self.inserted

    def may_insert(self) -> bool:
        """May an actor go on, or is it too far ahead of the learner?"""
        return self.samples_per_insert * (self.inserted - self.slack) <= self.drawn

    @property
    def room(self) -> int:
        """Rows that may come before actors have to wait."""
        warming = max(0, self.warmup - self.stored)
        ahead = self.inserted - self.drawn / self.samples_per_insert
        return max(0, warming + int(self.slack - ahead))

    @property
    def missing(self) -> int:
        """Rows that have to come before a batch may be drawn; at least 1."""
        warming = max(0, self.warmup - self.stored)
        due = math.ceil((self.drawn + self.batch) / self.samples_per_insert)
        return max(1, warming + due - self.inserted)

    @property
    def ratio(self) -> float:
        """Rows drawn for each row inserted so far; 0 before the first."""
        return self.drawn / self.inserted if self.inserted else 0.0

    def state(self) -> dict[str, int]:
        return {"stored": self.stored, "inserted": self.inserted, "drawn": self.drawn}

    def restore(self, state: dict[str, int]) -> None:
        self.stored, self.inserted, self.drawn = (
            state["stored"],
            state["inserted"],
            state["drawn"],
        )
