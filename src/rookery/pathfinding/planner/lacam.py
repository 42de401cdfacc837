"""LaCAM: a search over the joint configurations of all agents, compiled with numba.

Okumura 2023, "LaCAM: search-based algorithm for quick multi-agent pathfinding". The search is depth
first over **configurations** (the vertices of all agents), and PIBT proposes successors. Each time
the search returns to a configuration, the next constraint applies there. A **constraint** fixes the
next vertices of some agents, the most urgent agents first; constraints are tried breadth first. So
in the end all successors have been proposed, and with enough budget the search finds a plan or
proves that there is none. A configuration that is reached again by a shorter path keeps that path,
but its successors are not updated: plans are short, not optimal.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.pathfinding.planner.grid_graph import draw, sort
from rookery.pathfinding.planner.pibt import begin, decide, make_joint_step, pin, prefer
from rookery.pathfinding.planner.swap import pair
from rookery.types import Array

FOUND, NONE, SPENT = 0, 1, 2  # NONE: proven that there is no plan; SPENT: the budget ran out


class SearchState(NamedTuple):
    """State of a LaCAM search: K configurations in order of discovery, and P constraints.

    A configuration is the vertices (cells) of all N agents. A constraint fixes the next vertices of
    some agents. The constraints of a configuration form a tree: each adds one agent's next vertex
    to those of its ancestors. Constraints that were not tried yet form a queue. All arrays are
    int32.
    """

    used: Array  # [2] number of configurations and of constraints so far
    slots: Array  # [a power of two] hash table: index of a configuration, or -1
    cells: Array  # [K, N] the vertex of each agent
    order: Array  # [K, N] agents, the most urgent one first
    urgency: Array  # [K, N] steps since an agent was on its goal
    parent: Array  # [K] the configuration before it on its path; -1: the start
    depth: Array  # [K] upper bound of the steps from the start
    head: Array  # [K] first constraint of its queue, or -1
    tail: Array  # [K] last constraint of its queue
    above: Array  # [P] a constraint's parent; -1: the root of its tree
    level: Array  # [P] number of vertices it fixes, with those of its ancestors
    cell: Array  # [P] the vertex of agent number `level - 1` in the order
    following: Array  # [P] the next constraint of the queue, or -1


@njit(cache=True, nogil=True)
def search(near, far, starts, goals, rank, budget, state):  # type: ignore[no-untyped-def]
    """Searches a plan by LaCAM; returns the outcome, the paths [T + 1, N], and the budget spent.

    The outcome is FOUND, NONE (there provably is no plan) or SPENT (the budget ran out). The paths
    are the cells of N agents for T steps; they are empty unless FOUND. `near` [cells, 5] is the
    cell that each action leads to, `far` [N, cells] the path lengths to the goals. `budget` is the
    maximum number of proposed successors (next positions of all agents). Agents that have been away
    from their goals for equally long are ordered by `rank` [N] int32, the highest first. `state`
    [1] uint64 is the state of the random generator.
    """
    memory = _make_search_state(budget, goals.size)
    turn = make_joint_step(goals.size, near.shape[0])
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
def _make_search_state(budget, agents):  # type: ignore[no-untyped-def]
    """Allocates the arrays of a LaCAM search with at most `budget` proposed successors.

    Only the counters and the hash table are initialized.
    """
    most, rules, slots = budget + 1, 6 * budget + 1, 4
    while slots < 2 * most:
        slots *= 2
    return SearchState(
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
    """Returns the index of a configuration (the cells of all agents); adds it if it is new.

    `parent` is the index of the configuration before it. A known configuration gets this parent if
    that makes its path from the start shorter.
    """
    at = memory.slots[_slot(memory, cells)]
    if at < 0:
        return _discover(memory, rank, goals, cells, parent)
    # Depth always decreases from a configuration to its parent, so parents form no cycle.
    if memory.depth[parent] + 1 < memory.depth[at]:
        memory.parent[at], memory.depth[at] = parent, memory.depth[parent] + 1
    return at


@njit(cache=True, nogil=True)
def _slot(memory, cells):  # type: ignore[no-untyped-def]
    """Returns the hash table slot of a configuration (the cells of all agents).

    That is a free slot if the configuration is new.
    """
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
    """Adds a new configuration (the cells of all agents) to the search; returns its index.

    Its queue of constraints holds only the root of their tree, which fixes no agent's next cell.
    """
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
    """Writes the priority order of the agents in the configuration with index `at`.

    The agent that has been away from its goal for longest comes first, then the one of highest
    `rank`. Ranks are fixed during a search; changing them would keep agents from arriving.
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
    """Replaces a constraint in the queue of the configuration `at` by its children in their tree.

    A constraint fixes the next cells of some agents; each child fixes that of one more agent. The
    constraint is removed from the front, its children are appended.
    """
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
    """Computes by PIBT a joint step of all agents from the configuration with index `at`.

    The step satisfies the constraint `rule`, which fixes the next cells of some agents. Writes the
    next cells to `turn.chosen`; returns False if PIBT finds none.
    """
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
        if turn.chosen[agent] < 0 and not decide(turn, agent):
            return False
    return True


@njit(cache=True, nogil=True)
def _rate(turn, near, far, agent, state, key):  # type: ignore[no-untyped-def]
    """Writes to `key` the sort keys of an agent's 5 actions; the smallest is preferred.

    Actions are ordered by the distance of their target cell to the goal, then free cells before
    occupied ones, then at random.
    """
    noise = draw(state)
    for action in range(5):
        cell = near[turn.now[agent], action]
        if cell >= 0:
            crowded = turn.there[cell] >= 0 and turn.there[cell] != agent
            key[action] = (np.int64(far[cell]) << 8) + (np.int64(crowded) << 7) + (noise & 63)
        noise >>= 6


@njit(cache=True, nogil=True)
def _trace(memory, at):  # type: ignore[no-untyped-def]
    """Returns the paths of N agents from their starts to the configuration `at`, [T + 1, N].

    A configuration is the cells of all agents; it is T steps after the start.
    """
    length, back = 0, at
    while back >= 0:
        length, back = length + 1, memory.parent[back]
    paths = np.empty((length, memory.cells.shape[1]), np.int32)
    for k in range(length - 1, -1, -1):
        paths[k], at = memory.cells[at], memory.parent[at]
    return paths
