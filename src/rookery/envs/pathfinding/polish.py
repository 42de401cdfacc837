"""Shortens the ways of a plan: takes some agents out and lets them look for better ones. Compiled.

With a few agents at a time, each in turn planned anew in space and time against all others, this
is large neighbourhood search (Li et al. 2021, "Anytime multi-agent path finding via large
neighborhood search"); with one at a time it is the step before that.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.envs.pathfinding.graph import draw, sort
from rookery.types import Array

_FREE = -1
_MOST = 8  # agents that are planned anew at once


class Clock(NamedTuple):
    """Who is where and when, T + 1 moments, and the notes of a search through them."""

    held: Array  # [T + 1, cells] int16 whose it is, or _FREE
    seen: Array  # [T + 1, cells] int32 the search that was there last
    came: Array  # [T + 1, cells] int8 by which action
    below: Array  # [T + 1, cells] int32 the next one of a pile, as moment * cells + cell, or -1
    piles: Array  # [T + 1] int32 the top one of those that get home at this moment, at best
    searches: Array  # [1] int32


@njit(cache=True, nogil=True)
def tighten(ways, near, far, goals):  # type: ignore[no-untyped-def]
    """Improves one agent's way after the other until none gets better; returns ways [T' + 1, N].

    Nobody arrives later than before. Here and below the given `ways` [T + 1, N] are changed.
    """
    clock, arrival = _make_clock(ways, near.shape[0]), arrivals(ways, goals)
    order, improved = np.arange(goals.size), True
    while improved:
        sort(order, -arrival)  # the last one to arrive first
        improved = False
        for agent in order:
            improved |= _improve(clock, ways, near, far[agent], goals[agent], agent, arrival)
    return ways[: arrival.max() + 1].copy()


@njit(cache=True, nogil=True)
def exchange(ways, near, far, goals, steps, rounds, state):  # type: ignore[no-untyped-def]
    """Plans a few agents anew, `rounds` times, and keeps what is better; returns ways [T' + 1, N].

    Better is what is less in sum; what comes after `steps` counts many times.
    """
    clock, arrival = _make_clock(ways, near.shape[0]), arrivals(ways, goals)
    some = np.empty(_MOST, np.int32)
    kept = np.empty((ways.shape[0], _MOST), np.int32)
    for _ in range(rounds):
        count = _gather(clock, ways, near, far, arrival, some, state)
        if count > 0:
            _replan(clock, ways, near, far, goals, arrival, some[:count], kept, steps)
    return ways[: arrival.max() + 1].copy()


@njit(cache=True, nogil=True)
def _gather(clock, ways, near, far, arrival, some, state):  # type: ignore[no-untyped-def]
    """Picks an agent that is late, and some that are in its way; returns how many."""
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
            clock, ways, near, far[first], first, arrival[first], some, count, size, state
        )
    for _ in range(4 * size):
        if count < size:
            count = _include(some, count, draw(state) % agents)
    for k in range(count - 1, 0, -1):
        j = draw(state) % (k + 1)
        some[k], some[j] = some[j], some[k]
    return count


@njit(cache=True, nogil=True)
def _meet(clock, ways, near, far, agent, until, some, count, size, state):  # type: ignore[no-untyped-def]
    """Walks towards the goal from somewhere on the way, and adds whoever stands there then."""
    moment = draw(state) % until
    cell = ways[moment, agent]
    while moment + 1 < clock.held.shape[0] and far[cell] > 0 and count < size:
        turn, ahead = draw(state), cell
        for k in range(4):
            beyond = near[cell, 1 + (turn + k) % 4]
            if beyond >= 0 and far[beyond] < far[cell]:
                ahead = beyond
                break
        moment, cell = moment + 1, ahead
        if clock.held[moment, cell] != _FREE:
            count = _include(some, count, clock.held[moment, cell])
    return count


@njit(cache=True, nogil=True)
def _include(some, count, agent):  # type: ignore[no-untyped-def]
    for k in range(count):
        if some[k] == agent:
            return count
    some[count] = agent
    return count + 1


@njit(cache=True, nogil=True)
def _replan(clock, ways, near, far, goals, arrival, some, kept, steps):  # type: ignore[no-untyped-def]
    """Plans some agents anew, in this order; puts everything back if that is not better."""
    before, after = np.int64(0), np.int64(0)
    for k, agent in enumerate(some):
        before += _price(arrival[agent], steps)
        kept[:, k] = ways[:, agent]
        _hold(clock, ways[:, agent], _FREE)
    done, latest = 0, arrival.max()
    for agent in some:
        found = _find(clock, near, far[agent], ways[0, agent], goals[agent], latest)
        if found < 0:
            break
        after += _price(found, steps)
        if after > before:
            break
        _follow(clock, near, found, goals[agent], ways[:, agent])
        _hold(clock, ways[:, agent], agent)
        done += 1
    if done == some.size:
        for agent in some:
            arrival[agent] = arrive(ways[:, agent], goals[agent])
        return
    for agent in some[:done]:
        _hold(clock, ways[:, agent], _FREE)
    for k, agent in enumerate(some):
        ways[:, agent] = kept[:, k]
        _hold(clock, ways[:, agent], agent)


@njit(cache=True, nogil=True)
def price(ways, goals, steps):  # type: ignore[no-untyped-def]
    """Returns the sum of what agents cost; what comes after `steps` counts many times."""
    total = np.int64(0)
    for arrival in arrivals(ways, goals):
        total += _price(arrival, steps)
    return total


@njit(cache=True, nogil=True)
def _price(arrival, steps):  # type: ignore[no-untyped-def]
    return np.int64(arrival) + 64 * max(np.int64(0), np.int64(arrival) - steps)


@njit(cache=True, nogil=True)
def arrivals(ways, goals):  # type: ignore[no-untyped-def]
    """Returns [N] int32: when each agent is on its goal for good."""
    arrival = np.empty(goals.size, np.int32)
    for agent in range(goals.size):
        arrival[agent] = arrive(ways[:, agent], goals[agent])
    return arrival


@njit(cache=True, nogil=True)
def arrive(way, goal):  # type: ignore[no-untyped-def]
    """Returns the first moment from which on somebody is on its goal for good."""
    moment = way.size
    while moment > 0 and way[moment - 1] == goal:
        moment -= 1
    return moment


@njit(cache=True, nogil=True)
def _make_clock(ways, cells):  # type: ignore[no-untyped-def]
    moments = ways.shape[0]
    held = np.full((moments, cells), _FREE, np.int16)
    for moment in range(moments):
        for agent in range(ways.shape[1]):
            held[moment, ways[moment, agent]] = agent
    return Clock(
        held,
        np.zeros((moments, cells), np.int32),
        np.empty((moments, cells), np.int8),
        np.empty((moments, cells), np.int32),
        np.empty(moments, np.int32),
        np.zeros(1, np.int32),
    )


@njit(cache=True, nogil=True)
def _improve(clock, ways, near, far, goal, agent, arrival):  # type: ignore[no-untyped-def]
    """Gives one agent the way on which it arrives first; is that earlier than before?"""
    if arrival[agent] <= far[ways[0, agent]]:
        return False
    _hold(clock, ways[:, agent], _FREE)
    found = _find(clock, near, far, ways[0, agent], goal, arrival[agent] - 1)
    if found >= 0:
        arrival[agent] = found
        _follow(clock, near, found, goal, ways[:, agent])
    _hold(clock, ways[:, agent], agent)
    return found >= 0


@njit(cache=True, nogil=True)
def _hold(clock, way, agent):  # type: ignore[no-untyped-def]
    for moment in range(way.size):
        clock.held[moment, way[moment]] = agent


@njit(cache=True, nogil=True)
def _find(clock, near, far, start, goal, latest):  # type: ignore[no-untyped-def]
    """Returns the earliest moment, `latest` at most, to be on the goal for good, or -1.

    A* over moments and cells; what `far` says is exact where nobody is in the way, so that piles
    by the moment of arrival take the place of a heap. `clock.came` then leads back.
    """
    clock.searches[0] += 1
    clock.piles[:] = -1
    earliest = _last_held(clock, goal) + 1
    _put(clock, far, 0, start, 0, earliest, latest)
    cells = near.shape[0]
    pile = max(far[start], earliest)
    while pile <= latest:
        top = clock.piles[pile]
        if top < 0:
            pile += 1
            continue
        moment, cell = top // cells, top % cells
        clock.piles[pile] = clock.below[moment, cell]
        if cell == goal and moment >= earliest:
            return moment
        if moment < latest:
            _spread(clock, near, far, moment, cell, earliest, latest)
    return -1


@njit(cache=True, nogil=True)
def _last_held(clock, cell):  # type: ignore[no-untyped-def]
    moment = clock.held.shape[0] - 1
    while moment >= 0 and clock.held[moment, cell] == _FREE:
        moment -= 1
    return moment


@njit(cache=True, nogil=True)
def _spread(clock, near, far, moment, cell, earliest, latest):  # type: ignore[no-untyped-def]
    """Goes on from a cell, if nobody comes the other way."""
    for action in range(5):
        beyond = near[cell, action]
        if beyond < 0 or clock.held[moment + 1, beyond] != _FREE:
            continue
        other = clock.held[moment, beyond]
        if other == _FREE or clock.held[moment + 1, cell] != other:
            _put(clock, far, moment + 1, beyond, action, earliest, latest)


@njit(cache=True, nogil=True)
def _put(clock, far, moment, cell, action, earliest, latest):  # type: ignore[no-untyped-def]
    if clock.seen[moment, cell] == clock.searches[0]:
        return
    home = max(moment + far[cell], earliest)
    if home > latest:
        return
    clock.seen[moment, cell] = clock.searches[0]
    clock.came[moment, cell] = action
    clock.below[moment, cell] = clock.piles[home]
    clock.piles[home] = moment * clock.held.shape[1] + cell


@njit(cache=True, nogil=True)
def _follow(clock, near, arrival, goal, way):  # type: ignore[no-untyped-def]
    """Writes down the way that was found, back from the goal."""
    way[arrival:] = goal
    cell = goal
    for moment in range(arrival, 0, -1):
        cell = _source(near, cell, clock.came[moment, cell])
        way[moment - 1] = cell


@njit(cache=True, nogil=True)
def _source(near, cell, action):  # type: ignore[no-untyped-def]
    """Returns the cell from which an action leads here: the opposite action's target."""
    if action == 0:
        return cell
    return near[cell, action + 1 if action % 2 == 1 else action - 1]
