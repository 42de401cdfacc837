"""Numbers that say how sure we are: the interquartile mean and bootstrap intervals.

Several runs of several tasks are strata, one array of scores for each task, and a draw takes runs
with replacement within each task (the stratified bootstrap of Agarwal et al. 2021):

    draws = redraw(strata, reps, rng)                     # once: all statistics see the same draws
    estimate(strata, draws, pooled(iqms))                 # over the runs of all tasks
    estimate(strata, draws, averaged(deviations))         # within each task, then their mean
    improvement(strata, others, reps, rng)                # P(X > Y)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.errors import ConfigError
from rookery.types import Floats, Rows

LEVEL = 0.95
Strata: TypeAlias = Sequence[Floats]  # for each task [n], its runs, or [R, n], drawn R times
Draws: TypeAlias = Sequence[Rows]  # for each task [R, n]: which of its runs
Each: TypeAlias = Callable[[Floats], Floats]  # [R, n] → [R]
Statistic: TypeAlias = Callable[[Strata], Floats]  # strata of [R, n] → [R]


class Interval(NamedTuple):
    """A statistic's likely range."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A statistic and its likely range, which one run alone does not have."""

    value: float
    low: float | None
    high: float | None


def iqm(x: Floats) -> float:
    """Returns the mean of the middle half: a quarter of the values, rounded down, goes at each end.

    Less moved by one lucky run than the mean, less wasteful than the median
    (Agarwal et al. 2021).
    """
    return float(iqms(_filled(x)))


def iqms(x: Floats) -> Floats:
    """Returns the interquartile mean of each row: [..., n] → [...]."""
    values, aside = np.sort(x, axis=-1), x.shape[-1] // 4
    means: Floats = values[..., aside : x.shape[-1] - aside].mean(axis=-1)
    return means


def medians(x: Floats) -> Floats:
    """Returns the median of each row."""
    found: Floats = np.median(x, axis=-1)
    return found


def means(x: Floats) -> Floats:
    """Returns the mean of each row."""
    found: Floats = x.mean(axis=-1)
    return found


def deviations(x: Floats) -> Floats:
    """Returns the standard deviation of each row, with n - 1 below; at least two values each."""
    found: Floats = x.std(axis=-1, ddof=1)
    return found


def ranges(x: Floats) -> Floats:
    """Returns the interquartile range of each row, quartiles interpolated linearly."""
    low, high = np.quantile(x, [0.25, 0.75], axis=-1)
    found: Floats = high - low
    return found


def pooled(each: Each) -> Statistic:
    """Makes a statistic of the runs of all tasks together."""
    return lambda strata: each(np.concatenate(strata, axis=-1))


def averaged(each: Each) -> Statistic:
    """Makes a statistic of the runs of each task; tasks weigh the same."""
    return lambda strata: np.mean([each(stratum) for stratum in strata], axis=0)


def redraw(strata: Strata, reps: int, rng: np.random.Generator) -> Draws:
    """Draws runs with replacement, as many as there are, within each task."""
    return [rng.integers(len(runs), size=(reps, len(runs))) for runs in strata]


def estimate(
    strata: Strata, draws: Draws, statistic: Statistic, *, level: float = LEVEL
) -> Estimate:
    """Returns a statistic with its percentile interval; none where a task has one run."""
    value = float(statistic([_filled(runs)[None] for runs in strata])[0])
    if min(map(len, strata)) < 2:
        return Estimate(value, None, None)
    drawn = [runs[picks] for runs, picks in zip(strata, draws, strict=True)]
    return Estimate(value, *_interval(statistic(drawn), level))


def improvement(
    x: Strata, y: Strata, reps: int, rng: np.random.Generator, *, level: float = LEVEL
) -> Estimate:
    """Returns P(X > Y): how likely a run of X beats one of Y on the same task, ties half.

    Mann and Whitney's U over the number of pairs, averaged over the tasks; runs of both sides are
    drawn anew, each on its own.
    """
    wins = [_wins(_filled(ours), _filled(theirs)) for ours, theirs in zip(x, y, strict=True)]
    value = float(np.mean([w.mean() for w in wins]))
    if min(map(len, [*x, *y])) < 2:
        return Estimate(value, None, None)
    found = np.mean([_redrawn_wins(w, reps, rng) for w in wins], axis=0)  # [R]
    return Estimate(value, *_interval(found, level))


def _wins(x: Floats, y: Floats) -> Floats:
    """Returns [n, m]: 1 where a run of X beats one of Y, a half where they are level."""
    wins: Floats = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    return wins


def _redrawn_wins(wins: Floats, reps: int, rng: np.random.Generator) -> Floats:
    """Returns [R] shares of wins. How often each run is drawn says all; pairs are not listed."""
    n, m = wins.shape
    ours = rng.multinomial(n, np.full(n, 1 / n), size=reps)  # [R, n]
    theirs = rng.multinomial(m, np.full(m, 1 / m), size=reps)  # [R, m]
    shares: Floats = ((ours @ wins) * theirs).sum(axis=1) / (n * m)
    return shares


def bootstrap_ci(
    x: Floats,
    statistic: Callable[[Floats], float],
    reps: int,
    rng: np.random.Generator,
    *,
    level: float = LEVEL,
) -> Interval:
    """Returns the percentile interval of `statistic` over `reps` draws with replacement."""
    values = _filled(x)
    picks = rng.integers(len(values), size=(reps, len(values)))  # [reps, n]
    return _interval(np.array([statistic(values[pick]) for pick in picks]), level)


def _interval(found: Floats, level: float) -> Interval:
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _filled(x: Floats) -> Floats:
    values: Floats = np.asarray(x, dtype=np.float64).ravel()
    if not len(values):
        raise ConfigError("a statistic needs at least one value, got none; add a run")
    return values
