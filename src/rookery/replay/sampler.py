"""Samplers: which rows are drawn. Both have the same methods, and neither ever waits:

    sampler.clear(first, count)          rows whose slots are being written anew
    sampler.admit(rows, td_error)        rows that may be drawn from now on
    rows, weight = sampler.draw(batch, beta, rng)
    sampler.rerank(rows, td_error)       rows that have been overwritten since are skipped

What has not been admitted, or has been cleared since, is never drawn.

Where replay is kept in shards, whoever learns makes the random numbers for all of them, and a
sampler only looks up where they lead (`shards.py`):

    places = sampler.place(noise, sum of all spreads)      the same for every shard
    hits = sampler.find(places of this shard, its spread when they were made)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit

from rookery.config.schema import Draw
from rookery.errors import EmptyReplayError, ProtocolError
from rookery.replay.fold import Chains
from rookery.replay.ring import Ring
from rookery.types import Array, Floats, Rows

FAN = 8  # children of a tree node: eight doubles are one cache line
SWEEP = 2048  # nodes of a level that are scanned rather than descended to
FLOOR = 1e-6  # added to |TD error|, so that no row becomes undrawable
CEILING = float(np.finfo(np.float32).max)  # of a priority, so that no sum overflows
UNKNOWN = np.empty(0)  # TD errors of rows that nobody estimated
GUESSES = 16  # rounds of guessing rows, each with twice as many guesses as the one before
MOST_DOUBLINGS = 12


class Drawn(NamedTuple):
    """B rows and their importance weights, the largest of which is 1."""

    rows: Rows
    weight: Floats


class Hits(NamedTuple):
    """What is at places: those that lead to a row (`where`), and how likely the rows were."""

    rows: Rows
    where: Rows
    share: Floats  # of the spread


class Sampler(Protocol):
    """Decides which rows a learner sees."""

    @property
    def spread(self) -> float:
        """What a row's share is a part of: the mass of priorities, or a number of rows."""

    @staticmethod
    def noise(batch: int, tries: int) -> int:
        """How many random numbers a batch takes, after so many that were not enough."""

    @staticmethod
    def place(noise: Floats, spread: float) -> Floats:
        """Turns random numbers in [0, 1) into places in [0, spread)."""

    @staticmethod
    def weigh(likelihood: Floats, beta: float) -> Floats:
        """Returns importance weights of rows drawn together, the largest of which is 1."""

    def find(self, places: Floats, spread: float) -> Hits: ...
    def clear(self, first: int, count: int) -> None: ...
    def admit(self, rows: Rows, td_error: Floats = UNKNOWN) -> None: ...
    def draw(self, batch: int, beta: float, rng: np.random.Generator) -> Drawn: ...
    def rerank(self, rows: Rows, td_error: Floats) -> None: ...
    def state(self) -> dict[str, Array]: ...
    def restore(self, state: Mapping[str, Array]) -> None: ...


class Uniform:
    """Draws every closed row with the same probability."""

    def __init__(self, ring: Ring, chains: Chains, alpha: float):
        self._ring, self._closed = ring, chains.closed

    def clear(self, first: int, count: int) -> None:
        """Nothing to forget: `Chains.closed` is the truth."""

    def admit(self, rows: Rows, td_error: Floats = UNKNOWN) -> None:
        """Nothing to learn either."""

    @property
    def spread(self) -> float:
        return float(self._ring.committed - self._ring.oldest)

    @staticmethod
    def noise(batch: int, tries: int) -> int:
        """Some more than rows: open and final rows are few, but they are guessed too."""
        return (batch + batch // 8 + 8) << min(tries, MOST_DOUBLINGS)

    @staticmethod
    def place(noise: Floats, spread: float) -> Floats:
        return noise * spread

    @staticmethod
    def weigh(likelihood: Floats, beta: float) -> Floats:
        return np.ones(likelihood.size, dtype=np.float32)

    def draw(self, batch: int, beta: float, rng: np.random.Generator) -> Drawn:
        """Draws with replacement. Open and final rows are few, so drawing anew is cheap."""
        _refuse_batch(batch)
        rows = np.empty(batch, dtype=np.int64)
        filled = 0
        low, high = self._ring.oldest, self._ring.committed
        for tries in range(GUESSES if high > low else 0):
            noise = rng.random(self.noise(batch, tries))
            filled = _guess(noise, low, high, self._closed, rows, filled)
            if filled == batch:
                return Drawn(rows, np.ones(batch, dtype=np.float32))
        raise unclosed(low, high)

    def find(self, places: Floats, spread: float) -> Hits:
        low, now = self._ring.oldest, self.spread
        rows = low + _rescaled(places, spread, now).astype(np.int64)
        index = np.flatnonzero(self._closed[rows % self._closed.size] == 1)
        return Hits(rows[index], index, np.ones(index.size))

    def rerank(self, rows: Rows, td_error: Floats) -> None:
        """Every row stays equally likely."""

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Nothing to put back."""


class Prioritized:
    """Draws row i with probability p_i**alpha / sum(p**alpha) (Schaul et al. 2016).

    One draw from each of B equal strata of the total mass. The tree's leaf of row r is
    r % capacity, as in the ring. A node is always recomputed as the sum of its children in order,
    so that a tree rebuilt from its leaves equals the live one bit for bit.
    """

    def __init__(self, ring: Ring, chains: Chains, alpha: float):
        self._ring, self._alpha = ring, alpha
        self._starts = _level_starts(ring.capacity)
        self._tree = np.zeros(int(self._starts[-1]), dtype=np.float64)
        self._largest = 1.0  # |TD error| seen so far: what a new row gets

    @property
    def leaves(self) -> Floats:
        """[capacity] priorities to the power of alpha, by slot."""
        start = int(self._starts[-2])
        return self._tree[start : start + self._ring.capacity]

    @property
    def spread(self) -> float:
        return float(self._tree[0])

    @staticmethod
    def noise(batch: int, tries: int) -> int:
        return batch

    @staticmethod
    def place(noise: Floats, spread: float) -> Floats:
        places: Floats = (np.arange(noise.size) + noise) * (spread / noise.size)
        return places

    @staticmethod
    def weigh(likelihood: Floats, beta: float) -> Floats:
        weight = np.empty(likelihood.size, dtype=np.float32)
        _weigh(likelihood, beta, weight)
        return weight

    def find(self, places: Floats, spread: float) -> Hits:
        places = _rescaled(places, spread, self.spread).copy()
        rows = np.empty(places.size, dtype=np.int64)
        _descend(self._tree, self._starts, places, rows)
        _number(self._ring.committed, self._ring.capacity, rows)
        return Hits(rows, np.arange(places.size), places)

    def clear(self, first: int, count: int) -> None:
        _clear(self._tree, self._starts, first, count, self._ring.capacity)

    def admit(self, rows: Rows, td_error: Floats = UNKNOWN) -> None:
        """Ranks rows by their TD errors; where one is unknown or nan, by the largest so far."""
        _admit(
            self._tree,
            self._starts,
            rows,
            td_error,
            self._largest,
            self._alpha,
            self._ring.capacity,
        )

    def draw(self, batch: int, beta: float, rng: np.random.Generator) -> Drawn:
        _refuse_batch(batch)
        if not self._tree[0] > 0:
            raise EmptyReplayError("no row has a priority yet; draw after the limiter says ready()")
        rows = np.empty(batch, dtype=np.int64)
        weight = np.empty(batch, dtype=np.float32)
        _draw(
            self._tree,
            self._starts,
            rng.random(batch),
            beta,
            self._ring.committed,
            self._ring.capacity,
            rows,
            weight,
        )
        return Drawn(rows, weight)

    def rerank(self, rows: Rows, td_error: Floats) -> None:
        """Gives rows that can still be drawn the priority |TD error| + FLOOR."""
        if td_error.shape != rows.shape:
            raise ProtocolError(
                f"rerank needs one TD error for each row, got {td_error.shape} for {rows.shape}; "
                "give it the rows of the batch they were computed from"
            )
        largest = _rerank(
            self._tree,
            self._starts,
            rows,
            td_error,
            self._alpha,
            self._ring.oldest,
            self._ring.capacity,
        )
        if largest > CEILING:
            raise ProtocolError(
                "a priority must be a finite float32, got a TD error that is not; "
                "skip such a learner step instead"
            )
        self._largest = max(self._largest, largest)

    def state(self) -> dict[str, Array]:
        return {"leaves": self.leaves.copy(), "largest": np.array([self._largest])}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.leaves[:] = state["leaves"]
        self._largest = float(state["largest"][0])
        _rebuild(self._tree, self._starts)


SAMPLERS: dict[Draw, Any] = {  # called as Sampler(ring, chains, alpha)
    Draw.UNIFORM: Uniform,
    Draw.PRIORITIZED: Prioritized,
}


def unclosed(low: int, high: int) -> EmptyReplayError:
    return EmptyReplayError(
        f"hardly a closed row among rows {low} to {high}; draw after the limiter says ready()"
    )


def _rescaled(places: Floats, before: float, now: float) -> Floats:
    """Rows may have come since the places were made: they lead to the same part of the whole."""
    return places if before == now else places * (now / before)


def _refuse_batch(batch: int) -> None:
    if batch < 1:
        raise ProtocolError(f"a batch has at least one row, got {batch}; set replay.batch")


def _level_starts(capacity: int) -> Rows:
    """Returns where each level begins in the flat tree, root first, and the tree's size."""
    sizes = [-(-capacity // FAN) * FAN]
    while sizes[-1] > FAN:
        sizes.append(-(-(sizes[-1] // FAN) // FAN) * FAN)
    sizes.append(FAN)  # the root and its padding, so that every level is aligned alike
    return np.concatenate([[0], np.cumsum(sizes[::-1], dtype=np.int64)])


@njit(cache=True, nogil=True)
def _guess(noise, low, high, closed, rows, filled):  # type: ignore[no-untyped-def]
    """Adds rows of [low, high) that are closed; returns how many there are now, of rows.size."""
    for i in range(noise.size):
        if filled == rows.size:
            break
        row = low + np.int64(noise[i] * (high - low))
        if closed[row % closed.size] == 1:
            rows[filled] = row
            filled += 1
    return filled


@njit(cache=True, nogil=True, inline="always")
def _sum(tree, at):  # type: ignore[no-untyped-def]
    total = tree[at]
    for k in range(1, FAN):
        total += tree[at + k]
    return total


@njit(cache=True, nogil=True)
def _rebuild(tree, starts):  # type: ignore[no-untyped-def]
    for level in range(starts.size - 3, -1, -1):
        children = starts[level + 1]
        for node in range((starts[level + 2] - children) // FAN):
            tree[starts[level] + node] = _sum(tree, children + node * FAN)


@njit(cache=True, nogil=True)
def _assign(tree, starts, rows, values, capacity):  # type: ignore[no-untyped-def]
    """Sets leaves, then every level above them. Neighbours with one parent compute it once."""
    leaves = starts[starts.size - 2]
    nodes = np.empty(rows.size, dtype=np.int64)
    for i in range(rows.size):
        nodes[i] = rows[i] % capacity
        tree[leaves + nodes[i]] = values[i]
    kept = rows.size
    for level in range(starts.size - 3, -1, -1):
        children = starts[level + 1]
        unique = 0
        for i in range(kept):
            parent = nodes[i] // FAN
            if unique > 0 and nodes[unique - 1] == parent:
                continue
            tree[starts[level] + parent] = _sum(tree, children + parent * FAN)
            nodes[unique] = parent
            unique += 1
        kept = unique


@njit(cache=True, nogil=True)
def _admit(tree, starts, rows, td_error, largest, alpha, capacity):  # type: ignore[no-untyped-def]
    values = np.full(rows.size, largest**alpha)
    for i in range(min(rows.size, td_error.size)):
        size = abs(td_error[i]) + FLOOR
        if size <= CEILING:  # nor is nan
            values[i] = size**alpha
    _assign(tree, starts, rows, values, capacity)


@njit(cache=True, nogil=True)
def _rerank(tree, starts, rows, td_error, alpha, oldest, capacity):  # type: ignore[no-untyped-def]
    """Returns the largest new priority; changes nothing if one of them is beyond the ceiling.

    A leaf that is empty stays so: its row was cleared, or may not begin a walk.
    """
    leaves = starts[starts.size - 2]
    fresh, values = np.empty(rows.size, dtype=np.int64), np.empty(rows.size)
    largest, kept = 0.0, 0
    for i in range(rows.size):
        size = abs(np.float64(td_error[i])) + FLOOR
        if not size <= CEILING:  # nor is nan
            return np.inf
        largest = max(largest, size)
        if 0 <= rows[i] - oldest < capacity and tree[leaves + rows[i] % capacity] > 0.0:
            fresh[kept] = rows[i]
            values[kept] = size**alpha
            kept += 1
    _assign(tree, starts, fresh[:kept], values[:kept], capacity)
    return largest


@njit(cache=True, nogil=True)
def _clear(tree, starts, first, count, capacity):  # type: ignore[no-untyped-def]
    """Empties the leaves of `count` rows from `first` on, where they hold anything."""
    leaves = starts[starts.size - 2]
    nodes = np.empty(count, dtype=np.int64)
    kept = 0
    for row in range(first, first + count):
        leaf = row % capacity
        if tree[leaves + leaf] != 0.0:
            nodes[kept] = row
            kept += 1
    if kept > 0:
        _assign(tree, starts, nodes[:kept], np.zeros(kept), capacity)


@njit(cache=True, nogil=True)
def _sweep(tree, starts, mass, nodes):  # type: ignore[no-untyped-def]
    """Places ascending masses on the deepest level of at most SWEEP nodes; returns that level.

    One pass along such a level is cheaper than descending to it for each draw.
    """
    level = 0
    while level < starts.size - 2 and starts[level + 2] - starts[level + 1] <= SWEEP:
        level += 1
    last = starts[level + 1] - starts[level] - 1
    while last > 0 and tree[starts[level] + last] == 0.0:
        last -= 1
    node, below = 0, 0.0
    for b in range(mass.size):
        while node < last and mass[b] >= below + tree[starts[level] + node]:
            below += tree[starts[level] + node]
            node += 1
        nodes[b] = node
        mass[b] -= below
    return level


@njit(cache=True, nogil=True)
def _draw(tree, starts, noise, beta, committed, capacity, rows, weight):  # type: ignore[no-untyped-def]
    batch = rows.size
    mass = (np.arange(batch) + noise) * (tree[0] / batch)
    _descend(tree, starts, mass, rows)
    _weigh(mass, beta, weight)
    _number(committed, capacity, rows)


@njit(cache=True, nogil=True)
def _descend(tree, starts, mass, rows):  # type: ignore[no-untyped-def]
    """Finds the leaves at ascending masses, and puts what they hold in the masses' place.

    Descends level by level for the whole batch: neighbours hide each other's cache misses.
    """
    levels = starts.size - 2
    swept = _sweep(tree, starts, mass, rows)
    for level in range(swept + 1, levels + 1):
        for b in range(rows.size):
            at = starts[level] + rows[b] * FAN
            pick, below, upto = 0, 0.0, 0.0
            for k in range(FAN - 1):
                upto += tree[at + k]
                inside = mass[b] >= upto
                pick += inside
                below = upto if inside else below
            while pick > 0 and tree[at + pick] == 0.0:  # rounding must not reach an empty child
                pick -= 1
                below -= tree[at + pick]
            mass[b] -= below
            rows[b] = rows[b] * FAN + pick
    for b in range(rows.size):
        mass[b] = tree[starts[levels] + rows[b]]


@njit(cache=True, nogil=True)
def _weigh(mass, beta, weight):  # type: ignore[no-untyped-def]
    """(p_i / p_min) ** -beta: the largest weight is 1."""
    lowest = np.inf
    for b in range(mass.size):
        lowest = min(lowest, mass[b])
    for b in range(mass.size):
        weight[b] = np.float32(mass[b] / lowest) ** np.float32(-beta)


@njit(cache=True, nogil=True)
def _number(committed, capacity, rows):  # type: ignore[no-untyped-def]
    """Turns leaves into row numbers."""
    newest = committed - 1
    last = newest % capacity  # its leaf: those behind it belong to the round before
    for b in range(rows.size):
        rows[b] += newest - last if rows[b] <= last else newest - last - capacity
