"""A shield: makes agents' wishes into actions of which none fails.

Each agent has a score for each of its five actions, say a network's values. PIBT (pibt.py) lets
agents choose by priority, each the best that is left, and moves others out of the way (the idea is
that of Veerapaneni et al. 2024, "Improving learnt local MAPF policies with heuristic search").
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.pathfinding.cases import Maps, Places
from rookery.envs.pathfinding.graph import link, sort
from rookery.envs.pathfinding.pibt import begin, make_turn, prefer, settle
from rookery.errors import ConfigError
from rookery.types import Array, Floats


def shield(score: Floats, place: Places, maps: Maps, priority: Array) -> npt.NDArray[np.int64]:
    """Returns actions [..., N] for scores [..., N, 5], places [..., N, 2] and priorities [..., N].

    `maps` is [..., H, W]. The highest priority chooses first; of equal ones, and of equal scores,
    the lowest number comes first. Whose place is -1 stays.
    """
    _fitting(score, place, maps, priority)
    action = np.zeros(priority.shape, dtype=np.int64)
    agents, (rows, columns) = priority.shape[-1], maps.shape[-2:]
    wrong = _shield(
        np.ascontiguousarray(score, dtype=np.float32).reshape(-1, agents, 5),
        np.ascontiguousarray(place, dtype=np.int64).reshape(-1, agents, 2),
        np.ascontiguousarray(maps, dtype=np.uint8).reshape(-1, rows, columns),
        np.ascontiguousarray(priority, dtype=np.float64).reshape(-1, agents),
        action.reshape(-1, agents),
    )
    if wrong:
        raise ConfigError(
            "agents stand on free cells of the map, each on its own, or have the place -1; got "
            "others: give the places and the map of the same moment"
        )
    return action


def _fitting(score: Floats, place: Places, maps: Maps, priority: Array) -> None:
    worlds, agents = priority.shape[:-1], priority.shape
    given = (score.shape, place.shape, maps.shape)
    if given != ((*agents, 5), (*agents, 2), (*worlds, *maps.shape[-2:])) or maps.ndim < 2:
        shapes = ", ".join(str(list(part.shape)) for part in (score, place, maps, priority))
        raise ConfigError(
            "a shield takes scores [..., N, 5], places [..., N, 2], maps [..., H, W] and "
            f"priorities [..., N], got {shapes}; give those of the same worlds and agents"
        )


@njit(cache=True, nogil=True)
def _shield(score, places, maps, priority, action):  # type: ignore[no-untyped-def]
    """Fills in the actions of all worlds; True: somebody stands where nobody can."""
    for world in range(maps.shape[0]):
        near = link(maps[world])
        present = np.flatnonzero(places[world, :, 0] >= 0)
        cells = _cells(near, places[world], maps.shape[1], maps.shape[2], present)
        if cells.size < present.size:
            return True
        turn = make_turn(cells.size, near.shape[0])
        begin(turn, cells)
        for k in range(cells.size):
            prefer(turn, near, k, -score[world, present[k]])
        order = np.arange(cells.size)
        sort(order, -priority[world][present])
        for k in order:
            if turn.chosen[k] < 0:
                settle(turn, k)
        for k in range(cells.size):
            action[world, present[k]] = _action(near, cells[k], turn.chosen[k])
    return False


@njit(cache=True, nogil=True)
def _cells(near, places, rows, columns, present):  # type: ignore[no-untyped-def]
    """Returns the cells of those present, or too few where they stand on walls or on others."""
    cells, taken = np.empty(present.size, np.int32), np.zeros(near.shape[0], np.bool_)
    for k in range(present.size):
        row, column = places[present[k]]
        if not (0 <= row < rows and 0 <= column < columns):
            return cells[:k]
        cell = row * columns + column
        if near[cell, 0] < 0 or taken[cell]:
            return cells[:k]
        cells[k], taken[cell] = cell, True
    return cells


@njit(cache=True, nogil=True)
def _action(near, cell, target):  # type: ignore[no-untyped-def]
    action = 0
    while near[cell, action] != target:
        action += 1
    return action
