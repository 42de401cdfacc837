"""Rollout buffer for on-policy algorithms (A2C, PPO): steps are used for some epochs, then dropped.

    rollouts.insert()                    # rows of all actors; a rollout that is used up is dropped
    while rollouts.left:                 # epochs x minibatches
        batch = rollouts.sample(64)      # rows in random order, each once per epoch

A row is one env step. `Rollouts` implements `Replay`; `RolloutLimiter` decides when it may be
sampled. Advantages (GAE, Schulman et al. 2016) are estimated once for each rollout, from values
that the actors stored. If an actor's rows end in the middle of an episode, the last row holds the
value of the next state.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numba import njit

from rookery.config.algorithms import RolloutConfig
from rookery.replay import fold
from rookery.replay.buffer import LocalReplay
from rookery.replay.replay import Inserted
from rookery.replay.saved_rows import RowBlock, Segments
from rookery.types import (
    ADVANTAGE,
    AHEAD,
    RETURN,
    Array,
    ArrayBatch,
    Batch,
    Floats,
    Json,
    Rows,
    SavedState,
)

if TYPE_CHECKING:
    from torch import Tensor


class RowSource(Protocol):
    """Interface of replay on other hosts, from which the learner copies steps to its rollouts."""

    def insert(self) -> Inserted: ...

    def fetch(self) -> list[RowBlock]:
        """Returns copies of the rows (env steps) that the last `insert` added.

        There is one block of rows for each shard (the part of the replay on one host).
        """


class Estimated(NamedTuple):
    """Advantages and value targets of the rows (env steps) of a rollout."""

    rows: Rows  # [N] by actor and environment, so that their order is the same on every engine
    advantage: Floats  # [N] float32
    returns: Floats  # [N] float32


class Rollouts(LocalReplay):
    """On-policy rollout buffer: holds one rollout, and the one before it for frame stacks."""

    algo: RolloutConfig
    source: RowSource | None = None  # of its rows, where actors play on other hosts
    scale: Callable[[Floats], Floats] | None = None  # normalises rewards
    _first = 0  # the rollout's first row
    _drawn = 0  # batches sampled from it
    _order: Rows = np.empty(0, dtype=np.int64)  # of the present epoch, what is left of it
    _made: Estimated | None = None

    def insert(self) -> Inserted:
        """Inserts new env steps of the actors; starts a new rollout if the last one is used up."""
        if self.left == 0:
            self._first, self._drawn = self.ring.committed, 0
        self._made = None
        return super().insert() if self.source is None else self._bring(self.source)

    def _bring(self, source: RowSource) -> Inserted:
        begin, inserted = self.ring.committed, source.insert()
        for block in source.fetch() if inserted.count else ():
            self.adopt(block.columns)
        return Inserted(begin, self.ring.committed - begin, inserted.steps)

    @property
    def left(self) -> int:
        """Number of minibatches that may still be sampled from the present rollout."""
        return self._batches * self.algo.epochs - self._drawn

    @property
    def _batches(self) -> int:
        """Number of minibatches per epoch: env steps of the rollout / `batch_size`, rounded.

        It is 1 for algorithms such as A2C, which learn from the whole rollout at once.
        """
        rows = self._estimated().rows.size
        batches = 1 if self.algo.whole else max(1, round(rows / self.config.batch_size))
        return min(rows, batches)

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrayBatch:
        """Returns the next minibatch of the epoch; all minibatches have about the same size.

        The size is near `replay.batch_size`, or the whole rollout for algorithms such as A2C;
        `batch` is ignored. A small remainder is avoided because advantages are normalised within
        each minibatch.
        """
        made = self._estimated()
        if not self._order.size:
            self._order = self.rng.permutation(made.rows.size)
        size = -(-self._order.size // (self._batches - self._drawn % self._batches))
        some, self._order = self._order[:size], self._order[size:]
        self._drawn += 1
        return self._batch(made, some)

    def _batch(self, made: Estimated, some: Rows) -> ArrayBatch:
        rows = made.rows[some]
        extras = fold.extras(self.ring, self.spec, rows)
        extras |= {ADVANTAGE: made.advantage[some], RETURN: made.returns[some]}
        obs = fold.observations(self.ring, self.spec, rows, self.ring.oldest)
        action, reward = (fold.take(self.ring, name, rows) for name in ("action", "reward"))
        weight = np.ones(rows.size, dtype=np.float32)
        return Batch(obs, action, reward, None, None, weight, rows, extras=extras)

    def skip_rest(self) -> None:
        """Leaves out the minibatches that are left of the present rollout."""
        self._drawn += self.left
        self._order = self._order[:0]

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Does nothing: rollouts are sampled without priorities."""

    def _estimated(self) -> Estimated:
        if self._made is None:
            first = max(self._first, self.ring.oldest)  # hosts that join may bring more than fits
            self._made = self._estimate(first, self.ring.committed)
        return self._made

    def _estimate(self, first: int, last: int) -> Estimated:
        columns, slots = self.ring.columns, self.ring.slots(first, last - first)
        names = ("reward", "best", AHEAD, "end", "next")
        reward, value, ahead, end, following = (columns[name][slots] for name in names)
        reward = reward if self.scale is None else self.scale(reward)
        gamma, gae_lambda = self.algo.gamma, self.algo.gae_lambda
        advantage, known = advantages(
            reward, value, ahead, end, following, gamma=gamma, gae_lambda=gae_lambda
        )
        lane = columns["actor"][slots] * np.int64(self.chains.envs) + columns["env"][slots]
        order = np.argsort(lane, kind="stable")
        order = order[known[order]]
        return Estimated(first + order, advantage[order], advantage[order] + value[order])

    def state(self) -> tuple[dict[str, Json], dict[str, Array]]:
        numbers, arrays = super().state()
        numbers["rollout"] = {"first": self._first, "drawn": self._drawn}
        return numbers, arrays | {"order": self._order.copy()}

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array], segments: Segments) -> None:
        super().restore(numbers, arrays, segments)
        self._first, self._drawn = numbers["rollout"]["first"], numbers["rollout"]["drawn"]
        self._order, self._made = arrays["order"].copy(), None


class RolloutLimiter:
    """Rate limiter of on-policy algorithms: actors and learner take turns.

    Actors collect a rollout, then wait until the learner has done all its epochs on it.
    """

    def __init__(self, rollouts: Rollouts):
        self._rollouts = rollouts
        self.stored = self.drawn = 0

    def insert(self, rows: int) -> None:
        self.stored += rows

    def sample(self, rows: int) -> None:
        self.drawn += rows

    def skip_rest(self) -> None:
        self._rollouts.skip_rest()

    def ready(self) -> bool:
        """Returns whether the learner may sample: until all epochs of the rollout are done."""
        return self._rollouts.left > 0

    def may_insert(self) -> bool:
        """Returns whether actors may step: only if all epochs of the last rollout are done."""
        return not self.ready()

    @property
    def room(self) -> int:
        """Number of rows (env steps) that actors may insert before they have to wait.

        It is 0 while the learner has epochs left, then the capacity of the rollout buffer.
        """
        return 0 if self.ready() else self._rollouts.ring.capacity

    @property
    def missing(self) -> int:
        """Smallest number of rows (env steps) to insert before a batch may be sampled; always 1.

        Whatever number of rows the actors have inserted counts as a rollout.
        """
        return 1

    @property
    def ratio(self) -> float:
        """Sampled rows (env steps) per inserted row so far; 0 before the first inserted row."""
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
    """Returns generalised advantage estimates (GAE) of N rows, and a mask of rows that have one.

    A row is one env step or the final observation of an episode. `following` [N] is the distance to
    the next row of the same episode, or 0 if that row is not stored. Where it is 0, `ahead` [N] is
    the value of the next state, from which the estimate is bootstrapped. Final observations, and
    rows whose next state is unknown, have no advantage.
    """
    out = np.zeros(reward.size, dtype=np.float32)
    known = np.zeros(reward.size, dtype=np.bool_)
    decay = gamma * gae_lambda
    _advantages(reward, value, ahead, end, following, gamma, decay, out, known)
    return out, known


@njit(cache=True, nogil=True)
def _advantages(reward, value, ahead, end, following, gamma, decay, out, known):  # type: ignore[no-untyped-def]
    """Computes GAE backwards in time, since each env step needs the advantage of its next step."""
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
