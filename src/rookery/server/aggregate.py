"""Aggregation: combines the updates of several workers into one.

    gathered, pending = gather(Aggregation.MEDIAN, Liars()), [Pending("a", weight)]
    gathered.add(update, weight)     # [P]
    gathered.combined(pending)       # [P]

With `average`, `sum` and the weighted rules one malicious worker can decide the result. The robust
rules tolerate so many of K workers, and need all updates one by one; the others keep a running sum:

| rule | malicious workers of K |
|---|---|
| median, of each coordinate (Yin et al. 2018) | fewer than half |
| trimmed mean, of each coordinate (the same) | `trimmed`: `trim` x K rounded up, or `byzantine` |
| Krum (Blanchard et al. 2017) | f, where K is 2f + 3 or more |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rookery.types import Array, Floats

BLOCK = 1 << 16  # entries of all votes that are compared at once, at least
Doubles: TypeAlias = npt.NDArray[np.float64]


class Aggregation(StrEnum):
    """The rule that combines K updates into one."""

    AVERAGE = "average"
    SUM = "sum"
    WEIGHTED = "weighted"  # by what workers report of themselves
    FEDERATED = "federated"  # by their number of samples, McMahan et al. 2017
    MEDIAN = "median"
    TRIMMED_MEAN = "trimmed_mean"
    KRUM = "krum"


class Liars(NamedTuple):
    """The faulty or malicious (Byzantine) workers that a robust rule tolerates."""

    trim: float = 0.1  # share cut off at each end, rounded up
    byzantine: int = 0  # liars among the K; 0: as many as the rule can bear


class Pending(NamedTuple):
    """An accepted update that has not been applied yet; its values are in a sum, or among votes."""

    worker: str
    weight: float


class RunningSum:
    """The updates of a round as one sum, in double precision: a hundred take no more than one."""

    def __init__(self, method: Aggregation):
        self.method = method
        self.total: Doubles | None = None  # [P]; None: nothing was added

    @property
    def nbytes(self) -> int:
        return 0 if self.total is None else self.total.nbytes

    def add(self, update: Floats, weight: float) -> None:
        share = weight if self.method in WEIGHTED else 1.0
        scaled = update if share == 1.0 else np.multiply(update, share, dtype=np.float64)
        if self.total is None:
            self.total = np.array(scaled, np.float64)
        else:
            self.total += scaled

    def combined(self, pending: Sequence[Pending]) -> Floats:
        """Returns the [P] update of all that was added; a sum may overflow to infinity.

        Where all weights are 0 no worker counts, and the update is 0.
        """
        assert self.total is not None, "there is no update of nothing"
        weighted = self.method in WEIGHTED
        weight = sum(each.weight for each in pending) if weighted else len(pending)
        divisor = 1.0 if self.method is Aggregation.SUM else weight or 1.0
        with np.errstate(over="ignore"):
            return (self.total / divisor).astype(np.float32)

    def state(self) -> dict[str, Array]:
        """Returns the arrays that are saved in a checkpoint."""
        return {} if self.total is None else {SUM: self.total}


class Votes:
    """The updates of a round, kept one by one for a robust rule, which compares them."""

    def __init__(self, method: Aggregation, liars: Liars):
        self.method, self.liars = method, liars
        self._updates: list[Floats] = []

    @property
    def nbytes(self) -> int:
        return sum(update.nbytes for update in self._updates)

    def add(self, update: Floats, weight: float) -> None:
        # a view would keep a whole journal in memory
        self._updates.append(update if update.base is None else update.copy())

    def combined(self, pending: Sequence[Pending]) -> Floats:
        """Returns the [P] aggregate; each worker counts once, with the mean of its updates."""
        pushed: dict[str, list[Floats]] = {}
        for each, update in zip(pending, self._updates, strict=True):
            pushed.setdefault(each.worker, []).append(update)
        size = len(self._updates[0])
        found = np.empty(size, np.float32)
        # Krum compares whole updates, the others each coordinate by itself
        blocks = 1 if self.method is Aggregation.KRUM else max(1, size // BLOCK)
        for start, stop in pairwise(size * i // blocks for i in range(blocks + 1)):
            votes = [_mean([update[start:stop] for update in own]) for own in pushed.values()]
            found[start:stop] = RULES[self.method](np.stack(votes), self.liars)
        return found

    def state(self) -> dict[str, Array]:
        """Returns the arrays that are saved in a checkpoint."""
        return {str(index): update for index, update in enumerate(self._updates)}


def gather(method: Aggregation, liars: Liars) -> RunningSum | Votes:
    """Returns what the updates [P] of a round are gathered in."""
    return Votes(method, liars) if method in ROBUST else RunningSum(method)


def least(method: Aggregation, byzantine: int) -> int:
    """Returns the number of different workers that an aggregation rule needs.

    A majority must be honest, and Krum needs 2f + 3 (Blanchard et al. 2017, proposition 1).
    """
    if method not in ROBUST:
        return 1
    return 2 * byzantine + 3 if method is Aggregation.KRUM else max(3, 2 * byzantine + 1)


def _mean(updates: list[Floats]) -> Floats:
    return np.asarray(np.mean(updates, axis=0, dtype=np.float64), np.float32)


def _median(votes: Floats, liars: Liars) -> Doubles:
    return np.asarray(np.median(votes.astype(np.float64), axis=0))


def _trimmed_mean(votes: Floats, liars: Liars) -> Doubles:
    """Leaves out the largest and the smallest of each coordinate."""
    cut = trimmed(len(votes), liars)
    ordered = np.sort(votes, axis=0)[cut : len(votes) - cut]
    return np.asarray(ordered.mean(axis=0, dtype=np.float64))


def trimmed(count: int, liars: Liars) -> int:
    """Returns how many of `count` are cut off at each end; at least one is left."""
    share = math.ceil(liars.trim * count - 1e-9)  # 0.1 * 30 is a little more than 3
    return min(max(share, liars.byzantine), (count - 1) // 2)


def _krum(votes: Floats, liars: Liars) -> Doubles:
    """Takes the update that is nearest to its K - f - 2 nearest others."""
    count = len(votes)
    byzantine = liars.byzantine or max(0, (count - 3) // 2)
    near = np.sort(_distances(votes), axis=1)[:, 1:]  # without the one to itself
    scores = near[:, : max(1, count - byzantine - 2)].sum(axis=1)
    return np.asarray(votes[int(np.argmin(scores))], np.float64)


def _distances(votes: Floats) -> Doubles:
    """Returns the [K, K] squared distances; their own are -1, which sorts first."""
    count = len(votes)
    found = np.full((count, count), -1.0)
    for i in range(count):
        for j in range(i):
            apart = votes[i].astype(np.float64) - votes[j]
            found[i, j] = found[j, i] = apart @ apart
    return found


RULES: Mapping[Aggregation, Callable[[Floats, Liars], Doubles]] = {  # of [K, P] votes
    Aggregation.MEDIAN: _median,
    Aggregation.TRIMMED_MEAN: _trimmed_mean,
    Aggregation.KRUM: _krum,
}
ROBUST = frozenset(RULES)
WEIGHTED = frozenset({Aggregation.WEIGHTED, Aggregation.FEDERATED})
SUM = "sum"  # the array of a running sum in a checkpoint
