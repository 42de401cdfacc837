"""RGB image of a world: dark obstacles, agents as coloured squares, goals as coloured frames."""

import colorsys

import numpy as np

from rookery.pathfinding.world.cases import Maps, Places

TILE = 8  # pixels of a cell
_FREE, _BLOCKED = 244, 48
_TURN = 0.618034  # of the colour wheel between two agents, so that neighbours differ


def picture(blocked: Maps, place: Places, goals: Places, tile: int = TILE) -> Maps:
    """Returns an RGB image of one grid world, uint8 [H * tile, W * tile, 3].

    `blocked` is the map of H rows and W columns; a cell is `tile` pixels wide and high. `place` and
    `goals` [N, 2] are the rows and columns of N agents and their goals, -1 for absent agents.
    """
    grey = np.where(blocked, _BLOCKED, _FREE).astype(np.uint8)
    tiles = grey.repeat(tile, axis=0).repeat(tile, axis=1)
    painted = np.stack([tiles] * 3, axis=-1)
    edge = tile // 8  # between the sides of a cell and its content
    for number, goal in enumerate(goals):
        if goal[0] >= 0:
            inside = _cell(painted, goal, tile, 2 * edge + 1).copy()
            _cell(painted, goal, tile, edge)[:] = colour(number)
            _cell(painted, goal, tile, 2 * edge + 1)[:] = inside
    for number, cell in enumerate(place):
        if cell[0] >= 0:
            _cell(painted, cell, tile, 2 * edge)[:] = colour(number)
    return painted


def colour(number: int) -> tuple[int, int, int]:
    """Returns the colour of agent `number` as red, green and blue, each 0 to 255."""
    red, green, blue = colorsys.hsv_to_rgb(number * _TURN % 1.0, 0.75, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def _cell(painted: Maps, cell: Places, tile: int, inset: int) -> Maps:
    """Returns the image pixels of a cell, without `inset` pixels at each side."""
    row, column = (int(at) * tile for at in cell)
    return painted[row + inset : row + tile - inset, column + inset : column + tile - inset]
