"""Samplers choose the rows of a batch, uniformly (`Uniform`) or by priority (`Prioritized`).

    sampler.clear(first, count)          these rows are about to be overwritten
    sampler.admit(rows, td_error)        these rows can be sampled from now on
    rows, weight = sampler.sample(batch, beta, rng)
    sampler.update_priorities(rows, td_error)     overwritten rows are skipped

A row is one stored env step. It can be sampled only between `admit` and `clear`.

If replay has several shards (parts, which may be on other hosts), the learner draws the random
numbers for all of them (`shards.py`). It turns them into positions in [0, total mass), where the
mass ("spread") of a shard is the sum of its priorities, or its number of rows for uniform sampling.
Each shard finds the rows at its positions:

    places = sampler.place(noise, sum of all spreads)      the same for every shard
    hits = sampler.find(places of this shard, its spread when they were drawn)
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

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
UNKNOWN = np.empty(0)  # TD errors of rows without an estimate
GUESSES = 16  # rounds of guessing rows, each with twice as many guesses as the one before
MOST_DOUBLINGS = 12


class SampledRows(NamedTuple):
    """Numbers of the B rows (env steps) sampled for a batch, and their importance weights.

    The largest importance weight is 1.
    """

    rows: Rows
    weight: Floats


class Hits(NamedTuple):
    """Numbers of the rows (env steps) that a replay shard found at positions drawn by the learner.

    A position is a number in [0, sum of priorities), or [0, number of rows) if sampling is uniform.
    `where` holds the index of each row's position; a position whose row cannot be sampled has no
    entry. `share` is the row's priority to the power of alpha, or 1 if sampling is uniform.
    """

    rows: Rows
    where: Rows
    share: Floats  # of the spread


class Sampler(Protocol):
    """Interface of a sampler, which chooses the rows (stored env steps) of a batch."""

    @property
    def spread(self) -> float:
        """Total sampling mass: the sum of priorities, or the number of stored rows if uniform."""

    @staticmethod
    def noise(batch: int, tries: int) -> int:
        """Returns how many random numbers the sampler needs to sample one batch.

        `tries` counts the attempts at this batch so far that found too few rows that can be
        sampled.
        """

    @staticmethod
    def place(noise: Floats, spread: float) -> Floats:
        """Turns random numbers in [0, 1) into sampling positions in [0, spread).

        `spread` is the sum of priorities of replay, or its number of rows if sampling is uniform.
        """

    @staticmethod
    def weigh(likelihood: Floats, beta: float) -> Floats:
        """Returns importance weights of rows (env steps) from their sampling probabilities.

        The probabilities `likelihood` need not be normalised. The largest weight is 1.
        """

    def find(self, places: Floats, spread: float) -> Hits:
        """Returns the rows (env steps) of this shard at sampling positions in [0, spread)."""

    def sample(self, batch: int, beta: float, rng: np.random.Generator) -> SampledRows:
        """Samples rows (env steps) for a batch.

        Raises `EmptyReplayError` if there are too few rows that can be sampled.
        """

    def clear(self, first: int, count: int) -> None:
        """Removes rows (env steps) that are about to be overwritten."""

    def admit(self, rows: Rows, td_error: Floats = UNKNOWN) -> None:
        """Makes rows (env steps) available for sampling, with priorities from their TD errors.

        A row without a known TD error gets the largest priority so far.
        """

    def update_priorities(self, rows: Rows, td_error: Floats) -> None:
        """Sets the priorities of rows (env steps) to |TD error| + FLOOR; skips overwritten rows.

        Raises `ProtocolError` if a TD error is not finite.
        """

    def state(self) -> dict[str, Array]:
        """Returns the sampler's state for a checkpoint."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restores the state that `state` returned."""

    def forget(self, slots: Rows) -> None:
        """Removes the priorities of rows (env steps) that cannot be sampled, by index in the ring.

        Called after `restore` if some saved rows were lost.
        """


class Uniform:
    """Uniform sampler: every env step that can start a transition or sequence is equally likely.

    Which rows (env steps) can be sampled is read from the array `Chains.closed`.
    """

    def __init__(self, ring: Ring, chains: Chains, alpha: float):
        self._ring, self._closed = ring, chains.closed

    @property
    def spread(self) -> float:
        return float(self._ring.committed - self._ring.oldest)

    @staticmethod
    def noise(batch: int, tries: int) -> int:
        """Returns how many random rows (env steps) to draw for a batch: more than `batch`.

        Some rows are rejected because they cannot be sampled, such as the newest ones and final
        observations. Twice as many are drawn at each further try.
        """
        return (batch + batch // 8 + 8) << min(tries, MOST_DOUBLINGS)

    @staticmethod
    def place(noise: Floats, spread: float) -> Floats:
        return noise * spread

    @staticmethod
    def weigh(likelihood: Floats, beta: float) -> Floats:
        return np.ones(likelihood.size, dtype=np.float32)

    def sample(self, batch: int, beta: float, rng: np.random.Generator) -> SampledRows:
        """Samples rows (env steps) with replacement: draws random rows and rejects invalid ones.

        Invalid rows are, for example, the newest ones and final observations. Raises
        `EmptyReplayError` if too few valid rows are found.
        """
        _refuse_batch(batch)
        rows = np.empty(batch, dtype=np.int64)
        filled = 0
        low, high = self._ring.oldest, self._ring.committed
        for tries in range(GUESSES if high > low else 0):
            noise = rng.random(self.noise(batch, tries))
            filled = _guess(noise, low, high, self._closed, rows, filled)
            if filled == batch:
                return SampledRows(rows, np.ones(batch, dtype=np.float32))
        raise unclosed(low, high)

    def find(self, places: Floats, spread: float) -> Hits:
        low, now = self._ring.oldest, self.spread
        rows = low + _rescaled(places, spread, now).astype(np.int64)
        index = np.flatnonzero(self._closed[rows % self._closed.size] == 1)
        return Hits(rows[index], index, np.ones(index.size))

    def state(self) -> dict[str, Array]:
        return {}

    # Without priorities there is nothing to keep up to date.

    def clear(self, first: int, count: int) -> None: ...
    def admit(self, rows: Rows, td_error: Floats = UNKNOWN) -> None: ...
    def update_priorities(self, rows: Rows, td_error: Floats) -> None: ...
    def restore(self, state: Mapping[str, Array]) -> None: ...
    def forget(self, slots: Rows) -> None: ...


class Prioritized:
    """Prioritized sampler: row (env step) i has probability p_i**alpha / sum(p**alpha).

    This is prioritized experience replay (Schaul et al. 2016). One row is sampled from each of B
    (batch size) equal strata of the sum of priorities. Row r is leaf r % capacity of a sum tree. A
    node is always computed as the sum of its children in the same order, so that a tree rebuilt
    from its leaves equals the original bit for bit.
    """

    def __init__(self, ring: Ring, chains: Chains, alpha: float):
        self._ring, self._alpha = ring, alpha
        self._starts = _level_starts(ring.capacity)
        self._tree = np.zeros(int(self._starts[-1]), dtype=np.float64)
        self._largest = 1.0  # |TD error| seen so far: what a new row gets

    @property
    def leaves(self) -> Floats:
        """Leaves of the sum tree: [capacity] priorities to the power of alpha.

        The leaf of row (env step) number r is r % capacity.
        """
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
        tree, starts, capacity = self._tree, self._starts, self._ring.capacity
        _admit(tree, starts, rows, td_error, self._largest, self._alpha, capacity)

    def sample(self, batch: int, beta: float, rng: np.random.Generator) -> SampledRows:
        _refuse_batch(batch)
        if not self._tree[0] > 0:
            raise EmptyReplayError(
                "no row has a priority yet; sample after the limiter's ready() is true"
            )
        rows = np.empty(batch, dtype=np.int64)
        weight = np.empty(batch, dtype=np.float32)
        tree, starts, ring = self._tree, self._starts, self._ring
        noise = rng.random(batch)
        _draw(tree, starts, noise, beta, ring.committed, ring.capacity, rows, weight)
        return SampledRows(rows, weight)

    def update_priorities(self, rows: Rows, td_error: Floats) -> None:
        if td_error.shape != rows.shape:
            raise ProtocolError(
                f"update_priorities needs one TD error for each row, got {td_error.shape} for "
                f"{rows.shape}; give it the rows of the batch they were computed from"
            )
        tree, starts, ring = self._tree, self._starts, self._ring
        largest = _update_priorities(
            tree, starts, rows, td_error, self._alpha, ring.oldest, ring.capacity
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

    def forget(self, slots: Rows) -> None:
        self.leaves[slots] = 0.0
        _rebuild(self._tree, self._starts)


SAMPLERS: dict[Draw, type[Uniform | Prioritized]] = {  # called as Sampler(ring, chains, alpha)
    Draw.UNIFORM: Uniform,
    Draw.PRIORITIZED: Prioritized,
}


def unclosed(low: int, high: int) -> EmptyReplayError:
    return EmptyReplayError(
        f"hardly a closed row among rows {low} to {high}; sample after the limiter's "
        "ready() is true"
    )


def _rescaled(places: Floats, before: float, now: float) -> Floats:
    """Scales sampling positions from the range [0, before) to the range [0, now).

    The ranges are the sums of priorities of a replay shard when the positions were drawn, and now.
    Rows (env steps) may have been inserted in between.
    """
    return places if before == now else places * (now / before)


def _refuse_batch(batch: int) -> None:
    if batch < 1:
        raise ProtocolError(f"a batch has at least one row, got {batch}; set replay.batch_size")


def _level_starts(capacity: int) -> Rows:
    """Returns the start index of each level in the flat array of the sum tree, root first.

    The last entry is the size of the whole tree.
    """
    sizes = [-(-capacity // FAN) * FAN]
    while sizes[-1] > FAN:
        sizes.append(-(-(sizes[-1] // FAN) // FAN) * FAN)
    sizes.append(FAN)  # the root and its padding, so that every level is aligned alike
    return np.concatenate([[0], np.cumsum(sizes[::-1], dtype=np.int64)])


@njit(cache=True, nogil=True)
def _guess(noise, low, high, closed, rows, filled):  # type: ignore[no-untyped-def]
    """Draws random row numbers in [low, high) and adds those that can be sampled to `rows`.

    A row is one stored env step. Stops once `rows` is full or the random numbers `noise` are used
    up. `filled` is the number of entries of `rows` that are already set; returns the new number.
    """
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
    """Sets leaves of the sum tree to `values`, then recomputes their ancestors level by level.

    If several adjacent entries have the same parent, it is computed only once.
    """
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
def _update_priorities(tree, starts, rows, td_error, alpha, oldest, capacity):  # type: ignore[no-untyped-def]
    """Sets the leaves of rows (env steps) in the sum tree to (|TD error| + FLOOR) ** alpha.

    Returns the largest |TD error| + FLOOR. If one is nan or larger than CEILING, changes nothing
    and returns infinity. Overwritten rows are skipped. A leaf that is 0 stays 0, because its row
    cannot be sampled.
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
    """Sets the priorities of `count` rows (env steps) from row `first` on to 0 in the sum tree.

    Rows with priority 0 are never sampled.
    """
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
    """Finds the node of each sampling position on one upper level of the sum tree.

    The level is the deepest one with at most SWEEP nodes; returns its index. The positions `mass`
    are ascending, so one pass along the level finds all nodes, which is cheaper than descents from
    the root. Each position is then replaced by the position within its node.
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
    """Finds the leaves of the sum tree at ascending sampling positions `mass`.

    Fills `rows` with the leaf indices and replaces `mass` by the values of these leaves. The whole
    batch descends level by level, which hides cache misses.
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
    """Computes importance weights (p_i / p_min) ** -beta, of which the largest is 1.

    `mass` holds the sampling probabilities p, which need not be normalised.
    """
    lowest = np.inf
    for b in range(mass.size):
        lowest = min(lowest, mass[b])
    for b in range(mass.size):
        weight[b] = np.float32(mass[b] / lowest) ** np.float32(-beta)


@njit(cache=True, nogil=True)
def _number(committed, capacity, rows):  # type: ignore[no-untyped-def]
    """Replaces leaf indices of the sum tree by row (env step) numbers, in place.

    The leaf index of a row is its number modulo `capacity`.
    """
    newest = committed - 1
    last = newest % capacity  # its leaf: those behind it belong to the round before
    for b in range(rows.size):
        rows[b] += newest - last if rows[b] <= last else newest - last - capacity
