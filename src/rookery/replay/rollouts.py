"""Rollouts: what the newest policy has just played, learned from a few times and then never again.

    rollouts.drain()                     # the rows of all actors' chunks; a used-up rollout goes
    while rollouts.left:                 # epochs x batches
        batch = rollouts.draw(64)        # rows in random order, each once in an epoch

To the loops it is a pool, and `Epochs` its limiter. Advantages are estimated once for a rollout
(Schulman et al. 2016), from the values that its actors wrote. Where a chunk ends in the middle of
an episode, its last row says what the policy expected of the state after it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit

from rookery.config.algorithms import RolloutConfig
from rookery.replay import fold
from rookery.replay.kept import Segments, Stretch
from rookery.replay.pool import Drained, Pool
from rookery.types import ADVANTAGE, AHEAD, RETURN, Array, Batch, Floats, Rows


class Source(Protocol):
    """A replay elsewhere whose rows are brought here."""

    def drain(self) -> Drained: ...

    def fetch(self) -> list[Stretch]:
        """Returns the rows that were drained last."""


class Estimated(NamedTuple):
    """What is learned from the rows of a rollout."""

    rows: Rows  # [N] by actor and environment, so that their order is the same on every engine
    advantage: Floats  # [N] float32
    returns: Floats  # [N] float32


class Rollouts(Pool):
    """A pool that holds one rollout, and the one before it for its frames."""

    algo: RolloutConfig

    def __init__(self, *args: Any, source: Source | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.scale: Callable[[], float] = lambda: 1.0  # what rewards are divided by
        self._source = source
        self._first = 0  # the rollout's first row
        self._drawn = 0  # batches drawn of it
        self._order = np.empty(0, dtype=np.int64)  # of the present epoch, what is left of it
        self._made: Estimated | None = None

    def drain(self) -> Drained:
        """Takes in rows; the first ones after a rollout is used up begin the next."""
        if self.left == 0:
            self._first, self._drawn = self.ring.committed, 0
        self._made = None
        return super().drain() if self._source is None else self._bring(self._source)

    def _bring(self, source: Source) -> Drained:
        begin, drained = self.ring.committed, source.drain()
        for stretch in source.fetch() if drained.count else ():
            self.adopt(stretch.columns)
        return Drained(begin, self.ring.committed - begin, drained.steps)

    @property
    def left(self) -> int:
        """Batches that may still be drawn of this rollout."""
        return self._batches * self.algo.epochs - self._drawn

    @property
    def _batches(self) -> int:
        """Batches of one epoch: as many as come nearest to the wanted size."""
        rows = self._estimated().rows.size
        return (
            min(1, rows) if self.algo.whole else min(rows, max(1, round(rows / self.config.batch)))
        )

    def draw(self, batch: int, *, beta: float = 1.0) -> Batch:
        """Returns the epoch's next rows. Its batches are of one size, near the wanted one.

        A chunk may have a few rows more than it was asked for; a last batch of those few would
        have advantages that are normalised among themselves.
        """
        made = self._estimated()
        if not self._order.size:
            self._order = self.rng.permutation(made.rows.size)
        size = -(-self._order.size // (self._batches - self._drawn % self._batches))
        some, self._order = self._order[:size], self._order[size:]
        self._drawn += 1
        return self._batch(made, some)

    def _batch(self, made: Estimated, some: Rows) -> Batch:
        rows = made.rows[some]
        extras = fold.extras(self.ring, self.spec, rows)
        extras |= {ADVANTAGE: made.advantage[some], RETURN: made.returns[some]}
        return Batch(
            obs=fold.observations(self.ring, self.spec, rows, self.ring.oldest),
            action=fold.take(self.ring, "action", rows),
            reward=fold.take(self.ring, "reward", rows),
            discount=None,
            next_obs=None,
            weight=np.ones(rows.size, dtype=np.float32),
            rows=rows,
            extras=extras,
        )

    def rerank(self, rows: Rows, td_error: Array) -> None:
        """Does nothing: no row is preferred."""

    def _estimated(self) -> Estimated:
        if self._made is None:
            first = max(self._first, self.ring.oldest)  # hosts that join may bring more than fits
            self._made = self._estimate(first, self.ring.committed)
        return self._made

    def _estimate(self, first: int, last: int) -> Estimated:
        columns, slots = self.ring.columns, self.ring.slots(first, last - first)
        value = columns["best"][slots]
        advantage, known = advantages(
            columns["reward"][slots] / np.float32(self.scale()),
            value,
            columns[AHEAD][slots],
            columns["end"][slots],
            columns["next"][slots],
            gamma=self.gamma,
            gae_lambda=self.algo.gae_lambda,
        )
        lane = columns["actor"][slots] * np.int64(self.chains.envs) + columns["env"][slots]
        order = np.argsort(lane, kind="stable")
        order = order[known[order]]
        return Estimated(first + order, advantage[order], advantage[order] + value[order])

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        numbers, arrays = super().state()
        numbers["rollout"] = {"first": self._first, "drawn": self._drawn}
        return numbers, arrays | {"order": self._order.copy()}

    def restore(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, Array], segments: Segments
    ) -> None:
        super().restore(numbers, arrays, segments)
        self._first, self._drawn = numbers["rollout"]["first"], numbers["rollout"]["drawn"]
        self._order, self._made = arrays["order"].copy(), None


class Epochs:
    """Allows a few epochs over each rollout: the limiter of algorithms that learn from them."""

    def __init__(self, rollouts: Rollouts):
        self._rollouts = rollouts
        self.stored = self.drawn = 0

    def insert(self, rows: int) -> None:
        self.stored += rows

    def draw(self, rows: int) -> None:
        self.drawn += rows

    def ready(self) -> bool:
        """May a batch be drawn now?"""
        return self._rollouts.left > 0

    def may_insert(self) -> bool:
        """May an actor go on? Only where everything has been learned from."""
        return not self.ready()

    @property
    def room(self) -> int:
        """Rows that may come before actors have to wait."""
        return 0 if self.ready() else self._rollouts.ring.capacity

    @property
    def missing(self) -> int:
        """Rows that have to come before a batch may be drawn: whoever has rollouts knows."""
        return 1

    @property
    def ratio(self) -> float:
        """Rows drawn for each row inserted so far; 0 before the first."""
        return self.drawn / self.stored if self.stored else 0.0

    def state(self) -> dict[str, int]:
        return {"stored": self.stored, "drawn": self.drawn}

    def restore(self, state: dict[str, int]) -> None:
        self.stored, self.drawn = state["stored"], state["drawn"]


def advantages(
    reward: Floats,
    value: Floats,
    ahead: Floats,
    end: Array,
    following: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Floats, Array]:
    """Returns [N] generalised advantage estimates, and which rows have one.

    `following` is the distance to the row that came next in the same episode, 0 where there is
    none. A final observation has no advantage, nor has a row of which nobody knows how it went on.
    """
    out = np.zeros(reward.size, dtype=np.float32)
    known = np.zeros(reward.size, dtype=np.bool_)
    decay = gamma * gae_lambda
    _advantages(reward, value, ahead, end, following, gamma, decay, out, known)
    return out, known


@njit(cache=True, nogil=True)
def _advantages(reward, value, ahead, end, following, gamma, decay, out, known):  # type: ignore[no-untyped-def]
    """Goes back in time, so that what a row leads to is known before it."""
    for i in range(reward.size - 1, -1, -1):
        if end[i] != 0:
            continue
        later = i + following[i]
        carried = 0.0
        if i < later < reward.size:
            expected = 0.0 if end[later] == 1 else value[later]
            carried = out[later]
        else:
            expected = ahead[i]  # the chunk ends here; nan where its actor was lost
        known[i] = not np.isnan(expected)
        if known[i]:
            out[i] = reward[i] + gamma * expected - value[i] + decay * carried
