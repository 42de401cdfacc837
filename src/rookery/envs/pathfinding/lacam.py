"""A search for a way of all agents together, from start to goals. Compiled.

Okumura 2023, "LaCAM: search-based algorithm for quick multi-agent pathfinding": depth first over
**configurations** (where everybody is). PIBT proposes a successor; each time one comes back to a
configuration, one more agent's next cell is prescribed there, breadth first, so that in the end
all successors have been proposed. The search therefore finds a plan or proves that there is none,
if it may go on for long enough. A configuration that is reached again by a shorter way keeps that
way, but those behind it are not told: plans are good, not shortest.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.envs.pathfinding.graph import draw, sort
from rookery.envs.pathfinding.pibt import begin, make_turn, pin, prefer, settle
from rookery.envs.pathfinding.swap import pair
from rookery.types import Array

FOUND, NONE, SPENT = 0, 1, 2  # NONE: it is proven that there is no plan


class Memory(NamedTuple):
    """What a search knows: K configurations in the order of their discovery, and P prescriptions.

    A configuration's prescriptions are a tree, each holds together with those above it, and a
    queue of those that were not tried yet. All int32.
    """

    used: Array  # [2] how many configurations and prescriptions there are
    slots: Array  # [a power of two] a hash table: which configuration, or -1
    cells: Array  # [K, N] where everybody is
    order: Array  # [K, N] agents, the most urgent one first
    urgency: Array  # [K, N] how long ago an agent was on its goal
    parent: Array  # [K] where it was reached from; -1: the start
    depth: Array  # [K] steps from the start, at most
    head: Array  # [K] its first prescription that was not tried yet, or -1
    tail: Array  # [K] its last one
    above: Array  # [P] a prescription's parent; -1: it is the first of its tree
    level: Array  # [P] how many cells it prescribes, with those above it
    cell: Array  # [P] the cell for the agent that is number `level - 1` of the order
    following: Array  # [P] the next one of the queue, or -1


@njit(cache=True, nogil=True)
def search(near, far, starts, goals, rank, budget, state):  # type: ignore[no-untyped-def]
    """Returns an outcome, the ways [T + 1, N] (empty but when FOUND), and what of `budget` it took.

    A unit of the budget is one successor asked for. `rank` [N] int32 says who comes first among
    those who have been away from their goals for as long; `state` [1] uint64 is the randomness.
    """
    memory, turn = _make_memory(budget, goals.size), make_turn(goals.size, near.shape[0])
    path = np.empty(budget + 1, np.int32)  # a stack; the same configuration may be on it twice
    path[0] = _discover(memory, rank, goals, starts, -1)
    top, spent = 0, 0
    while top >= 0:
        at = path[top]
        if np.array_equal(memory.cells[at], goals):
            return FOUND, _trace(memory, at), spent
        if spent == budget:
            break
        rule = memory.head[at]
        if rule < 0:
            top -= 1
            continue
        spent += 1
        _refine(memory, near, at, rule)
        if _propose(turn, memory, near, far, goals, at, rule, state):
            top += 1
            path[top] = _visit(memory, rank, goals, turn.chosen, at)
    outcome = SPENT if top >= 0 else NONE
    return outcome, np.empty((0, goals.size), np.int32), spent


@njit(cache=True, nogil=True)
def _make_memory(budget, agents):  # type: ignore[no-untyped-def]
    """Pages that are never written to cost nothing: only the hash table has to be cleared."""
    most, rules, slots = budget + 1, 6 * budget + 1, 4
    while slots < 2 * most:
        slots *= 2
    return Memory(
        np.zeros(2, np.int32),
        np.full(slots, -1, np.int32),
        np.empty((most, agents), np.int32),
        np.empty((most, agents), np.int32),
        np.empty((most, agents), np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(rules, np.int32),
        np.empty(rules, np.int32),
        np.empty(rules, np.int32),
        np.empty(rules, np.int32),
    )


@njit(cache=True, nogil=True)
def _visit(memory, rank, goals, cells, parent):  # type: ignore[no-untyped-def]
    """Returns the number of a configuration, new or known, that can be reached from `parent`."""
    at = memory.slots[_slot(memory, cells)]
    if at < 0:
        return _discover(memory, rank, goals, cells, parent)
    # Depth falls along parents, always; so this makes no circles.
    if memory.depth[parent] + 1 < memory.depth[at]:
        memory.parent[at], memory.depth[at] = parent, memory.depth[parent] + 1
    return at


@njit(cache=True, nogil=True)
def _slot(memory, cells):  # type: ignore[no-untyped-def]
    """Returns where in the hash table a configuration is, or would be."""
    code = np.uint64(0xCBF29CE484222325)
    for cell in cells:
        code = (code ^ np.uint64(cell)) * np.uint64(0x100000001B3)
        code ^= code >> np.uint64(29)
    mask = memory.slots.size - 1
    slot = np.int64(code & np.uint64(mask))
    while memory.slots[slot] >= 0 and not np.array_equal(memory.cells[memory.slots[slot]], cells):
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _discover(memory, rank, goals, cells, parent):  # type: ignore[no-untyped-def]
    """Writes down a new configuration, with an empty prescription; returns its number."""
    at = memory.used[0]
    memory.used[0] += 1
    memory.slots[_slot(memory, cells)] = at
    memory.cells[at] = cells
    memory.parent[at] = parent
    memory.depth[at] = 0 if parent < 0 else memory.depth[parent] + 1
    for agent in range(goals.size):
        waited = 0 if parent < 0 else memory.urgency[parent, agent] + 1
        memory.urgency[at, agent] = 0 if cells[agent] == goals[agent] else waited
    _order(memory, rank, at, parent)
    memory.head[at] = memory.tail[at] = _prescribe(memory, -1, 0, -1)
    return at


@njit(cache=True, nogil=True)
def _order(memory, rank, at, parent):  # type: ignore[no-untyped-def]
    """Orders agents: who has been away for longest first, of those the highest rank.

    The rank must not change on the way: those who take turns in having it get nowhere.
    """
    key, order = np.empty(rank.size, np.int64), memory.order[at]
    for agent in range(rank.size):
        key[agent] = -(np.int64(memory.urgency[at, agent]) << 32) - rank[agent]
        order[agent] = agent if parent < 0 else memory.order[parent, agent]
    sort(order, key)


@njit(cache=True, nogil=True)
def _prescribe(memory, above, level, cell):  # type: ignore[no-untyped-def]
    rule = memory.used[1]
    memory.used[1] += 1
    memory.above[rule], memory.level[rule], memory.cell[rule] = above, level, cell
    memory.following[rule] = -1
    return rule


@njit(cache=True, nogil=True)
def _refine(memory, near, at, rule):  # type: ignore[no-untyped-def]
    """Takes a prescription from the queue, and adds those to its end that go one agent further."""
    level = memory.level[rule]
    if level < memory.order.shape[1]:
        here = memory.cells[at, memory.order[at, level]]
        for action in range(5):
            if near[here, action] >= 0:
                added = _prescribe(memory, rule, level + 1, near[here, action])
                memory.following[memory.tail[at]] = added
                memory.tail[at] = added
    memory.head[at] = memory.following[rule]


@njit(cache=True, nogil=True)
def _propose(turn, memory, near, far, goals, at, rule, state):  # type: ignore[no-untyped-def]
    """Fills `turn.chosen` with a successor that obeys a prescription; False: there was none."""
    begin(turn, memory.cells[at])
    while memory.level[rule] > 0:
        agent = memory.order[at, memory.level[rule] - 1]
        if not pin(turn, agent, memory.cell[rule]):
            return False
        rule = memory.above[rule]
    key = np.zeros(5, np.int64)
    for agent in range(goals.size):
        _rate(turn, near, far[agent], agent, state, key)
        prefer(turn, near, agent, key)
    pair(turn, near, far, goals)
    for agent in memory.order[at]:
        if turn.chosen[agent] < 0 and not settle(turn, agent):
            return False
    return True


@njit(cache=True, nogil=True)
def _rate(turn, near, far, agent, state, key):  # type: ignore[no-untyped-def]
    """Fills in the keys of an agent's [5] actions: nearer to its goal, then free, then by lot."""
    noise = draw(state)
    for action in range(5):
        cell = near[turn.now[agent], action]
        if cell >= 0:
            crowded = turn.there[cell] >= 0 and turn.there[cell] != agent
            key[action] = (np.int64(far[cell]) << 8) + (np.int64(crowded) << 7) + (noise & 63)
        noise >>= 6


@njit(cache=True, nogil=True)
def _trace(memory, at):  # type: ignore[no-untyped-def]
    """Returns the way to a configuration, from the start: [T + 1, N]."""
    length, back = 0, at
    while back >= 0:
        length, back = length + 1, memory.parent[back]
    ways = np.empty((length, memory.cells.shape[1]), np.int32)
    for k in range(length - 1, -1, -1):
        ways[k], at = memory.cells[at], memory.parent[at]
    return ways
