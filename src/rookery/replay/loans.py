"""Loans: rows copied out of several runs' rings in one compiled call.

    loans = Loans(leaves, action, [Lender("a", ring), ...], seed=7)
    loan = loans.take(51.2, Odds.of(np.array([1.0, 3.0])), 256, n_step=3, gamma=0.99)

Nobody is asked and nothing is locked, as in `reader.py`: a row is guessed, kept if it may begin a
walk, copied, and kept for good if it had not been overtaken by then. Both kinds of ring are read
alike: chains of single steps (ours), and rows that carry their own next observation (those of
other libraries). A row that is not finite never leaves this file; whoever lent it is named.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.errors import ConfigError
from rookery.replay.memory import copy_at, load_at, read
from rookery.replay.ring import BOOKKEEPING, COMMITTED, RESERVED, TRANSITION, Column, Ring
from rookery.types import Array, Floats, Rows

REWARD_LIMIT = 1e9  # nobody means a reward beyond this
GUESSES = 32  # for each row wanted, before its ring is left alone
_WORD = 8
_LINE = 64  # bytes of a cache line
_READ = ("reward", "end", "next", "taken", "best")  # of a chain's rows, besides what was seen
_ABSENT = -1  # the offset of a column that a ring has not

# A line of numbers for each ring: where it is, how it is to be read, where its columns begin; then
# the offsets of the observation leaves, of the action, of the leaves of the next observation.
_BASE, _PAIRED, _CAPACITY, _STRIDE, _REWARD, _END, _NEXT, _TAKEN, _BEST, _COLUMNS = range(10)


class Lender(NamedTuple):
    """A ring that is read."""

    name: str
    ring: Ring


class Loan(NamedTuple):
    """A batch of which the first `filled` rows are there; [batch, ...] each."""

    obs: dict[str, Array]  # by leaf
    action: Array
    reward: Floats
    discount: Floats  # 0: the episode terminated
    next_obs: dict[str, Array]
    lender: Rows  # which of them each row came from
    filled: int
    asked: int  # rows that were wanted
    foreign: int  # rows that are not the borrower's own
    strange: int  # rows that were left out because they are not finite
    greedy: Array | None = None  # 1: whoever acted thought the action best; 0: not; -1: unknown


class Odds(NamedTuple):
    """Whom rows are borrowed from."""

    upto: Floats  # [lenders] cumulative shares, the last is 1
    newest: float = 1.0  # share of a ring's rows that counts, the most recent ones

    @classmethod
    def of(cls, weights: Floats, newest: float = 1.0) -> "Odds":
        """Returns the odds of lenders with these weights, not all of which are 0."""
        return cls(np.cumsum(weights / weights.sum()), newest)


class Tally(NamedTuple):
    """What happened so far, by lender."""

    lent: Rows
    strange: Rows  # rows that were not finite
    overtaken: Rows  # rows that were overwritten while they were being copied
    short: Rows  # rows that a ring should have given and had not


class Place(NamedTuple):
    """Where a column of a batch lies in one buffer of bytes."""

    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]

    def of(self, raw: Array) -> Array:
        return raw[self.start : self.end].view(self.dtype).reshape(self.shape)


class Plan(NamedTuple):
    """How a batch of some size lies in memory, every column on a cache line of its own."""

    starts: Rows  # of the leaves, of the action, of the leaves of the next observation
    bytes: int
    obs: dict[str, Place]
    action: Place
    next_obs: dict[str, Place]


class Loans:
    """Copies rows out of rings that others write."""

    def __init__(
        self,
        leaves: Sequence[Column],
        action: Column,
        lenders: Sequence[Lender],
        *,
        seed: int,
        own: int = 1,
    ):
        """The first `own` of the lenders are whoever borrows."""
        self._own = own
        self.leaves, self.action, self.lenders = tuple(leaves), action, list(lenders)
        for lender in lenders:
            refuse_stranger(lender, self.leaves, action)
        lines = [_line(lender, self.leaves) for lender in lenders]
        self._lines = np.array(lines, dtype=np.int64).reshape(len(lines), -1)
        self._widths = np.array([column.width for column in (*leaves, action)], dtype=np.int64)
        self._floats = np.array([_float_size(column) for column in leaves], dtype=np.int64)
        self._state = np.array([seed], dtype=np.uint64)
        self.tally = Tally(*(np.zeros(len(lines), dtype=np.int64) for _ in Tally._fields))
        self._plans: dict[int, Plan] = {}  # by size of batch

    @property
    def sizes(self) -> Rows:
        """How many rows each ring holds."""
        return np.array([ring.committed - ring.oldest for _, ring in self.lenders])

    def take(
        self,
        rows: float,
        odds: Odds,
        batch: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        reward_scale: float = 1.0,
        reward_clip: float = np.inf,
    ) -> Loan:
        """Copies `rows` rows on average into a batch: the next lower or higher whole number.

        A ring that hardly has rows that may begin a walk gives fewer. Single rewards are scaled
        and cut before they are summed up.
        """
        plan = self._plans.get(batch) or self._plan(batch)
        raw = np.empty(plan.bytes, dtype=np.uint8)
        reward, discount = np.empty(batch, dtype=np.float32), np.empty(batch, dtype=np.float32)
        lender, greedy = np.empty(batch, dtype=np.int64), np.empty(batch, dtype=np.int8)
        asked, filled, foreign, strange = _borrow(
            self._lines,
            self._state,
            rows,
            odds.upto,
            odds.newest,
            n_step,
            gamma,
            reward_scale,
            reward_clip,
            self._widths,
            self._floats,
            plan.starts,
            raw,
            reward,
            discount,
            lender,
            greedy,
            self._own,
            *self.tally,
        )
        return Loan(
            {name: place.of(raw) for name, place in plan.obs.items()},
            plan.action.of(raw),
            reward,
            discount,
            {name: place.of(raw) for name, place in plan.next_obs.items()},
            lender,
            filled,
            asked,
            foreign,
            strange,
            greedy,
        )

    def _plan(self, batch: int) -> "Plan":
        columns = [*self.leaves, self.action, *self.leaves]
        sizes = [-(-batch * column.width // _LINE) * _LINE for column in columns]
        starts = np.cumsum([0, *sizes])
        places = [
            Place(int(at), int(at) + batch * column.width, column.dtype, (batch, *column.shape))
            for at, column in zip(starts[:-1], columns, strict=True)
        ]
        names, count = [leaf.name.partition(".")[2] for leaf in self.leaves], len(self.leaves)
        self._plans[batch] = Plan(
            starts=starts[:-1],
            bytes=int(starts[-1]),
            obs=dict(zip(names, places[:count], strict=True)),
            action=places[count],
            next_obs=dict(zip(names, places[count + 1 :], strict=True)),
        )
        return self._plans[batch]


def refuse_stranger(lender: Lender, leaves: Sequence[Column], action: Column) -> None:
    """Says how a ring's rows differ from those that are read; a scalar may be a vector of one."""
    there = {column.name: column for column in lender.ring.schema}
    for column in (*leaves, action, *_needed(lender.ring, leaves)):
        other = there.get(column.name)
        if other is None or (other.dtype, other.width) != (column.dtype, column.width):
            raise ConfigError(
                f"buffer {lender.name} has {_named(other)}, this run has {_named(column)}; "
                "share between runs of one environment"
            )


def _needed(ring: Ring, leaves: Sequence[Column]) -> Iterator[Column]:
    """What a walk reads besides observations and actions; compiled code believes what it finds."""
    if not ring.paired:
        yield from (column for column in BOOKKEEPING if column.name in _READ)
        return
    yield from TRANSITION
    yield from (leaf._replace(name=f"next_{leaf.name}") for leaf in leaves)


def _named(column: Column | None) -> str:
    return f"{column.name} {column.shape} {column.dtype}" if column else "no such column"


def _line(lender: Lender, leaves: Sequence[Column]) -> list[int]:
    ring = lender.ring
    at = {c.name: int(offset) for c, offset in zip(ring.schema, ring.offsets, strict=True)}
    end, following = ("done", "timeout") if ring.paired else ("end", "next")
    before = "next_" if ring.paired else ""
    return [
        ring.address,
        int(ring.paired),
        ring.capacity,
        ring.stride,
        at["reward"],
        at[end],
        at[following],
        _ABSENT if ring.paired else at["taken"],
        _ABSENT if ring.paired else at["best"],
        *(at[leaf.name] for leaf in leaves),
        at["action"],
        *(at[before + leaf.name] for leaf in leaves),
    ]


def _float_size(column: Column) -> int:
    """Returns the bytes of one number where it may be infinite or none at all, else 0."""
    kind = np.dtype(column.dtype)
    return kind.itemsize if kind.kind == "f" and kind.itemsize in (4, 8) else 0


@njit(cache=True, nogil=True)
def _next_random(state):  # type: ignore[no-untyped-def]
    """A step of SplitMix64 (Steele et al. 2014): the new state, and a number in [0, 1)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _borrow(  # type: ignore[no-untyped-def]
    lines,
    state,
    rows,
    upto,
    newest,
    n,
    gamma,
    scale,
    clip,
    widths,
    floats,
    starts,
    raw,
    reward,
    discount,
    lender,
    greedy,
    own,
    lent,
    strange,
    overtaken,
    short,
):
    batch = reward.size
    targets = starts + np.int64(raw.ctypes.data)
    seed, noise = _next_random(state[0])
    wanted = min(batch, np.int64(rows) + (noise < rows - np.int64(rows)))
    filled, foreign, bad = 0, 0, 0
    for _ in range(wanted):
        seed, noise = _next_random(seed)
        p = min(np.searchsorted(upto, noise, side="right"), upto.size - 1)
        line = lines[p]
        found = False
        for _ in range(GUESSES):
            high = load_at(line[_BASE] + COMMITTED * _WORD)
            low = max(0, load_at(line[_BASE] + RESERVED * _WORD) - line[_CAPACITY])
            if low >= high:
                break
            first = max(low, high - max(1, np.int64(newest * (high - low))))
            seed, noise = _next_random(seed)
            row = first + np.int64(noise * (high - first))
            ok, total, factor, last = _walk(line, row, high, n, gamma, scale, clip)
            if not ok:
                continue
            _copy_row(line, row, last, widths, targets, filled)
            if row < load_at(line[_BASE] + RESERVED * _WORD) - line[_CAPACITY]:
                overtaken[p] += 1
                continue
            if not (abs(total) <= REWARD_LIMIT and _is_finite(widths, floats, targets, filled)):
                strange[p] += 1
                bad += 1
                continue
            found = True
            break
        if found:
            reward[filled], discount[filled], lender[filled] = total, factor, p
            greedy[filled] = _was_greedy(line, row)
            lent[p] += 1
            filled += 1
            foreign += p >= own
        else:
            short[p] += 1
    state[0] = seed
    return wanted, filled, foreign, bad


@njit(cache=True, nogil=True, inline="always")
def _was_greedy(line, row):  # type: ignore[no-untyped-def]
    if line[_TAKEN] == _ABSENT:
        return -1
    slot = row % line[_CAPACITY]
    taken = read(line[_BASE] + line[_TAKEN] + 4 * slot, np.float32)
    best = read(line[_BASE] + line[_BEST] + 4 * slot, np.float32)
    return -1 if np.isnan(taken) else int(taken >= best)


@njit(cache=True, nogil=True, inline="always")
def _walk(line, row, high, n, gamma, scale, clip):  # type: ignore[no-untyped-def]
    """Sums up to n rewards. Returns whether the row may begin a walk, and where that ended."""
    if line[_PAIRED]:
        return _walk_paired(line, row, high, n, gamma, scale, clip)
    return _walk_chained(line, row, high, n, gamma, scale, clip)


@njit(cache=True, nogil=True)
def _walk_chained(line, row, high, n, gamma, scale, clip):  # type: ignore[no-untyped-def]
    base, capacity = line[_BASE], line[_CAPACITY]
    slot, total, factor = row % capacity, 0.0, 1.0
    if read(base + line[_END] + slot, np.uint8) != 0:
        return False, total, factor, row
    for _ in range(n):
        single = scale * read(base + line[_REWARD] + 4 * slot, np.float32)
        total += factor * min(max(single, -clip), clip)
        factor *= gamma
        step = np.int64(read(base + line[_NEXT] + 4 * slot, np.int32))
        row += step
        if step <= 0 or row >= high:
            return False, total, factor, row
        slot = row % capacity
        ending = read(base + line[_END] + slot, np.uint8)
        if ending != 0:
            if ending == 1:
                factor = 0.0
            break
    return True, total, factor, row


@njit(cache=True, nogil=True)
def _walk_paired(line, row, high, n, gamma, scale, clip):  # type: ignore[no-untyped-def]
    base, capacity = line[_BASE], line[_CAPACITY]
    total, factor = 0.0, 1.0
    for step in range(n):
        if step > 0:
            row += line[_STRIDE]
        slot = row % capacity
        done = read(base + line[_END] + 4 * slot, np.float32)
        if row >= high or not (done == 0.0 or done == 1.0):  # nan: half-written
            return False, total, factor, row
        single = scale * read(base + line[_REWARD] + 4 * slot, np.float32)
        total += factor * min(max(single, -clip), clip)
        factor *= gamma
        if done == 1.0:
            if read(base + line[_NEXT] + 4 * slot, np.float32) == 0.0:
                factor = 0.0
            break
    return True, total, factor, row


@njit(cache=True, nogil=True)
def _copy_row(line, row, last, widths, targets, to):  # type: ignore[no-untyped-def]
    """Copies the observation and action of one row, and the next observation of another."""
    base, leaves = line[_BASE], widths.size - 1
    slot, after = row % line[_CAPACITY], last % line[_CAPACITY]
    for c in range(targets.size):
        width = widths[c] if c <= leaves else widths[c - leaves - 1]
        at = slot if c <= leaves else after
        copy_at(targets[c] + to * width, base + line[_COLUMNS + c] + at * width, width)


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
