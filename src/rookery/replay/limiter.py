"""Rate limiter (samples per insert), as in Reverb: balances sampling and inserting in replay.

The limiter only tells whether sampling or inserting is allowed now; it never blocks.
"""

import math
from collections.abc import Callable

from rookery.config.schema import Config
from rookery.errors import ProtocolError


class Limiter:
    """Rate limiter: keeps sampled rows / inserted rows at `samples_per_insert` after the warm-up.

        limiter.insert(rows)
        while limiter.ready(): sample a batch; learn; limiter.sample(batch)

    A row is one env step in replay. The first `warmup` rows (`learning_starts`) can be sampled but
    are not counted as inserted, so that learning does not start with a burst of updates. Actors
    have to wait while they are more than `slack` rows ahead of the learner (`may_insert()`). At
    least one of `ready()` and `may_insert()` is always true, so that actors and learner never wait
    for each other.
    """

    def __init__(
        self,
        *,
        warmup: int,
        samples_per_insert: float,
        batch: int,
        slack: int | Callable[[], int],
        sampleable: Callable[[], bool] = lambda: True,
    ):
        """Creates a rate limiter for batches of `batch` rows (env steps).

        `slack` is a function where the number of actors may change during a run. `sampleable`
        returns whether replay holds any row that can be sampled.
        """
        self._sampleable = sampleable
        self.warmup, self.samples_per_insert, self.batch = warmup, samples_per_insert, batch
        self._least = math.ceil(batch / samples_per_insert) + 1  # less, and both sides could wait
        self._slack = slack
        self.stored = self.inserted = self.drawn = 0

    @property
    def slack(self) -> int:
        """Number of rows (env steps) that actors may insert ahead of the learner."""
        return max(self._slack() if callable(self._slack) else self._slack, self._least)

    def insert(self, rows: int) -> None:
        """Counts rows (env steps) that were inserted into replay."""
        warming = max(0, min(rows, self.warmup - self.stored))
        self.stored += rows
        self.inserted += rows - warming

    def sample(self, rows: int) -> None:
        """Counts rows (env steps) that were sampled from replay for a gradient step."""
        if rows <= 0:
            raise ProtocolError(f"a batch has at least one row, got {rows}")
        self.drawn += rows

    def skip_rest(self) -> None:
        """Does nothing: only an on-policy learner leaves out the rest of a rollout."""

    def ready(self) -> bool:
        """Returns whether the learner may sample a batch now."""
        allowed = self.drawn + self.batch <= self.samples_per_insert * self.inserted
        return allowed and self._sampleable()

    def may_insert(self) -> bool:
        """Returns whether actors may insert env steps into replay now.

        They may not while they are too far ahead of the learner.
        """
        return self.samples_per_insert * (self.inserted - self.slack) <= self.drawn

    @property
    def room(self) -> int:
        """Number of rows (env steps) that actors may still insert into replay before they wait."""
        warming = max(0, self.warmup - self.stored)
        ahead = self.inserted - self.drawn / self.samples_per_insert
        return max(0, warming + int(self.slack - ahead))

    @property
    def missing(self) -> int:
        """Number of rows (env steps) to insert before a batch may be sampled; at least 1."""
        warming = max(0, self.warmup - self.stored)
        due = math.ceil((self.drawn + self.batch) / self.samples_per_insert)
        return max(1, warming + due - self.inserted)

    @property
    def ratio(self) -> float:
        """Sampled rows (env steps) per inserted row so far; 0 before the first inserted row."""
        return self.drawn / self.inserted if self.inserted else 0.0

    def state(self) -> dict[str, int]:
        return {"stored": self.stored, "inserted": self.inserted, "drawn": self.drawn}

    def restore(self, state: dict[str, int]) -> None:
        self.stored, self.inserted = state["stored"], state["inserted"]
        self.drawn = state["drawn"]


def build_limiter(
    config: Config,
    sampleable: Callable[[], bool] = lambda: True,
    actors: Callable[[], int] | None = None,
) -> Limiter:
    """Builds the rate limiter (samples per insert) of a run from its config.

    The actors may be ahead of the learner by about two chunks each. A chunk is the `actor.chunk`
    environment steps that an actor plays before it checks again whether it may continue. `actors`
    returns the present number of actors, if it may differ from `actor.num`.
    """
    each = 2 * (config.actor.chunk + config.actor.envs)
    return Limiter(
        sampleable=sampleable,
        warmup=max(config.replay.learning_starts, config.replay.batch_size),
        batch=config.replay.batch_size * config.algo.learned,
        samples_per_insert=config.replay.samples_per_insert,
        slack=each * config.actor.num if actors is None else lambda: each * actors(),
    )
