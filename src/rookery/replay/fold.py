"""Builds n-step transitions, frame stacks and sequences from stored rows, each one env step.

    linked = chains.link(ring, first, count)     # the writer of the ring buffer, as rows arrive
    batch = fold.gather(ring, spec, rows, ...)   # to sample a batch

Every observation is stored once. The rows of one environment form a linked list (a "chain"): the
columns `next` and `prev` hold the distances to its next and previous row. Compiled code follows
these links when a batch is sampled. A row with `end != RUNNING` holds the final observation of an
episode: it ends an n-step return or sequence and never starts one.

A row is *closed* if it can be sampled: the `window` rows after it, or all rows up to the end of its
episode, are stored. `Chains.link` returns the rows that become closed as new rows arrive. A row
with at most `burn_in` steps left in its episode is never closed, because a recurrent network would
learn from none of them; the first row of an episode needs no burn-in and is exempt. With frame
stacking a row must also be *whole*: none of its earlier frames has been overwritten.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.replay.ring import BOOKKEEPING, COMMITTED, Ring, obs_column
from rookery.replay.shared_memory import address, copy, store
from rookery.types import Array, ArrayBatch, Batch, EnvSpec, Floats, Obs, Rows

# What is kept of a lane: the newest row of its open episode (-1: none), that episode's incarnation
# and number, how many rows of the chain came before, and the chain's last `window` rows.
_LAST, _INCARNATION, _EPISODE, _DEPTH, _RECENT = range(5)

_U1, _I4, _I8 = np.dtype("uint8"), np.dtype("int32"), np.dtype("int64")
_F4 = np.dtype("float32")


class Linked(NamedTuple):
    """Result of `Chains.link`: rows that can be sampled from now on, and number of new steps.

    A row is one env step, or the final observation of an episode.
    """

    closed: Rows  # rows that may begin a walk from now on
    steps: int  # new rows that have an action


class Chains:
    """Links the rows (env steps) of each environment to a linked list as they arrive in replay.

    `lanes` is the number of environments, `envs` that of each actor. Keeps, for each environment,
    the numbers of its last `window` rows; `window` is the larger of n-step and sequence length.
    """

    def __init__(
        self, lanes: int, envs: int, *, window: int, stride: int, capacity: int, burn_in: int = 0
    ):
        self.envs, self.window, self.stride, self.burn_in = envs, window, stride, burn_in
        self.lanes = np.zeros((lanes, _RECENT + window), dtype=np.int64)
        self.lanes[:, _LAST] = -1
        self.closed = np.zeros(capacity, dtype=np.uint8)  # by slot: may begin a walk

    def grow(self, lanes: int) -> None:
        """Enlarges the state that is kept for each environment to `lanes` environments.

        Does nothing if it is as large already.
        """
        more = np.zeros((max(0, lanes - len(self.lanes)), self.lanes.shape[1]), dtype=np.int64)
        more[:, _LAST] = -1
        self.lanes = np.concatenate([self.lanes, more])

    def link(self, ring: Ring, first: int, count: int) -> Linked:
        """Links `count` new rows (env steps) to the previous rows of their environments.

        The new rows start at row `first`. n-step transitions and sequences follow these links. Then
        commits the rows, so that readers see them. Returns which rows can be sampled from now on,
        and how many new rows are steps. Raises `ValueError` if a row has an unknown environment
        number.
        """
        found = np.empty(count + self.lanes.shape[0] * self.window, dtype=np.int64)
        state = self.envs, self.stride, self.burn_in, self.lanes, self.closed
        total, steps = _link(ring.bytes, ring.layout, first, count, *state, found)
        if total < 0:
            raise ValueError(f"a row of lane {steps}, and there is room for {len(self.lanes)}")
        return Linked(found[:total], steps)


class Horizon(NamedTuple):
    """How far the transitions or sequences of a batch reach, and their discount factor."""

    n_step: int
    gamma: float
    sequence: int = 0  # steps of a sequence; 0: the batch has n-step transitions

    @property
    def window(self) -> int:
        """Number of rows (env steps) after a row that a transition or sequence from it may need."""
        return max(self.n_step, self.sequence)


class Folded(NamedTuple):
    """Result of `fold`: n-step return, discount and last row of each of B transitions.

    A row is one stored env step. The observation of the last row is the one whose value is
    bootstrapped from.
    """

    reward: Floats  # [B]
    discount: Floats  # [B]
    last: Rows  # [B] the row whose observation is bootstrapped from


def gather(
    ring: Ring, spec: EnvSpec, rows: Rows, weight: Floats, horizon: Horizon, oldest: int
) -> ArrayBatch:
    """Builds a batch of n-step transitions that start at B given rows (stored env steps).

    If `horizon.sequence` is not 0, builds sequences of that many steps instead. Frame stacks use no
    row older than row `oldest`.
    """
    if horizon.sequence:
        return _stretches(ring, spec, rows, weight, horizon, oldest)
    if spec.frame_stack == 1:
        batch = _transitions(ring, spec, rows, weight, horizon)
    else:
        reward, discount, last = fold(ring, rows, n_step=horizon.n_step, gamma=horizon.gamma)
        obs, next_obs = (observations(ring, spec, at, oldest) for at in (rows, last))
        action = take(ring, "action", rows)
        batch = Batch(obs, action, reward, discount, next_obs, weight, rows)
    return batch._replace(extras=extras(ring, spec, rows)) if spec.extras else batch


def extras(ring: Ring, spec: EnvSpec, rows: Rows, steps: Rows | None = None) -> dict[str, Array]:
    """Returns the algorithm-specific columns, such as recurrent state, of B rows (env steps).

    Each is an array [B, ...]. For sequences of T steps, `steps` [B, T] holds the row numbers of all
    steps. A column that the algorithm needs at every step (`each` in the spec) is then returned as
    [B, T, ...].
    """
    found = {}
    for extra in spec.extras:
        where = rows if steps is None or not extra.each else steps
        column = take(ring, extra.name, where.ravel())
        found[extra.name] = column.reshape(*where.shape, *extra.shape)
    return found


def _transitions(
    ring: Ring, spec: EnvSpec, rows: Rows, weight: Floats, horizon: Horizon
) -> ArrayBatch:
    """Builds a batch of n-step transitions in one compiled call; without frame stacking only."""
    batch, leaves = rows.size, len(spec.obs)
    widths: list[int] = ring.widths[: leaves + 1].tolist()
    size = batch * sum(widths[:leaves])
    obs, next_obs = np.empty(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
    action = np.empty((batch, *spec.action.shape), dtype=spec.action.dtype)
    reward, discount = np.empty(batch, dtype=np.float32), np.empty(batch, dtype=np.float32)
    out = obs, next_obs, action.reshape(-1).view(np.uint8), reward, discount
    _gather(ring.bytes, ring.layout, leaves, rows, horizon.n_step, horizon.gamma, *out)
    leading, following = (_leaves(spec, raw, batch, widths) for raw in (obs, next_obs))
    return Batch(leading, action, reward, discount, following, weight, rows)


def _leaves(spec: EnvSpec, raw: Array, batch: int, widths: list[int]) -> Obs:
    """Returns the observations of a batch of B steps as views of the bytes `raw`.

    `raw` holds the entries ("leaves") of a dict observation one after another. Returns a dict of
    arrays [B, *shape], or one array if the observation is not a dict.
    """
    leaves, at = {}, 0
    for leaf, width in zip(spec.obs, widths, strict=False):
        end = at + batch * width
        leaves[leaf.name] = raw[at:end].view(leaf.dtype).reshape(batch, *leaf.shape)
        at = end
    return leaves if spec.is_dict else leaves[""]


def _stretches(
    ring: Ring, spec: EnvSpec, rows: Rows, weight: Floats, horizon: Horizon, oldest: int
) -> ArrayBatch:
    walked, mask, discount = sequences(ring, rows, length=horizon.sequence, gamma=horizon.gamma)
    steps, shape = walked[:, :-1].ravel(), mask.shape
    leaves = spec.unpack(observations(ring, spec, walked.ravel(), oldest))
    leaves = {n: leaf.reshape(*walked.shape, *leaf.shape[1:]) for n, leaf in leaves.items()}
    return Batch(
        obs=spec.pack(leaves),  # [B, T + 1, *obs]
        action=take(ring, "action", steps).reshape(*shape, *spec.action.shape),
        reward=take(ring, "reward", steps).reshape(shape) * mask,
        discount=discount,
        next_obs=None,  # obs has one entry more than there are steps
        weight=weight,
        rows=rows,
        mask=mask,
        extras=extras(ring, spec, rows, walked[:, :-1]) if spec.extras else None,
    )


def fold(ring: Ring, rows: Rows, *, n_step: int, gamma: float) -> Folded:
    """Computes n-step return, discount and last row of transitions that start at B given rows.

    A row is one stored env step.
    """
    size, columns = rows.size, ring.columns
    out = Folded(np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.int64))
    steps = columns["reward"], columns["end"], columns["next"]
    _fold(rows, ring.capacity, n_step, gamma, *steps, *out)
    return out


def errors(ring: Ring, rows: Rows, *, n_step: int, gamma: float) -> Floats:
    """Returns the n-step TD errors of B rows (env steps), from the values that the actors stored.

    An error is nan if its actor stored no value.
    """
    reward, discount, last = fold(ring, rows, n_step=n_step, gamma=gamma)
    out = np.empty(rows.size)
    _errors(rows, reward, discount, last, ring.columns["taken"], ring.columns["best"], out)
    return out


def observations(ring: Ring, spec: EnvSpec, rows: Rows, oldest: int) -> Obs:
    """Returns the observations at B rows (env steps), with frame stacks rebuilt from earlier rows.

    An observation, or each entry of a dict observation, is an array [B, *shape]. Stacked frames are
    concatenated along the first axis of `shape`. Rows older than row `oldest` are not read.
    """
    count, depth = rows.size, spec.frame_stack
    if depth > 1:
        rows = stacks(ring, rows, depth, oldest)  # [B, S]
    leaves = {}
    for leaf in spec.obs:
        raw = take(ring, obs_column(leaf.name), rows.ravel())  # [B * S, *leaf]
        first, *rest = leaf.shape or (1,)
        leaves[leaf.name] = raw.reshape(count, depth * first, *rest)
    obs: Obs = spec.pack(leaves)
    return obs


def stacks(ring: Ring, rows: Rows, depth: int, oldest: int) -> Rows:
    """Returns the row (env step) numbers [B, depth] of the frame stacks of B rows, oldest first.

    Frames before the start of an episode repeat its first frame.
    """
    out = np.empty((rows.size, depth), dtype=np.int64)
    _stack(rows, ring.capacity, oldest, ring.columns["prev"], out)
    return out


def take(ring: Ring, column: str, rows: Rows) -> Array:
    """Returns a copy of one column, such as the reward, of the given rows (env steps)."""
    index = next(i for i, c in enumerate(ring.schema) if c.name == column)
    shape, dtype = ring.schema[index].shape, ring.schema[index].dtype
    out = np.empty((rows.size, *shape), dtype=dtype)
    offset, width, raw = ring.offsets[index], ring.widths[index], out.reshape(-1).view(np.uint8)
    _take(ring.bytes, offset, width, ring.capacity, rows, raw)
    return out


class Sequence(NamedTuple):
    """Row (env step) numbers of B sequences of T steps, each within one episode.

    A sequence that reaches the end of its episode is padded.
    """

    rows: Rows  # [B, T + 1] the last one bootstraps; padding repeats the final observation
    mask: Floats  # [B, T] 1 where there is a step
    discount: Floats  # [B, T] of single steps: gamma, 0 on termination and in the padding


def sequences(ring: Ring, rows: Rows, *, length: int, gamma: float) -> Sequence:
    """Returns row (env step) numbers, mask and discounts of sequences that start at B rows.

    A sequence has `length` steps. It does not cross the end of its episode; it is padded there.
    """
    shape, columns = (rows.size, length), ring.columns
    walked = np.empty((rows.size, length + 1), np.int64)
    out = Sequence(walked, np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    _sequence(rows, ring.capacity, gamma, columns["end"], columns["next"], *out)
    return out


def returns(
    ring: Ring, first: int, count: int, *, envs: int, gamma: float, running: Floats
) -> Floats:
    """Returns the discounted return of the episode so far at each of `count` rows (env steps).

    The rows start at row `first`. `running` holds the return so far of each environment and is
    updated in place.
    """
    out = np.zeros(count, dtype=np.float32)
    steps = (ring.columns[name] for name in ("actor", "env", "end", "t", "reward"))
    _returns(first, ring.capacity, envs, gamma, *steps, running, out)
    return out


def is_closed(ring: Ring, rows: Rows, window: int, burn_in: int = 0) -> Array:
    """Returns for each row (env step) whether its n-step return or sequence is completely stored.

    A row with at most `burn_in` steps left in its episode counts as incomplete, unless it is the
    first row of the episode. The function reads only the ring buffer, so it also works on those of
    other runs.
    """
    out = np.zeros(rows.size, dtype=np.bool_)
    end, t, nxt = (ring.columns[name] for name in ("end", "t", "next"))
    _is_closed(rows, ring.capacity, ring.committed, window, burn_in, end, t, nxt, out)
    return out


def is_whole(ring: Ring, rows: Rows, depth: int, oldest: int) -> Array:
    """Returns for each row (env step) whether all `depth` frames of its stack are still stored."""
    out = np.empty(rows.size, dtype=np.bool_)
    _is_whole(rows, ring.capacity, depth, oldest, ring.columns["prev"], out)
    return out


# The compiled walks. A reader of another run's ring may see a row change under it: distances are
# then nonsense, so every index is taken modulo the capacity, and the caller checks afterwards.


@njit(cache=True, nogil=True, inline="always")
def _view(raw, layout, column, size, dtype):  # type: ignore[no-untyped-def]
    """Returns an array view of one column of a ring buffer: entry `column` of `BOOKKEEPING`.

    These columns, such as the reward, are the last columns of every ring buffer of env steps.
    `size` is the width of the column in bytes.
    """
    index = layout.size // 2 - len(BOOKKEEPING) + 1 + column
    return raw[layout[index] : layout[index] + layout[0] * size].view(dtype)


@njit(cache=True, nogil=True, inline="always")
def _back(slot, distance, capacity):  # type: ignore[no-untyped-def]
    """Returns the index in a ring buffer that is `distance` rows before the index `slot`.

    `distance` must be less than `capacity`.
    """
    return slot - distance if slot >= distance else slot - distance + capacity


@njit(cache=True, nogil=True)
def _link(raw, layout, first, count, envs, stride, burn_in, lanes, closed, found):  # type: ignore[no-untyped-def]
    """Links new rows (env steps) to earlier rows of their environments, then commits them.

    `lanes` holds the state of `Chains` for each environment. Returns how many rows can be sampled
    from now on (listed in `found`) and how many new rows are steps. If `lanes` has no entry for the
    environment of a row, changes nothing and returns -1 and the environment's number.
    """
    capacity = layout[0]
    window = lanes.shape[1] - _RECENT
    end, actor = _view(raw, layout, 1, 1, _U1), _view(raw, layout, 2, 4, _I4)
    incarnation, env = _view(raw, layout, 3, 4, _I4), _view(raw, layout, 4, 4, _I4)
    slot = first % capacity - 1
    for _ in range(count):
        slot = slot + 1 if slot + 1 < capacity else 0
        number = actor[slot] * envs + env[slot]
        if number < 0 or number >= lanes.shape[0]:
            return -1, number
    episode, t = _view(raw, layout, 5, 8, _I8), _view(raw, layout, 6, 4, _I4)
    nxt, prev = _view(raw, layout, 10, 4, _I4), _view(raw, layout, 11, 4, _I4)
    total, steps = 0, 0
    oldest = max(0, first + count - capacity)
    slot = first % capacity - 1
    for row in range(first, first + count):
        slot = slot + 1 if slot + 1 < capacity else 0  # divisions would be half of the work
        lane = lanes[actor[slot] * envs + env[slot]]
        closed[slot] = 0
        nxt[slot] = 0
        before = lane[_LAST]
        same = lane[_INCARNATION] == incarnation[slot] and lane[_EPISODE] == episode[slot]
        if before >= oldest and same:
            nxt[_back(slot, row - before, capacity)] = row - before
            prev[slot] = row - before
            lane[_DEPTH] += 1
        else:
            prev[slot] = 0 if t[slot] == 0 else -1
            lane[_DEPTH] = 0
            lane[_INCARNATION] = incarnation[slot]
            lane[_EPISODE] = episode[slot]
        depth = lane[_DEPTH]
        ended = end[slot] != 0
        steps += not ended
        for back in range(1 if ended else window, min(depth, window) + 1):
            candidate = lane[_RECENT + (depth - back) % window] if window > 1 else before
            at = _back(slot, row - candidate, capacity)
            if (
                candidate >= oldest
                and (stride == 1 or t[at] % stride == 0)
                and (back > burn_in or t[at] == 0)
            ):
                closed[at] = 1
                found[total] = candidate
                total += 1
        lane[_RECENT + (depth % window if window > 1 else 0)] = row
        lane[_LAST] = -1 if ended else row
    store(address(raw) + 8 * COMMITTED, first + count)
    return total, steps


@njit(cache=True, nogil=True, inline="always")
def _slot(row, base, capacity):  # type: ignore[no-untyped-def]
    """Returns the index row % capacity of a row in a ring buffer.

    Does not divide if `row` is near `base`, a multiple of capacity.
    """
    slot = row - base
    if slot < 0:
        slot += capacity
    elif slot >= capacity:
        slot -= capacity
    return slot if 0 <= slot < capacity else row % capacity


@njit(cache=True, nogil=True)
def _fold(rows, capacity, n, gamma, reward, end, nxt, out_reward, out_discount, out_last):  # type: ignore[no-untyped-def]
    base = rows[0] - rows[0] % capacity if rows.size else 0
    for b in range(rows.size):
        row = rows[b]
        slot = _slot(row, base, capacity)
        total, factor = 0.0, 1.0
        for _ in range(n):
            total += factor * reward[slot]
            factor *= gamma
            row += nxt[slot]
            slot = _slot(row, base, capacity)
            ending = end[slot]
            if ending != 0:
                if ending == 1:
                    factor = 0.0
                break
        out_reward[b] = total
        out_discount[b] = factor
        out_last[b] = row


@njit(cache=True, nogil=True)
def _errors(rows, reward, discount, last, taken, best, out):  # type: ignore[no-untyped-def]
    for b in range(rows.size):
        target = np.float64(reward[b])
        if discount[b] != 0:  # after a termination there is no estimate
            target += np.float64(discount[b]) * best[last[b] % best.size]
        out[b] = target - taken[rows[b] % taken.size]


@njit(cache=True, nogil=True)
def _gather(raw, layout, leaves, rows, n, gamma, obs, next_obs, action, reward, discount):  # type: ignore[no-untyped-def]
    """Computes n-step transitions and copies their observations and actions into a batch.

    The first columns of a ring buffer are the entries ("leaves") of the observation; the action
    follows them.
    """
    capacity, columns, batch = layout[0], layout.size // 2, rows.size
    last = np.empty(batch, dtype=np.int64)
    rewards, end = _view(raw, layout, 0, 4, _F4), _view(raw, layout, 1, 1, _U1)
    nxt = _view(raw, layout, 10, 4, _I4)
    _fold(rows, capacity, n, gamma, rewards, end, nxt, reward, discount, last)
    base = rows[0] - rows[0] % capacity if batch else 0
    to, to_next, to_action = address(obs), address(next_obs), address(action)
    for c in range(leaves):
        column, width = address(raw) + layout[1 + c], layout[1 + columns + c]
        for b in range(batch):
            copy(to, column + _slot(rows[b], base, capacity) * width, width)
            copy(to_next, column + _slot(last[b], base, capacity) * width, width)
            to += width
            to_next += width
    column, width = address(raw) + layout[1 + leaves], layout[1 + columns + leaves]
    for b in range(batch):
        copy(to_action + b * width, column + _slot(rows[b], base, capacity) * width, width)


@njit(cache=True, nogil=True)
def _stack(rows, capacity, oldest, prev, out):  # type: ignore[no-untyped-def]
    depth = out.shape[1]
    for b in range(rows.size):
        row = rows[b]
        for k in range(depth - 1, -1, -1):
            out[b, k] = row
            back = prev[row % capacity]
            if back > 0 and row - back >= oldest:
                row -= back


@njit(cache=True, nogil=True)
def _take(source, offset, width, capacity, rows, out):  # type: ignore[no-untyped-def]
    to, column = address(out), address(source) + offset
    for b in range(rows.size):
        copy(to + b * width, column + (rows[b] % capacity) * width, width)


@njit(cache=True, nogil=True)
def _sequence(rows, capacity, gamma, end, nxt, out, mask, discount):  # type: ignore[no-untyped-def]
    length = mask.shape[1]
    for b in range(rows.size):
        row = rows[b]
        out[b, 0] = row
        for k in range(length):
            slot = row % capacity
            if end[slot] == 0:
                mask[b, k] = 1.0
                row += nxt[slot]
                discount[b, k] = 0.0 if end[row % capacity] == 1 else gamma
            out[b, k + 1] = row


@njit(cache=True, nogil=True)
def _returns(first, capacity, envs, gamma, actor, env, end, t, reward, running, out):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        slot = (first + k) % capacity
        lane = actor[slot] * envs + env[slot]
        before = 0.0 if t[slot] == 0 else running[lane] * gamma  # an actor may die in mid-episode
        running[lane] = 0.0 if end[slot] != 0 else before + reward[slot]
        out[k] = running[lane]


@njit(cache=True, nogil=True)
def _is_closed(rows, capacity, committed, window, burn_in, end, t, nxt, out):  # type: ignore[no-untyped-def]
    for b in range(rows.size):
        row = rows[b]
        known = row < committed and end[row % capacity] == 0
        begins, steps = t[row % capacity] == 0, 0
        for _ in range(window):
            slot = row % capacity
            if not known or end[slot] != 0:
                break
            step = nxt[slot]
            row += step
            steps += 1
            known = step > 0 and row < committed
        out[b] = known and (steps > burn_in or begins)


@njit(cache=True, nogil=True)
def _is_whole(rows, capacity, depth, oldest, prev, out):  # type: ignore[no-untyped-def]
    for b in range(rows.size):
        row = rows[b]
        for _ in range(depth - 1):
            back = prev[row % capacity]
            if back == 0:
                break
            row = row - back if back > 0 else -1
            if row < oldest:
                break
        out[b] = row >= oldest
