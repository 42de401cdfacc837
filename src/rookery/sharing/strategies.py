"""Strategies: where the rows of a batch come from when runs share.

`cross_sample_ratio` r is the share of each batch's rows that comes from the *pool*; the rest is a
run's own. What the pool is, a strategy says: the weight of each buffer in it, and which part of a
buffer counts.

    self_heavy    the other runs, all alike          newest        the last fifth of every buffer
    uniform       every buffer alike, own included   local_only    nothing
    weighted      every buffer by its filled rows    adaptive      the other runs, by what they help

r is kept exactly over time: a batch that cannot hold r x B rows takes the next lower or higher
number, at random, so that the mean is right.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rookery.config.schema import Strategy
from rookery.types import Floats, Rows

NEWEST = 0.2  # of a buffer's filled rows


class Part(NamedTuple):
    """What a strategy makes of the buffers."""

    weights: Floats  # as the sizes it was made from; all 0: nothing is drawn from the pool
    newest: float = 1.0  # of each buffer's filled rows, the most recent ones


def _others(own: int, sizes: Rows) -> Part:
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = 0.0
    return Part(weights)


def _uniform(own: int, sizes: Rows) -> Part:
    """However many parts a run's own replay has, they are one buffer."""
    weights = (sizes > 0).astype(np.float64)
    weights[:own] = sizes[:own] / max(1, int(sizes[:own].sum()))
    return Part(weights)


def _weighted(own: int, sizes: Rows) -> Part:
    return Part(sizes.astype(np.float64))


def _newest(own: int, sizes: Rows) -> Part:
    """Every recent row is as likely as any other, whichever buffer it is in."""
    return Part(np.ceil(NEWEST * sizes), NEWEST)


def _local_only(own: int, sizes: Rows) -> Part:
    return Part(np.zeros(sizes.size))


# Called with the filled rows of each buffer, of which the first `own` are the run's own.
STRATEGIES: dict[Strategy, Callable[[int, Rows], Part]] = {
    Strategy.SELF_HEAVY: _others,
    Strategy.UNIFORM: _uniform,
    Strategy.WEIGHTED: _weighted,
    Strategy.NEWEST: _newest,
    Strategy.LOCAL_ONLY: _local_only,
    Strategy.ADAPTIVE: _others,  # times what `adaptive.py` finds out
}
