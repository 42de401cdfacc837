"""Numbers that say how sure we are: the interquartile mean and bootstrap intervals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rookery.errors import ConfigError
from rookery.types import Floats


class Interval(NamedTuple):
    """A statistic's likely range."""

    low: float
    high: float


def iqm(x: Floats) -> float:
    """Returns the mean of the middle half: a quarter of the values, rounded down, goes at each end.

    Less moved by one lucky run than the mean, less wasteful than the median
    (Agarwal et al. 2021).
    """
    values = np.sort(_filled(x))
    aside = len(values) // 4
    return float(values[aside : len(values) - aside].mean())


def bootstrap_ci(
    x: Floats,
    statistic: Callable[[Floats], float],
    reps: int,
    rng: np.random.Generator,
    *,
    level: float = 0.95,
) -> Interval:
    """Returns the percentile interval of `statistic` over `reps` draws with replacement."""
    values = _filled(x)
    picks = rng.integers(len(values), size=(reps, len(values)))  # [reps, n]
    found = [statistic(values[pick]) for pick in picks]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _filled(x: Floats) -> Floats:
    values: Floats = np.asarray(x, dtype=np.float64).ravel()
    if not len(values):
        raise ConfigError("a statistic needs at least one value, got none; add a run")
    return values
