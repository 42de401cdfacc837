"""Lowers the sum of costs of a multi-agent plan by replanning some agents; compiled with numba.

The sum of costs is the number of steps until each agent stays on its goal, summed over the agents.
The paths of all other agents are fixed, and replanning is space-time A* around them.
`improve_each` replans one agent at a time. `improve_groups` replans a few agents at a time: large
neighbourhood search (Li et al. 2021, "Anytime multi-agent path finding via large neighborhood
search").
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.pathfinding.planner.grid_graph import draw, sort
from rookery.types import Array

_FREE = -1
_MOST = 8  # agents that are replanned at once


class ReservationTable(NamedTuple):
    """Reserved cells at each of T + 1 times, and the arrays of a space-time A* search."""

    held: Array  # [T + 1, cells] int16 the agent that occupies the cell, or _FREE
    seen: Array  # [T + 1, cells] int32 number of the last search that visited the node
    came: Array  # [T + 1, cells] int32 the cell before on the path to the node
    below: Array  # [T + 1, cells] int32 the next node of a bucket, as time * cells + cell, or -1
    piles: Array  # [T + 1] int32 the first node of each bucket, by the earliest possible arrival
    searches: Array  # [1] int32 number of searches so far


@njit(cache=True, nogil=True)
def improve_each(ways, near, far, goals):  # type: ignore[no-untyped-def]
    """Replans one agent after the other until no path improves; returns paths [T' + 1, N].

    `ways` [T + 1, N] are the paths of N agents for T steps; they are overwritten. The returned plan
    has T' <= T steps, and no agent arrives later than before. `near` [cells, 5] is the cell that
    each action leads to, `far` [N, cells] the path lengths to the goals.
    """
    table, arrival = _make_table(ways, near.shape[0]), arrivals(ways, goals)
    order, improved = np.arange(goals.size), True
    while improved:
        sort(order, -arrival)  # the last one to arrive first
        improved = False
        for agent in order:
            improved |= _improve(table, ways, near, far[agent], goals[agent], agent, arrival)
    return ways[: arrival.max() + 1].copy()


@njit(cache=True, nogil=True)
def improve_groups(ways, near, far, goals, steps, rounds, state):  # type: ignore[no-untyped-def]
    """Replans random groups of agents `rounds` times; returns the improved paths [T' + 1, N].

    New paths of a group are kept if their cost is not higher: the sum of the agents' arrival times,
    with a penalty for arrivals after the step limit `steps`. `ways` [T + 1, N] are the paths of N
    agents for T steps; they are overwritten. The returned plan has T' <= T steps.
    """
    table, arrival = _make_table(ways, near.shape[0]), arrivals(ways, goals)
    some = np.empty(_MOST, np.int32)
    kept = np.empty((ways.shape[0], _MOST), np.int32)
    for _ in range(rounds):
        count = _gather(table, ways, near, far, arrival, some, state)
        if count > 0:
            _replan(table, ways, near, far, goals, arrival, some[:count], kept, steps)
    return ways[: arrival.max() + 1].copy()


@njit(cache=True, nogil=True)
def _gather(table, ways, near, far, arrival, some, state):  # type: ignore[no-untyped-def]
    """Picks a group to replan: a delayed agent, agents that block it, and random ones.

    Writes the agents to `some`; returns their number, 0 if no delayed agent was drawn.
    """
    agents = arrival.size
    first = -1
    for _ in range(3):  # the latest of three
        agent = draw(state) % agents
        late = arrival[agent] - far[agent, ways[0, agent]]
        if late > 0 and (first < 0 or late > arrival[first] - far[first, ways[0, first]]):
            first = agent
    if first < 0:
        return 0
    some[0], count, size = first, 1, min(agents, 2 + draw(state) % (_MOST - 1))
    for _ in range(4):
        count = _meet(
            table, ways, near, far[first], first, arrival[first], some, count, size, state
        )
    for _ in range(4 * size):
        if count < size:
            count = _include(some, count, draw(state) % agents)
    for k in range(count - 1, 0, -1):
        j = draw(state) % (k + 1)
        some[k], some[j] = some[j], some[k]
    return count


@njit(cache=True, nogil=True)
def _meet(table, ways, near, far, agent, until, some, count, size, state):  # type: ignore[no-untyped-def]
    """Adds agents that block `agent` to the group `some`; returns the new size of the group.

    The function follows a shortest path to the goal from a random time of the agent's path. It adds
    the agents that occupy cells of that path at the times when `agent` would enter them.
    """
    moment = draw(state) % until
    cell = ways[moment, agent]
    while moment + 1 < table.held.shape[0] and far[cell] > 0 and count < size:
        turn, ahead = draw(state), cell
        for k in range(4):
            beyond = near[cell, 1 + (turn + k) % 4]
            if beyond >= 0 and far[beyond] < far[cell]:
                ahead = beyond
                break
        moment, cell = moment + 1, ahead
        if table.held[moment, cell] != _FREE:
            count = _include(some, count, table.held[moment, cell])
    return count


@njit(cache=True, nogil=True)
def _include(some, count, agent):  # type: ignore[no-untyped-def]
    for k in range(count):
        if some[k] == agent:
            return count
    some[count] = agent
    return count + 1


@njit(cache=True, nogil=True)
def _replan(table, ways, near, far, goals, arrival, some, kept, steps):  # type: ignore[no-untyped-def]
    """Replans the agents `some` one after the other, around the fixed paths of all others.

    Restores their old paths if one of them finds no path, or if the sum of their arrival times,
    with the penalty for arrivals after the step limit `steps`, would rise.
    """
    before, after = np.int64(0), np.int64(0)
    for k, agent in enumerate(some):
        before += _price(arrival[agent], steps)
        kept[:, k] = ways[:, agent]
        _hold(table, ways[:, agent], _FREE)
    done, latest = 0, arrival.max()
    for agent in some:
        found = _find(table, near, far[agent], ways[0, agent], goals[agent], latest)
        if found < 0:
            break
        after += _price(found, steps)
        if after > before:
            break
        _follow(table, found, goals[agent], ways[:, agent])
        _hold(table, ways[:, agent], agent)
        done += 1
    if done == some.size:
        for agent in some:
            arrival[agent] = arrive(ways[:, agent], goals[agent])
        return
    for agent in some[:done]:
        _hold(table, ways[:, agent], _FREE)
    for k, agent in enumerate(some):
        ways[:, agent] = kept[:, k]
        _hold(table, ways[:, agent], agent)


@njit(cache=True, nogil=True)
def price(ways, goals, steps):  # type: ignore[no-untyped-def]
    """Returns the sum of costs of the agents' paths `ways`, plus a penalty for late arrivals.

    An agent's cost is the time from which it stays on its goal. The penalty is 64 for each step by
    which an agent arrives after the step limit `steps`.
    """
    total = np.int64(0)
    for arrival in arrivals(ways, goals):
        total += _price(arrival, steps)
    return total


@njit(cache=True, nogil=True)
def _price(arrival, steps):  # type: ignore[no-untyped-def]
    return np.int64(arrival) + 64 * max(np.int64(0), np.int64(arrival) - steps)


@njit(cache=True, nogil=True)
def arrivals(ways, goals):  # type: ignore[no-untyped-def]
    """Returns the time from which each agent stays on its goal, int32 [N]."""
    arrival = np.empty(goals.size, np.int32)
    for agent in range(goals.size):
        arrival[agent] = arrive(ways[:, agent], goals[agent])
    return arrival


@njit(cache=True, nogil=True)
def arrive(way, goal):  # type: ignore[no-untyped-def]
    """Returns the time from which one agent with path `way` [T + 1] stays on its goal.

    Returns T + 1, for a path of T steps, if the agent does not end on its goal.
    """
    moment = way.size
    while moment > 0 and way[moment - 1] == goal:
        moment -= 1
    return moment


@njit(cache=True, nogil=True)
def _make_table(ways, cells):  # type: ignore[no-untyped-def]
    moments = ways.shape[0]
    held = np.full((moments, cells), _FREE, np.int16)
    for moment in range(moments):
        for agent in range(ways.shape[1]):
            held[moment, ways[moment, agent]] = agent
    return ReservationTable(
        held,
        np.zeros((moments, cells), np.int32),
        np.empty((moments, cells), np.int32),
        np.empty((moments, cells), np.int32),
        np.empty(moments, np.int32),
        np.zeros(1, np.int32),
    )


@njit(cache=True, nogil=True)
def _improve(table, ways, near, far, goal, agent, arrival):  # type: ignore[no-untyped-def]
    """Replans one agent to arrive as early as possible; returns whether it arrives earlier."""
    if arrival[agent] <= far[ways[0, agent]]:
        return False
    _hold(table, ways[:, agent], _FREE)
    found = _find(table, near, far, ways[0, agent], goal, arrival[agent] - 1)
    if found >= 0:
        arrival[agent] = found
        _follow(table, found, goal, ways[:, agent])
    _hold(table, ways[:, agent], agent)
    return found >= 0


@njit(cache=True, nogil=True)
def _hold(table, way, agent):  # type: ignore[no-untyped-def]
    for moment in range(way.size):
        table.held[moment, way[moment]] = agent


@njit(cache=True, nogil=True)
def _find(table, near, far, start, goal, latest):  # type: ignore[no-untyped-def]
    """Runs space-time A* for one agent around the reserved cells; writes to `table`.

    Returns the earliest time, up to `latest`, from which the agent can stay on its goal; -1 if
    there is none. The heuristic `far` [cells] is the path length without other agents. Nodes are
    kept in buckets by the earliest possible arrival instead of a heap. `table.came` holds the cell
    before each node on its path.
    """
    table.searches[0] += 1
    table.piles[:] = -1
    earliest = _last_held(table, goal) + 1
    _put(table, far, 0, start, start, earliest, latest)
    cells = near.shape[0]
    pile = max(far[start], earliest)
    while pile <= latest:
        top = table.piles[pile]
        if top < 0:
            pile += 1
            continue
        moment, cell = top // cells, top % cells
        table.piles[pile] = table.below[moment, cell]
        if cell == goal and moment >= earliest:
            return moment
        if moment < latest:
            _spread(table, near, far, moment, cell, earliest, latest)
    return -1


@njit(cache=True, nogil=True)
def _last_held(table, cell):  # type: ignore[no-untyped-def]
    moment = table.held.shape[0] - 1
    while moment >= 0 and table.held[moment, cell] == _FREE:
        moment -= 1
    return moment


@njit(cache=True, nogil=True)
def _spread(table, near, far, moment, cell, earliest, latest):  # type: ignore[no-untyped-def]
    """Expands an A* node: all moves from `cell` at time `moment` without a conflict or a swap."""
    for action in range(5):
        beyond = near[cell, action]
        if beyond < 0 or table.held[moment + 1, beyond] != _FREE:
            continue
        other = table.held[moment, beyond]
        if other == _FREE or table.held[moment + 1, cell] != other:
            _put(table, far, moment + 1, beyond, cell, earliest, latest)


@njit(cache=True, nogil=True)
def _put(table, far, moment, cell, before, earliest, latest):  # type: ignore[no-untyped-def]
    if table.seen[moment, cell] == table.searches[0]:
        return
    home = max(moment + far[cell], earliest)
    if home > latest:
        return
    table.seen[moment, cell] = table.searches[0]
    table.came[moment, cell] = before
    table.below[moment, cell] = table.piles[home]
    table.piles[home] = moment * table.held.shape[1] + cell


@njit(cache=True, nogil=True)
def _follow(table, arrival, goal, way):  # type: ignore[no-untyped-def]
    """Writes to `way` the path that space-time A* found, from the goal back to the start.

    After `arrival` the agent stays.
    """
    way[arrival:] = goal
    for moment in range(arrival, 0, -1):
        way[moment - 1] = table.came[moment, way[moment]]
