"""Collision shield: converts action scores of all agents to collision-free actions by PIBT.

Each agent has a score for each of its five actions, for example Q values. Agents choose in order of
priority, each the best action that is still possible, and push other agents away (pibt.py). The
idea is that of Veerapaneni et al. 2024, "Improving learnt local MAPF policies with heuristic
search".
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.errors import ConfigError
from rookery.pathfinding.planner.grid_graph import link, sort
from rookery.pathfinding.planner.pibt import begin, decide, make_joint_step, prefer
from rookery.pathfinding.world.cases import Maps, Places
from rookery.types import Array, Floats


def shield(score: Floats, place: Places, maps: Maps, priority: Array) -> npt.NDArray[np.int64]:
    """Returns collision-free actions [..., N] of N agents from action scores [..., N, 5], by PIBT.

    Scores may be Q values. `place` [..., N, 2] are the agents' rows and columns, and `maps` is
    [..., H, W] (rows and columns). Agents with a higher `priority` [..., N] choose first. Ties go
    to the lowest agent or action number. Absent agents (position -1) stay. Raises ConfigError for
    invalid positions or shapes.
    """
    _check_shapes(score, place, maps, priority)
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


def _check_shapes(score: Floats, place: Places, maps: Maps, priority: Array) -> None:
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
    """Writes collision-free actions of the agents in all parallel grid worlds to `action`.

    Returns True, and stops, if agents' positions are invalid: on a blocked cell, outside of the
    map, or two agents in one cell. Returns False otherwise.
    """
    for world in range(maps.shape[0]):
        near = link(maps[world])
        present = np.flatnonzero(places[world, :, 0] >= 0)
        cells = _cells(near, places[world], maps.shape[1], maps.shape[2], present)
        if cells.size < present.size:
            return True
        turn = make_joint_step(cells.size, near.shape[0])
        begin(turn, cells)
        for k in range(cells.size):
            prefer(turn, near, k, -score[world, present[k]])
        order = np.arange(cells.size)
        sort(order, -priority[world][present])
        for k in order:
            if turn.chosen[k] < 0:
                decide(turn, k)
        for k in range(cells.size):
            action[world, present[k]] = _action(near, cells[k], turn.chosen[k])
    return False


@njit(cache=True, nogil=True)
def _cells(near, places, rows, columns, present):  # type: ignore[no-untyped-def]
    """Returns the cell numbers of the present agents, up to the first invalid position.

    A position is invalid if it is outside of the map, on a blocked cell or in the cell of another
    agent. If there is an invalid position, the result is shorter than `present`.
    """
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
