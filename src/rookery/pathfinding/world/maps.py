"""Generates random path-finding problem instances and checks given ones; compiled with numba.

A problem instance is a map with a start and a goal cell for each agent. Each has its own random
generator, so it depends on its seed alone.
"""

import numpy as np
from numba import njit

from rookery.pathfinding.world.flood_fill import UNSEEN, frame, spread

# Faults of a problem instance.
FINE, CELL, EMPTY, HALF, OUTSIDE, WALL, SHARED, APART = range(8)

_LOW, _MODE, _HIGH = 0.0, 0.33, 0.5  # triangular distribution of densities
_PAIR = 2  # cells per agent: start and goal
_START, _GOAL = 1, 2  # kind of a cell


@njit(cache=True, nogil=True)
def draw(seeds, density, tries, maps, starts, goals):  # type: ignore[no-untyped-def]
    """Writes a random problem instance for each seed to `maps`, `starts` and `goals`.

    For each seed up to `tries` maps are drawn until one has room for all N agents. Returns N if
    there was one for every seed. Otherwise stops at the first seed without one, and returns the
    largest number of agents that one of its maps has room for. `density` is the share of obstacles;
    if it is negative, each map draws its own.
    """
    agents, width = starts.shape[1], maps.shape[2] + 2
    state = np.zeros(1, dtype=np.uint64)
    label, cells, first, left = _scratch(maps.shape[1], maps.shape[2])
    for k in range(seeds.size):
        state[0], room, most, groups = np.uint64(seeds[k]), 0, 0, 0
        for _ in range(tries):
            _block(state, density, maps[k])
            groups = _group(maps[k], label, cells, first, left)
            room = np.sum(left[:groups] // _PAIR)
            most = max(most, room)
            if room >= agents:
                break
        if room < agents:
            return most
        for i in range(agents):
            _place(state, cells, first, left[:groups], width, starts[k, i], goals[k, i])
    return agents


@njit(cache=True, nogil=True)
def fault(maps, starts, goals, reachable):  # type: ignore[no-untyped-def]
    """Checks problem instances (maps, starts, goals); returns where and what the first fault is.

    The result is the index of the instance, the number of the agent (-1 for a fault of the whole
    instance) and a fault code such as WALL. It is -1, -1, FINE if there is no fault. With
    `reachable` an unreachable goal is a fault too.
    """
    _, rows, columns = maps.shape
    label, cells, first, left = _scratch(rows, columns)
    taken = np.zeros((rows, columns), dtype=np.uint8)
    for k in range(maps.shape[0]):
        if maps[k].max() > 1:
            return k, -1, CELL
        if starts[k].max() < 0 and goals[k].max() < 0:
            return k, -1, EMPTY
        if reachable:
            _group(maps[k], label, cells, first, left)
        taken[:] = 0
        for i in range(starts.shape[1]):
            found = _fault(maps[k], starts[k, i], goals[k, i], taken)
            if found == FINE and reachable and starts[k, i, 0] >= 0:
                group = label.reshape(rows + 2, columns + 2)[1:-1, 1:-1]
                here = group[starts[k, i, 0], starts[k, i, 1]]
                found = FINE if group[goals[k, i, 0], goals[k, i, 1]] == here else APART
            if found != FINE:
                return k, i, found
    return -1, -1, FINE


@njit(cache=True, nogil=True)
def _fault(blocked, start, goal, taken):  # type: ignore[no-untyped-def]
    """Returns the fault code of one agent's start and goal, and marks both as used in `taken`."""
    absent = (start[0] == -1) + (start[1] == -1) + (goal[0] == -1) + (goal[1] == -1)
    if absent:
        return FINE if absent == 4 else HALF
    for place, use in ((start, _START), (goal, _GOAL)):
        row, column = place[0], place[1]
        if not (0 <= row < blocked.shape[0] and 0 <= column < blocked.shape[1]):
            return OUTSIDE
        if blocked[row, column]:
            return WALL
        if taken[row, column] & use:
            return SHARED
        taken[row, column] |= use
    return FINE


@njit(cache=True, nogil=True)
def _scratch(rows, columns):  # type: ignore[no-untyped-def]
    """Allocates the output arrays of a connected component search, for maps with their border."""
    size = (rows + 2) * (columns + 2)
    label, cells = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
    return label, cells, np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)


@njit(cache=True, nogil=True)
def next_bits(state):  # type: ignore[no-untyped-def]
    """Returns 64 random bits, by SplitMix64 (Steele et al. 2014); `state` [1] is its state."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _random(state):  # type: ignore[no-untyped-def]
    """Returns a uniform random number in [0, 1)."""
    return np.float64(next_bits(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _density(state):  # type: ignore[no-untyped-def]
    """Draws an obstacle density from a triangular distribution (inverse transform sampling)."""
    share, width = _random(state), _HIGH - _LOW
    if share * width < _MODE - _LOW:
        return _LOW + np.sqrt(share * width * (_MODE - _LOW))
    return _HIGH - np.sqrt((1.0 - share) * width * (_HIGH - _MODE))


@njit(cache=True, nogil=True)
def _block(state, density, blocked):  # type: ignore[no-untyped-def]
    chance = density if density >= 0.0 else _density(state)
    for row in range(blocked.shape[0]):
        for column in range(blocked.shape[1]):
            blocked[row, column] = _random(state) < chance


@njit(cache=True, nogil=True)
def _group(blocked, label, cells, first, left):  # type: ignore[no-untyped-def]
    """Finds the connected components ("groups") of free cells; returns their number.

    Cells are numbered as in `flood_fill`. Group g has `left[g]` cells, stored in `cells` from index
    `first[g]` on. `label` holds the group of each free cell.
    """
    frame(blocked, label)
    groups, tail = 0, 0
    for start in range(label.size):
        if label[start] == UNSEEN:
            first[groups] = tail
            tail = spread(label, blocked.shape[1] + 2, start, groups, 0, cells, tail)
            left[groups] = tail - first[groups]
            groups += 1
    return groups


@njit(cache=True, nogil=True)
def _place(state, cells, first, left, width, start, goal):  # type: ignore[no-untyped-def]
    """Draws start and goal of one agent from one connected component, and marks them as used.

    A component is drawn with probability proportional to its number of unused cells.
    """
    total = 0
    for group in range(left.size):
        total += left[group] if left[group] >= _PAIR else 0
    pick, group = np.int64(_random(state) * total), -1
    while pick >= 0:
        group += 1
        pick -= left[group] if left[group] >= _PAIR else 0
    for place in (start, goal):
        at = first[group] + np.int64(_random(state) * left[group])
        last = first[group] + left[group] - 1
        place[0], place[1] = cells[at] // width - 1, cells[at] % width - 1
        cells[at], left[group] = cells[last], left[group] - 1
