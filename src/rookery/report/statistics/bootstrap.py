"""Statistics with confidence intervals: the interquartile mean and the stratified bootstrap.

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

from rookery.types import Floats, Rows

LEVEL = 0.95
Strata: TypeAlias = Sequence[Floats]  # for each task [n], its runs, or [R, n], drawn R times
Draws: TypeAlias = Sequence[Rows]  # for each task [R, n]: which of its runs
Each: TypeAlias = Callable[[Floats], Floats]  # [R, n] → [R]
Statistic: TypeAlias = Callable[[Strata], Floats]  # strata of [R, n] → [R]


class Estimate(NamedTuple):
    """A statistic with its 95 % confidence interval; a single run has no interval."""

    value: float
    low: float | None = None
    high: float | None = None


def iqms(x: Floats) -> Floats:
    """Returns the interquartile mean of each row: [..., n] → [...].

    It is the mean of the middle half: a quarter of the values, rounded down, goes at each end. Less
    moved by one lucky run than the mean, less wasteful than the median (Agarwal et al. 2021).
    """
    values, aside = np.sort(x, axis=-1), x.shape[-1] // 4
    return np.asarray(values[..., aside : x.shape[-1] - aside].mean(axis=-1))


def ranges(x: Floats) -> Floats:
    """Returns the interquartile range of each row, quartiles interpolated linearly."""
    low, high = np.quantile(x, [0.25, 0.75], axis=-1)
    return np.asarray(high - low)


def medians(x: Floats) -> Floats:
    return np.asarray(np.median(x, axis=-1))


def means(x: Floats) -> Floats:
    return np.asarray(x.mean(axis=-1))


def deviations(x: Floats) -> Floats:
    """Returns the standard deviation of each row, with n - 1 below; at least two values each."""
    return np.asarray(x.std(axis=-1, ddof=1))


def pooled(each: Each) -> Statistic:
    """Returns a statistic over the runs of all tasks together."""
    return lambda strata: each(np.concatenate(strata, axis=-1))


def averaged(each: Each) -> Statistic:
    """Returns a statistic that is computed for each task and averaged; tasks weigh the same."""
    return lambda strata: np.mean([each(stratum) for stratum in strata], axis=0)


def redraw(strata: Strata, reps: int, rng: np.random.Generator) -> Draws:
    """Draws runs with replacement, as many as there are, within each task."""
    return [rng.integers(len(runs), size=(reps, len(runs))) for runs in strata]


def estimate(strata: Strata, draws: Draws, statistic: Statistic) -> Estimate:
    """Returns a statistic with its percentile interval; none where a task has one run."""
    value = float(statistic([runs[None] for runs in strata])[0])
    if min(map(len, strata)) < 2:
        return Estimate(value)
    drawn = [runs[picks] for runs, picks in zip(strata, draws, strict=True)]
    return _estimate(value, statistic(drawn))


def improvement(x: Strata, y: Strata, reps: int, rng: np.random.Generator) -> Estimate:
    """Returns P(X > Y): how likely a run of X beats one of Y on the same task, ties half.

    Mann and Whitney's U over the number of pairs, averaged over the tasks; runs of both sides are
    drawn anew, each on its own.
    """
    wins = [
        (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        for ours, theirs in zip(x, y, strict=True)
    ]  # [n, m] for each task
    value = float(np.mean([w.mean() for w in wins]))
    if min(map(len, [*x, *y])) < 2:
        return Estimate(value)
    return _estimate(value, np.mean([_redrawn_wins(w, reps, rng) for w in wins], axis=0))


def _redrawn_wins(wins: Floats, reps: int, rng: np.random.Generator) -> Floats:
    """Returns [R] shares of wins, from how often each run is drawn, without listing all pairs."""
    n, m = wins.shape
    ours = rng.multinomial(n, np.full(n, 1 / n), size=reps)  # [R, n]
    theirs = rng.multinomial(m, np.full(m, 1 / m), size=reps)  # [R, m]
    shares: Floats = ((ours @ wins) * theirs).sum(axis=1) / (n * m)
    return shares


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))
