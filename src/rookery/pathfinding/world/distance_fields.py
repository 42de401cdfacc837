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
from rookery.pathfinding.world.flood_fill import UNSEEN, WALL, frame, spread
from rookery.pathfinding.world.rules import BLOCKED, NEARER


def distances(maps: Maps, goals: Places) -> npt.NDArray[np.int32]:
    """Returns the shortest path length from every cell to every agent's goal, [C, N, H, W].

    C is the number of problem instances, N of agents, H and W of rows and columns of a map. The
    value is -1 where a cell is blocked or the goal unreachable, and everywhere for absent agents.
    """
    found = np.full((*goals.shape[:2], *maps.shape[1:]), UNSEEN, dtype=np.int32)
    _distances(maps, goals, found)
    return found


@njit(cache=True, nogil=True)
def _distances(maps, goals, found):  # type: ignore[no-untyped-def]
    rows, columns = maps.shape[1:]
    bare, field, queue = _scratch(rows, columns)
    for k in range(goals.shape[0]):
        frame(maps[k], bare)
        for i in range(goals.shape[1]):
            if goals[k, i, 0] >= 0:
                _measure(bare, columns + 2, goals[k, i], field, queue)
                inside = field.reshape(rows + 2, columns + 2)[1:-1, 1:-1]
                found[k, i] = np.maximum(inside, UNSEEN)


@njit(cache=True, nogil=True)
def draw(which, maps, goals, radius, outside, planes):  # type: ignore[no-untyped-def]
    """Writes each agent's whole map, with one bit per observation channel, to `planes`.

    `planes` is uint8 [E, N, H + 2r, W + 2r]: E parallel grid worlds of N agents on maps of H rows
    and W columns, with a margin of the view radius r. Only the worlds with the indices `which` are
    written. `outside` is the bit code of cells outside of the map.
    """
    rows, columns = maps.shape[1:]
    bare, field, queue = _scratch(rows, columns)
    for world in which:
        frame(maps[world], bare)
        planes[world] = outside
        for i in range(goals.shape[1]):
            if goals[world, i, 0] >= 0:
                _measure(bare, columns + 2, goals[world, i], field, queue)
                _code(field, rows, columns, radius, planes[world, i])


@njit(cache=True, nogil=True)
def _scratch(rows, columns):  # type: ignore[no-untyped-def]
    bare = np.empty((rows + 2) * (columns + 2), dtype=np.int32)
    return bare, np.empty_like(bare), np.empty_like(bare)


@njit(cache=True, nogil=True)
def _measure(bare, width, goal, field, queue):  # type: ignore[no-untyped-def]
    """Writes the distances to one goal to `field`; none if the goal is on a blocked cell.

    `bare` is the map with its border, in rows of `width` cells.
    """
    field[:] = bare
    start = (goal[0] + 1) * width + goal[1] + 1
    if field[start] == UNSEEN:
        spread(field, width, start, 0, 1, queue, 0)


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
            code = BLOCKED if field[at] == WALL else 0
            if field[at] > 0:
                for direction, move in enumerate((-width, width, -1, 1)):
                    code |= (field[at + move] == field[at] - 1) * (NEARER << direction)
            plane[row + radius, column + radius] = code
