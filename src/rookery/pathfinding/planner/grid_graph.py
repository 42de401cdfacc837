"""A map as a graph for the planner, compiled with numba; vertex = row * width + column."""

import numpy as np
from numba import njit

from rookery.pathfinding.world.maps import next_bits
from rookery.pathfinding.world.rules import MOVES


@njit(cache=True, nogil=True)
def link(blocked):  # type: ignore[no-untyped-def]
    """Returns the adjacency of a grid map, int32 [cells, 5].

    Entry [cell, action] is the cell that an action (0 stay, 1 up, 2 down, 3 left, 4 right) leads
    to; -1: blocked or outside of the map. Cells are numbered row by row.
    """
    height, width = blocked.shape
    near = np.full((height * width, 5), -1, np.int32)
    for row in range(height):
        for column in range(width):
            for action in range(5):
                y, x = row + MOVES[action, 0], column + MOVES[action, 1]
                inside = 0 <= y < height and 0 <= x < width
                if inside and not blocked[row, column] and not blocked[y, x]:
                    near[row * width + column, action] = y * width + x
    return near


@njit(cache=True, nogil=True)
def draw(state):  # type: ignore[no-untyped-def]
    """Returns 32 random bits as an int64; `state` [1] uint64 is the state of the generator."""
    return np.int64(next_bits(state) >> np.uint64(32))


@njit(cache=True, nogil=True)
def sort(order, key):  # type: ignore[no-untyped-def]
    """Sorts the indices `order` in place by ascending `key[index]`; the sort is stable.

    It is an insertion sort: most inputs are short or almost sorted, and numpy's sorts take seconds
    to compile.
    """
    for k in range(1, order.size):
        number, at = order[k], k
        while at > 0 and key[order[at - 1]] > key[number]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = number
