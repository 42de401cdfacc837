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
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rookery.config.schema import Strategy
from rookery.types import Floats, Rows

NEWEST = 0.2  # share of a buffer's filled rows


class PoolWeights(NamedTuple):
    """Weights that a sharing strategy gives the replay buffers of a pool (shared by runs)."""

    weights: Floats  # [buffers]; all 0: nothing is sampled from the pool
    newest: float = 1.0  # share of a buffer's rows that may be sampled, the most recent ones


def _others(own: int, sizes: Rows) -> PoolWeights:
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = 0.0
    return PoolWeights(weights)


def _uniform(own: int, sizes: Rows) -> PoolWeights:
    """Gives all shared replay buffers equal weights.

    The first `own` buffers are the run's own shards (parts of its replay); they count as one
    buffer.
    """
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = sizes[:own] / max(1, int(sizes[:own].sum()))
    return PoolWeights(weights)


def _weighted(own: int, sizes: Rows) -> PoolWeights:
    return PoolWeights(sizes.astype(np.float64))


def _newest(own: int, sizes: Rows) -> PoolWeights:
    """Weighs each shared replay buffer by the size of its newest fifth.

    Only this fifth, the most recent env steps, is sampled.
    """
    return PoolWeights(np.ceil(NEWEST * sizes), NEWEST)


def _local_only(own: int, sizes: Rows) -> PoolWeights:
    return PoolWeights(np.zeros(sizes.size))


# Arguments: how many of the buffers, the first ones, are the run's own; filled rows of each.
STRATEGIES: dict[Strategy, Callable[[int, Rows], PoolWeights]] = {
    Strategy.SELF_HEAVY: _others,
    Strategy.UNIFORM: _uniform,
    Strategy.WEIGHTED: _weighted,
    Strategy.NEWEST: _newest,
    Strategy.LOCAL_ONLY: _local_only,
}
