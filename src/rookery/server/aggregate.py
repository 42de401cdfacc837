"""Many updates become one: a row of the table each.

    update = aggregate(Aggregation.MEDIAN, updates, weights)   # [K, P], [K] → [P]

`average`, `sum` and the weighted ones do whatever a single liar wants, if it lies loudly enough.
The last three do not, up to so many liars:

| rule | liars of K |
|---|---|
| median, of each coordinate (Yin et al. 2018) | fewer than half |
| trimmed mean, of each coordinate (the same) | `trimmed`: `trim` x K rounded up, or `byzantine` |
| Krum (Blanchard et al. 2017) | f, where K is 2f + 3 or more |
"""

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from rookery.errors import ProtocolError
from rookery.types import Floats


class Aggregation(StrEnum):
    """How K updates become one."""

    AVERAGE = "average"
    SUM = "sum"
    WEIGHTED = "weighted"  # by what workers say of themselves
    FEDERATED = "federated"  # by their number of samples, McMahan et al. 2017
    MEDIAN = "median"
    TRIMMED_MEAN = "trimmed_mean"
    KRUM = "krum"


ROBUST = frozenset({Aggregation.MEDIAN, Aggregation.TRIMMED_MEAN, Aggregation.KRUM})
WEIGHTED = frozenset({Aggregation.WEIGHTED, Aggregation.FEDERATED})


class Liars(NamedTuple):
    """What a robust rule reckons with."""

    trim: float = 0.1  # share cut off at each end, rounded up
    byzantine: int = 0  # liars among the K; 0: as many as the rule can bear


Rule = Callable[[Floats, Floats, Liars], Floats]


def aggregate(
    method: Aggregation, updates: Floats, weights: Floats, liars: Liars | None = None
) -> Floats:
    """Returns one [P] update of K, in the dtype of `updates` [K, P]; `weights` is [K].

    Computed in double precision: the result of a single update is that update. A sum may
    overflow to infinity, which is the caller's to look for.
    """
    if len(updates) == 0:
        raise ProtocolError("there is no update to aggregate; push one first")
    with np.errstate(over="ignore"):
        found = RULES[method](updates, weights, liars or Liars())
        return found.astype(updates.dtype)


def least(method: Aggregation, byzantine: int) -> int:
    """Returns how many workers must have pushed before a rule can tell who lies.

    A majority must be honest, and Krum needs 2f + 3 (Blanchard et al. 2017, proposition 1).
    """
    if method not in ROBUST:
        return 1
    return 2 * byzantine + 3 if method is Aggregation.KRUM else max(3, 2 * byzantine + 1)


def _average(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    return np.asarray(updates.mean(axis=0, dtype=np.float64))


def _sum(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    return np.asarray(updates.sum(axis=0, dtype=np.float64))


def _weighted(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    """Where all weights are 0 nobody has a say, and the update is 0."""
    total = weights.sum(dtype=np.float64)
    shares = weights / total if total > 0 else np.zeros(len(weights))
    found = np.zeros(updates.shape[1])
    for share, update in zip(shares, updates, strict=True):  # no [K, P] of doubles
        found += share * update.astype(np.float64)
    return found


def _median(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    return np.asarray(np.median(updates.astype(np.float64), axis=0))


def _trimmed_mean(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    """Leaves out the largest and the smallest of each coordinate."""
    cut = trimmed(len(updates), liars)
    ordered = np.sort(updates, axis=0)[cut : len(updates) - cut]
    return np.asarray(ordered.mean(axis=0, dtype=np.float64))


def trimmed(count: int, liars: Liars) -> int:
    """Returns how many of `count` are cut off at each end; at least one is left."""
    share = math.ceil(liars.trim * count - 1e-9)  # 0.1 * 30 is a little more than 3
    return min(max(share, liars.byzantine), (count - 1) // 2)


def _krum(updates: Floats, weights: Floats, liars: Liars) -> Floats:
    """Takes the update that is nearest to its K - f - 2 nearest others."""
    count = len(updates)
    byzantine = liars.byzantine or max(0, (count - 3) // 2)
    near = np.sort(_distances(updates), axis=1)[:, 1:]  # without the one to itself
    scores = near[:, : max(1, count - byzantine - 2)].sum(axis=1)
    return np.asarray(updates[int(np.argmin(scores))], np.float64)


def _distances(updates: Floats) -> Floats:
    """Returns the [K, K] squared distances; their own are -1, which sorts first."""
    count = len(updates)
    found = np.full((count, count), -1.0)
    for i in range(count):
        for j in range(i):
            apart = updates[i].astype(np.float64) - updates[j]
            found[i, j] = found[j, i] = apart @ apart
    return found


RULES: Mapping[Aggregation, Rule] = {
    Aggregation.AVERAGE: _average,
    Aggregation.SUM: _sum,
    Aggregation.WEIGHTED: _weighted,
    Aggregation.FEDERATED: _weighted,
    Aggregation.MEDIAN: _median,
    Aggregation.TRIMMED_MEAN: _trimmed_mean,
    Aggregation.KRUM: _krum,
}
