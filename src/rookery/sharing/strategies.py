"""Sharing strategies: how often each replay buffer that runs share is sampled.

A pool is the set of replay buffers that several runs share. `cross_sample_ratio` r is the share of
each batch of B env steps that is sampled from the pool; the other steps come from the run's own
replay. A strategy gives each buffer of the pool a weight, and says which part of a buffer may be
sampled.

    self_heavy    equal weights for the other runs' buffers, 0 for the run's own
    uniform       equal weights for every buffer, the run's own included
    weighted      every buffer by its number of stored steps
    newest        the newest fifth of every buffer
    local_only    nothing is sampled from the pool

If r x B is not a whole number, it is rounded up or down at random so that the mean is r x B.

On a cluster only the learner knows the buffers of all hosts. It applies the strategy to all of
them, and sends each host the weights of the buffers there (`AssignedWeights`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rookery.config.schema import Strategy
from rookery.types import Floats, Rows

NEWEST = 0.2  # share of a buffer's filled rows


class BorrowPlan(NamedTuple):
    """Sampling weights of the replay buffers of a pool, and the share of a batch from the pool.

    A pool is the set of replay buffers that several runs share.
    """

    weights: Floats  # [buffers]; all 0: nothing is sampled from the pool
    newest: float = 1.0  # share of a buffer's rows that may be sampled, the most recent ones
    share: float = 1.0  # share of a batch that comes from the pool

    @property
    def shares(self) -> Floats:
        """Probability of each buffer that an env step of the pool is sampled from it."""
        shares: Floats = self.weights / self.weights.sum()
        return shares


class AssignedWeights(NamedTuple):
    """Weights of the replay buffers on one host of a cluster, which the learner has computed."""

    weights: Mapping[str, float]  # by buffer id; other buffers have weight 0
    newest: float  # share of a buffer's rows that may be sampled, the most recent ones

    def plan(self, names: Sequence[str], sizes: Rows) -> BorrowPlan:
        """Returns the plan for buffers with the ids `names`; empty buffers get weight 0."""
        assigned = np.array([self.weights.get(name, 0.0) for name in names])
        return BorrowPlan(np.where(sizes > 0, assigned, 0.0), self.newest)


def strategy_plan(strategy: Strategy, ratio: float, own: int, sizes: Rows) -> BorrowPlan:
    """Returns how often a strategy samples from each replay buffer of a pool.

    `ratio` is the share of a batch from the pool, and `sizes` are the numbers of stored env steps
    of its buffers. The first `own` of these belong to the run that samples.
    """
    newest = NEWEST if strategy is Strategy.NEWEST else 1.0
    return BorrowPlan(_WEIGHTS[strategy](own, sizes), newest, ratio)


def uses_pool(strategy: Strategy, ratio: float) -> bool:
    """Returns whether batches may hold env steps that are sampled from the pool."""
    return ratio > 0 and strategy is not Strategy.LOCAL_ONLY


def rounded(rows: float, rng: np.random.Generator) -> int:
    """Rounds a number of env steps up or down at random, so that the mean is exact."""
    return int(rows) + int(rng.random() < rows - int(rows))


def _others(own: int, sizes: Rows) -> Floats:
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = 0.0
    return weights


def _uniform(own: int, sizes: Rows) -> Floats:
    """Gives all shared replay buffers equal weights.

    The first `own` buffers are the run's own shards (parts of its replay); they count as one
    buffer.
    """
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = sizes[:own] / max(1, int(sizes[:own].sum()))
    return weights


def _weighted(own: int, sizes: Rows) -> Floats:
    return sizes.astype(np.float64)


def _newest(own: int, sizes: Rows) -> Floats:
    """Weighs each shared replay buffer by the size of its newest fifth, which alone is sampled."""
    weights: Floats = np.ceil(NEWEST * sizes)
    return weights


def _local_only(own: int, sizes: Rows) -> Floats:
    return np.zeros(sizes.size)


# Arguments: how many of the buffers, the first ones, are the run's own; filled rows of each.
_WEIGHTS: dict[Strategy, Callable[[int, Rows], Floats]] = {
    Strategy.SELF_HEAVY: _others,
    Strategy.UNIFORM: _uniform,
    Strategy.WEIGHTED: _weighted,
    Strategy.NEWEST: _newest,
    Strategy.LOCAL_ONLY: _local_only,
}
