"""A map as a graph for the planner, compiled with numba; vertex = row * width + column."""

import numpy as np
from numba import njit


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
            if blocked[row, column]:
                continue
            cell = row * width + column
            near[cell, 0] = cell
            if row > 0 and not blocked[row - 1, column]:
                near[cell, 1] = cell - width
            if row + 1 < height and not blocked[row + 1, column]:
                near[cell, 2] = cell + width
            if column > 0 and not blocked[row, column - 1]:
                near[cell, 3] = cell - 1
            if column + 1 < width and not blocked[row, column + 1]:
                near[cell, 4] = cell + 1
    return near


@njit(cache=True, nogil=True)
def draw(state):  # type: ignore[no-untyped-def]
    """Returns 32 random bits as an int64, by SplitMix64 (Steele et al. 2014).

    `state` [1] uint64 is the state of the generator.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(32))


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
