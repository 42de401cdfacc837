"""Rollouts: what the newest policy has just played, learned from a few times and then never again.

    rollouts.drain()                     # the rows of all actors' chunks; a used-up rollout goes
    while rollouts.left:                 # epochs x batches
        batch = rollouts.draw(64)        # rows in random order, each once in an epoch

To the loops it is a pool, and `Epochs` its limiter. Advantages are estimated once for a rollout
(Schulman et al. 2016), from the values that its actors wrote. Where a chunk ends in the middle of
an episode, its last row says what the policy expected of the state after it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit

from rookery.config.algorithms import RolloutConfig
from rookery.replay import fold
from rookery.replay.kept import Extent, Segments, Stretch
from rookery.replay.pool import Drained, Pool
from rookery.types import AHEAD, Array, Batch, Floats, Rows

ADVANTAGE, RETURN, VALUE = "advantage", "return", "value"  # extras that a drawn batch has as well


class Source(Protocol):
    """A replay elsewhere whose rows are brought here."""

    def drain(self) -> Drained: ...

    @property
    def extents(self) -> list[Extent]: ...

    def unsaved(self, saved: Sequence[int]) -> list[Stretch]: ...


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
        self._seen = [extent.committed for extent in source.extents] if source else []
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
        begin, steps = self.ring.committed, source.drain().steps
        for place, stretch in enumerate(source.unsaved(self._seen)):
            count = len(stretch.columns["end"])
            self._seen[place] = stretch.first + count
            if count:
                self.adopt(stretch.columns)
        return Drained(begin, self.ring.committed - begin, steps)

    @property
    def left(self) -> int:
        """Batches that may still be drawn of this rollout."""
        return self._batches * self.algo.epochs - self._drawn

    @property
    def _batches(self) -> int:
        """Batches of one epoch."""
        rows = self._estimated().rows.size
        return min(1, rows) if self.algo.whole else -(-rows // self.config.batch)

    def draw(self, batch: int, *, beta: float = 1.0) -> Batch:
        """Returns the epoch's next rows: fewer where it ends, all where a rollout is one batch."""
        made = self._estimated()
        if not self._order.size:
            self._order = self.rng.permutation(made.rows.size)
        size = made.rows.size if self.algo.whole else batch
        some, self._order = self._order[:size], self._order[size:]
        self._drawn += 1
        return self._batch(made, some)

    def _batch(self, made: Estimated, some: Rows) -> Batch:
        rows = made.rows[some]
        extras = fold.extras(self.ring, self.spec, rows)
        extras |= {
            ADVANTAGE: made.advantage[some],
            RETURN: made.returns[some],
            VALUE: fold.take(self.ring, "best", rows),
        }
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
            self._made = self._estimate(self._first, self.ring.committed)
        return self._made

    def _estimate(self, first: int, last: int) -> Estimated:
        columns, slots = self.ring.columns, self.ring.slots(first, last - first)
        lane = columns["actor"][slots] * np.int64(self.chains.envs) + columns["env"][slots]
        advantage, known = advantages(
            columns["reward"][slots] / np.float32(self.scale()),
            columns["best"][slots],
            columns[AHEAD][slots],
            columns["end"][slots],
            lane,
            gamma=self.gamma,
            gae_lambda=self.algo.gae_lambda,
        )
        order = np.lexsort((np.arange(lane.size), lane))
        order = order[known[order]]
        returns = advantage[order] + columns["best"][slots][order]
        return Estimated(first + order, advantage[order], returns)

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
    lane: Rows,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Floats, Array]:
    """Returns [N] generalised advantage estimates, and which rows have one.

    Rows stand in the order they were played; `lane` says in which environment. A final
    observation has none, nor has a row of which nobody knows how it went on.
    """
    out = np.zeros(reward.size, dtype=np.float32)
    known = np.zeros(reward.size, dtype=np.bool_)
    lanes = int(lane.max(initial=-1)) + 1
    _advantages(
        reward,
        value,
        ahead,
        end,
        lane,
        gamma,
        gamma * gae_lambda,
        np.full(lanes, np.nan),
        np.zeros(lanes),
        out,
        known,
    )
    return out, known


@njit(cache=True, nogil=True)
def _advantages(reward, value, ahead, end, lane, gamma, decay, following, carried, out, known):  # type: ignore[no-untyped-def]
    """Goes back in time; `following` is the value of a lane's next state, nan: not known."""
    for i in range(reward.size - 1, -1, -1):
        at = lane[i]
        if end[i] != 0:
            following[at] = 0.0 if end[i] == 1 else value[i]
            carried[at] = 0.0
            continue
        if not np.isnan(ahead[i]):  # the chunk ended here, and the next may have begun elsewhere
            following[at] = ahead[i]
            carried[at] = 0.0
        known[i] = not np.isnan(following[at])
        if known[i]:
            carried[at] = reward[i] + gamma * following[at] - value[i] + decay * carried[at]
            out[i] = carried[at]
        following[at] = value[i]
