"""Shortest-path distances from every cell to a goal, and the parts of observations made of them.

A **code plane** uint8 [H + 2r, W + 2r] is one agent's map of H rows and W columns with a margin of
`r` cells (the view radius). The bits of a cell are observation channels: an obstacle, and for each
direction whether that move shortens the path to the agent's goal. Other agents are not in it. An
agent's observation is a square cut out of its code plane.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.pathfinding.world.cases import Maps, Places
from rookery.pathfinding.world.rules import BLOCKED, NEARER

_WALL, _UNSEEN = -2, -1


def distances(maps: Maps, goals: Places) -> npt.NDArray[np.int32]:
    """Returns the shortest path length from every cell to every agent's goal, [C, N, H, W].

    C is the number of problem instances, N of agents, H and W of rows and columns of a map. The
    value is -1 where a cell is blocked or the goal unreachable, and everywhere for absent agents.
    """
    found = np.full((*goals.shape[:2], *maps.shape[1:]), _UNSEEN, dtype=np.int32)
    _distances(maps, goals, found)
    return found


@njit(cache=True, nogil=True)
def draw(which, maps, goals, radius, outside, planes):  # type: ignore[no-untyped-def]
    """Writes each agent's whole map, with one bit per observation channel, to `planes`.

    `planes` is uint8 [E, N, H + 2r, W + 2r]: E parallel grid worlds of N agents on maps of H rows
    and W columns, with a margin of the view radius r. Only the worlds with the indices `which` are
    written. `outside` is the bit code of cells outside of the map.
    """
    rows, columns = maps.shape[1:]
    fresh = np.empty((rows + 2) * (columns + 2), dtype=np.int32)
    field, queue = np.empty_like(fresh), np.empty_like(fresh)
    for world in which:
        _wall(maps[world], fresh)
        planes[world] = outside
        for i in range(goals.shape[1]):
            if goals[world, i, 0] >= 0:
                field[:] = fresh
                _spread(field, columns + 2, goals[world, i, 0], goals[world, i, 1], queue)
                _code(field, rows, columns, radius, planes[world, i])


@njit(cache=True, nogil=True)
def _distances(maps, goals, found):  # type: ignore[no-untyped-def]
    rows, columns = maps.shape[1:]
    field = np.empty((rows + 2) * (columns + 2), dtype=np.int32)
    queue = np.empty_like(field)
    for k in range(goals.shape[0]):
        for i in range(goals.shape[1]):
            if goals[k, i, 0] < 0:
                continue
            _wall(maps[k], field)
            _spread(field, columns + 2, goals[k, i, 0], goals[k, i, 1], queue)
            for row in range(rows):
                for column in range(columns):
                    at = (row + 1) * (columns + 2) + column + 1
                    found[k, i, row, column] = max(field[at], _UNSEEN)


@njit(cache=True, nogil=True)
def _wall(blocked, field):  # type: ignore[no-untyped-def]
    """Writes a flattened map with a border of obstacles to `field`, for breadth-first search.

    With the border the search needs no checks for the edge of the map.
    """
    rows, columns = blocked.shape
    field[:] = _WALL
    for row in range(rows):
        at = (row + 1) * (columns + 2) + 1
        for column in range(columns):
            if blocked[row, column] == 0:
                field[at + column] = _UNSEEN


@njit(cache=True, nogil=True)
def _spread(field, width, row, column, queue):  # type: ignore[no-untyped-def]
    """Writes to `field` the distances of all reachable cells to one goal cell, breadth first.

    Writes nothing if the goal cell is blocked.
    """
    start = (row + 1) * width + column + 1
    if field[start] == _WALL:
        return
    field[start], queue[0] = 0, start
    head, tail = 0, 1
    while head < tail:
        at = queue[head]
        head += 1
        further = field[at] + 1
        for step in (-width, width, -1, 1):
            if field[at + step] == _UNSEEN:
                field[at + step] = further
                queue[tail] = at + step
                tail += 1


@njit(cache=True, nogil=True)
def _code(field, rows, columns, radius, plane):  # type: ignore[no-untyped-def]
    """Writes the observation bits of every cell of one agent's map to `plane`, except its margin.

    `field` holds the path lengths from all cells to the agent's goal. The bits of a free cell say
    in which directions the path length is smaller by one.
    """
    width = columns + 2
    for row in range(rows):
        for column in range(columns):
            at = (row + 1) * width + column + 1
            here, code = field[at], np.uint8(0)
            if here == _WALL:
                code = np.uint8(BLOCKED)
            elif here > 0:
                nearer = here - 1
                code |= np.uint8(field[at - width] == nearer) * np.uint8(NEARER)
                code |= np.uint8(field[at + width] == nearer) * np.uint8(NEARER << 1)
                code |= np.uint8(field[at - 1] == nearer) * np.uint8(NEARER << 2)
                code |= np.uint8(field[at + 1] == nearer) * np.uint8(NEARER << 3)
            plane[row + radius, column + radius] = code
