"""Copies random n-step transitions from other runs' replay ring buffers, in one compiled call.

    copier = RowCopier(leaves, action, [Lender("a", ring), ...], seed=7)
    batch = copier.take(51.2, BorrowPlan(np.array([1.0, 3.0])), 256, Returns(n=3))

A lender is a replay ring buffer from which rows (env steps) are sampled. The copier takes no lock:
it picks a random row, copies it if it can start an n-step transition, and keeps the copy if the row
was not overwritten meanwhile. It reads both kinds of ring buffer: single steps that are linked to
their next step (Rookery's own runs), and rows that hold their next observation (runs of other
libraries). Rows with values that are not finite are skipped and counted by lender.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.errors import ConfigError
from rookery.replay.ring import BOOKKEEPING, COMMITTED, RESERVED, TRANSITION, Column, Ring
from rookery.replay.shared_memory import copy, load, read
from rookery.sharing.strategies import BorrowPlan
from rookery.types import Array, Floats, Rows

REWARD_LIMIT = 1e9  # rows with a larger return are invalid
GUESSES = 32  # attempts for each row before its ring counts as short
_WORD = 8
_CHAIN = tuple(column for column in BOOKKEEPING if column.name in ("reward", "end", "next"))

# Layout of a ring's entry in the compiled code: address, kind, capacity and stride of the ring,
# then the offsets of the columns that are read (`_columns`).
_BASE, _PAIRED, _CAPACITY, _STRIDE, _REWARD, _END, _NEXT, _COLUMNS = range(8)


class Lender(NamedTuple):
    """A replay ring buffer, of this or another run, to sample from, and its buffer id."""

    name: str
    ring: Ring


class Returns(NamedTuple):
    """How n-step returns are computed: each reward is scaled and clipped before they are summed."""

    n: int = 1
    gamma: float = 0.99
    scale: float = 1.0
    clip: float = np.inf


class BorrowedRows(NamedTuple):
    """Transitions sampled from a pool, the set of replay buffers that several runs share.

    Every array is [batch, ...], but only its first `filled` entries are set.
    """

    obs: dict[str, Array]  # by leaf
    action: Array
    reward: Floats  # n-step return
    discount: Floats  # 0 after termination
    next_obs: dict[str, Array]
    lender: Rows  # index of the lender of each row
    filled: int
    asked: int  # rows that were requested
    foreign: int  # rows that are not the borrower's own
    invalid: int  # rows that were skipped because they are not finite

    @classmethod
    def blank(cls, leaves: Sequence[Column], action: Column, batch: int) -> "BorrowedRows":
        """Returns uninitialized arrays for `batch` transitions, none of which is sampled yet."""
        names = [leaf.name.partition(".")[2] for leaf in leaves]
        obs, next_obs = (
            {
                name: np.empty((batch, *leaf.shape), dtype=leaf.dtype)
                for name, leaf in zip(names, leaves, strict=True)
            }
            for _ in range(2)
        )
        return cls(
            obs,
            np.empty((batch, *action.shape), dtype=action.dtype),
            np.empty(batch, dtype=np.float32),
            np.empty(batch, dtype=np.float32),
            next_obs,
            lender=np.empty(batch, dtype=np.int64),
            filled=0,
            asked=0,
            foreign=0,
            invalid=0,
        )


ONE_STEP = Returns()


class CopyCounts(NamedTuple):
    """Numbers of rows (env steps) copied and not copied from each lender (replay ring buffer).

    All arrays are [lenders].
    """

    lent: Rows  # rows that were copied
    invalid: Rows  # rows that were not finite
    overwritten: Rows  # rows that their owner overwrote during the copy


class RowCopier:
    """Copies random transitions from replay ring buffers while other processes write to them."""

    def __init__(
        self,
        leaves: Sequence[Column],
        action: Column,
        lenders: Sequence[Lender],
        *,
        seed: int,
        own: int = 1,
    ):
        """Prepares to read the replay ring buffers of `lenders`.

        The first `own` of them belong to the calling run. Raises `ConfigError` if the columns of
        one do not fit.
        """
        self._own = own
        self.leaves, self.action, self.lenders = tuple(leaves), action, list(lenders)
        for lender in lenders:
            check_columns(lender, self.leaves, action)
        rings = [_ring_entry(ring, self.leaves, action) for _, ring in lenders]
        self._rings = np.array(rings, dtype=np.int64).reshape(len(rings), -1)
        self._widths = np.array([column.width for column in (*leaves, action)], dtype=np.int64)
        self._floats = np.array([_float_size(column) for column in leaves], dtype=np.int64)
        self._state = np.array([seed], dtype=np.uint64)
        self.counts = CopyCounts(
            *(np.zeros(len(rings), dtype=np.int64) for _ in CopyCounts._fields)
        )

    @property
    def sizes(self) -> Rows:
        """Number of rows (env steps) that each lender (replay ring buffer) holds now."""
        return np.array([ring.committed - ring.oldest for _, ring in self.lenders])

    def take(
        self, rows: float, plan: BorrowPlan, batch: int, returns: Returns = ONE_STEP
    ) -> BorrowedRows:
        """Copies `rows` random transitions into the arrays of a batch of size `batch`.

        If `rows` is not a whole number, it is rounded up or down at random. Fewer are copied if a
        replay ring buffer has too few env steps that can start a transition. At least one weight of
        the plan must not be 0.
        """
        blank = BorrowedRows.blank(self.leaves, self.action, batch)
        arrays = (*blank.obs.values(), blank.action, *blank.next_obs.values())
        asked, filled, foreign, invalid = _borrow(
            self._rings,
            self._state,
            rows,
            np.cumsum(plan.shares),
            plan.newest,
            returns,
            (self._widths, self._floats, np.array([array.ctypes.data for array in arrays])),
            blank.reward,
            blank.discount,
            blank.lender,
            self._own,
            self.counts,
        )
        return blank._replace(filled=filled, asked=asked, foreign=foreign, invalid=invalid)


def check_columns(lender: Lender, leaves: Sequence[Column], action: Column) -> None:
    """Raises `ConfigError` if the columns of a replay ring buffer differ from the given ones.

    The given columns, observation entries `leaves` and `action`, are those of the run that reads
    it. A scalar and a vector of length 1 count as equal.
    """
    there = {column.name: column for column in lender.ring.schema}
    for column in _columns(lender.ring, leaves, action):
        other = there.get(column.name)
        if other is None or (other.dtype, other.width) != (column.dtype, column.width):
            raise ConfigError(
                f"buffer {lender.name} has {_named(other)}, this run has {_named(column)}; "
                "share between runs of one environment"
            )


def _columns(ring: Ring, leaves: Sequence[Column], action: Column) -> list[Column]:
    """Returns the columns of a ring buffer that are read, in the order of the compiled code.

    They are the reward, the end of the episode (two columns, or one and the link to the next row),
    the observation, the action and the next observation.
    """
    if not ring.paired:
        return [*_CHAIN, *leaves, action, *leaves]
    following = (leaf._replace(name=f"next_{leaf.name}") for leaf in leaves)
    return [*TRANSITION, *leaves, action, *following]


def _named(column: Column | None) -> str:
    return f"{column.name} {column.shape} {column.dtype}" if column else "no such column"


def _ring_entry(ring: Ring, leaves: Sequence[Column], action: Column) -> list[int]:
    at = {c.name: int(offset) for c, offset in zip(ring.schema, ring.offsets, strict=True)}
    offsets = (at[column.name] for column in _columns(ring, leaves, action))
    return [ring.address, int(ring.paired), ring.capacity, ring.stride, *offsets]


def _float_size(column: Column) -> int:
    """Returns the bytes per number of a float32 or float64 column; 0 for other columns."""
    kind = np.dtype(column.dtype)
    return kind.itemsize if kind.kind == "f" and kind.itemsize in (4, 8) else 0


@njit(cache=True, nogil=True)
def _next_random(state):  # type: ignore[no-untyped-def]
    """Returns the next state of the random generator SplitMix64 and a number in [0, 1).

    The generator is that of Steele et al. 2014.
    """
    state += np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _borrow(  # type: ignore[no-untyped-def]
    rings, state, rows, shares, newest, returns, columns, reward, discount, lender, own, counts
):
    """Fills a batch with random transitions of randomly chosen replay ring buffers.

    `columns` holds column widths, float sizes and the addresses of the batch's arrays, as in
    `RowCopier`. Returns the numbers of transitions requested, copied, copied from other runs, and
    skipped as invalid.
    """
    widths, floats, targets = columns
    seed, noise = _next_random(state[0])
    asked = min(reward.size, np.int64(rows) + (noise < rows - np.int64(rows)))
    filled, foreign, invalid = 0, 0, 0
    for _ in range(asked):
        seed, noise = _next_random(seed)
        p = min(np.searchsorted(shares, noise, side="right"), shares.size - 1)
        found, seed, total, factor, bad = _copy_random_row(
            rings[p], seed, newest, returns, widths, floats, targets, filled, p, counts
        )
        invalid += bad
        if found:
            reward[filled], discount[filled], lender[filled] = total, factor, p
            counts.lent[p] += 1
            filled += 1
            foreign += p >= own
    state[0] = seed
    return asked, filled, foreign, invalid


@njit(cache=True, nogil=True)
def _copy_random_row(  # type: ignore[no-untyped-def]
    ring, seed, newest, returns, widths, floats, targets, to, p, counts
):
    """Copies one random transition of a replay ring buffer to index `to` of a batch.

    Returns whether a valid transition was found, the random state, the n-step return, the discount,
    and how many transitions with values that are not finite were skipped.
    """
    invalid, total, factor = 0, 0.0, 1.0
    for _ in range(GUESSES):
        high = load(ring[_BASE] + COMMITTED * _WORD)
        low = max(0, load(ring[_BASE] + RESERVED * _WORD) - ring[_CAPACITY])
        if low >= high:
            break
        first = max(low, high - max(1, np.int64(newest * (high - low))))
        seed, noise = _next_random(seed)
        row = first + np.int64(noise * (high - first))
        if ring[_PAIRED]:
            ok, total, factor, last = _walk_paired(ring, row, high, returns)
        else:
            ok, total, factor, last = _walk_chained(ring, row, high, returns)
        if not ok:
            continue
        _copy_row(ring, row, last, widths, targets, to)
        if row < load(ring[_BASE] + RESERVED * _WORD) - ring[_CAPACITY]:
            counts.overwritten[p] += 1
            continue
        if not (abs(total) <= REWARD_LIMIT and _is_finite(widths, floats, targets, to)):
            counts.invalid[p] += 1
            invalid += 1
            continue
        return True, seed, total, factor, invalid
    return False, seed, total, factor, invalid


@njit(cache=True, nogil=True)
def _walk_chained(ring, row, high, returns):  # type: ignore[no-untyped-def]
    """Computes the n-step return of the transition that starts at row (env step) `row`.

    Returns whether the transition is complete, the return, the discount and the last row.
    """
    base, capacity = ring[_BASE], ring[_CAPACITY]
    slot, total, factor = row % capacity, 0.0, 1.0
    if read(base + ring[_END] + slot, np.uint8) != 0:
        return False, total, factor, row
    for _ in range(returns.n):
        single = returns.scale * read(base + ring[_REWARD] + 4 * slot, np.float32)
        total += factor * min(max(single, -returns.clip), returns.clip)
        factor *= returns.gamma
        step = np.int64(read(base + ring[_NEXT] + 4 * slot, np.int32))
        row += step
        if step <= 0 or row >= high:
            return False, total, factor, row
        slot = row % capacity
        ending = read(base + ring[_END] + slot, np.uint8)
        if ending != 0:
            if ending == 1:
                factor = 0.0
            break
    return True, total, factor, row


@njit(cache=True, nogil=True)
def _walk_paired(ring, row, high, returns):  # type: ignore[no-untyped-def]
    """Does what `_walk_chained` does, in a ring whose rows hold their next observation."""
    base, capacity = ring[_BASE], ring[_CAPACITY]
    total, factor = 0.0, 1.0
    for step in range(returns.n):
        if step > 0:
            if row + ring[_STRIDE] >= high:
                break  # at the newest row of its environment the return is shorter, as in SB3
            row += ring[_STRIDE]
        slot = row % capacity
        done = read(base + ring[_END] + 4 * slot, np.float32)
        if not (done == 0.0 or done == 1.0):  # nan: half-written
            return False, total, factor, row
        single = returns.scale * read(base + ring[_REWARD] + 4 * slot, np.float32)
        total += factor * min(max(single, -returns.clip), returns.clip)
        factor *= returns.gamma
        if done == 1.0:
            if read(base + ring[_NEXT] + 4 * slot, np.float32) == 0.0:
                factor = 0.0
            break
    return True, total, factor, row


@njit(cache=True, nogil=True)
def _copy_row(ring, row, last, widths, targets, to):  # type: ignore[no-untyped-def]
    """Copies a transition of a replay ring buffer to index `to` of a batch.

    Observation and action are those of row (env step) `row`, the next observation that of row
    `last`.
    """
    base, leaves = ring[_BASE], widths.size - 1
    slot, after = row % ring[_CAPACITY], last % ring[_CAPACITY]
    for c in range(targets.size):
        width = widths[c] if c <= leaves else widths[c - leaves - 1]
        at = slot if c <= leaves else after
        copy(targets[c] + to * width, base + ring[_COLUMNS + c] + at * width, width)


@njit(cache=True, nogil=True)
def _is_finite(widths, floats, targets, at):  # type: ignore[no-untyped-def]
    leaves = floats.size
    for c in range(leaves):
        for target in (targets[c], targets[leaves + 1 + c]):
            start = target + at * widths[c]
            if floats[c] == 4:
                for k in range(0, widths[c], 4):
                    if not np.isfinite(read(start + k, np.float32)):
                        return False
            elif floats[c] == 8:
                for k in range(0, widths[c], 8):
                    if not np.isfinite(read(start + k, np.float64)):
                        return False
    return True
