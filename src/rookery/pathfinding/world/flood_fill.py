"""Breadth-first search over the free cells of a map, compiled with numba.

A map of W columns is searched as a flat array with a border of obstacles, so that the search needs
no checks for the edge: cell (row, column) has the index (row + 1) * (W + 2) + column + 1.
"""

from numba import njit

WALL, UNSEEN = -2, -1


@njit(cache=True, nogil=True)
def frame(blocked, field):  # type: ignore[no-untyped-def]
    """Writes a map with its border to `field`: WALL for obstacles, UNSEEN for free cells."""
    rows, columns = blocked.shape
    field[:] = WALL
    for row in range(rows):
        at = (row + 1) * (columns + 2) + 1
        for column in range(columns):
            if blocked[row, column] == 0:
                field[at + column] = UNSEEN


@njit(cache=True, nogil=True)
def spread(field, width, start, value, step, queue, tail):  # type: ignore[no-untyped-def]
    """Writes to `field` the values of all cells that can be reached from the cell `start`.

    That is `value` for the start and `step` more for each cell further away. Rows have `width`
    cells. The reached cells are appended to `queue` from index `tail` on; returns its new end.
    """
    head = tail
    field[start], queue[tail] = value, start
    tail += 1
    while head < tail:
        at = queue[head]
        head += 1
        for move in (-width, width, -1, 1):
            if field[at + move] == UNSEEN:
                field[at + move] = field[at] + step
                queue[tail] = at + move
                tail += 1
    return tail
