"""Collision shield: converts action scores of all agents to collision-free actions by PIBT.

Each agent has a score for each of its five actions, for example Q values. Agents choose in order of
priority, each the best action that is still possible, and push other agents away (pibt.py). The
idea is that of Veerapaneni et al. 2024, "Improving learnt local MAPF policies with heuristic
search".
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.pathfinding.planner.grid_graph import link, sort
from rookery.pathfinding.planner.pibt import begin, decide, make_joint_step, prefer
from rookery.pathfinding.world.cases import Maps, Places
from rookery.types import Array, Floats


def shield(score: Floats, place: Places, maps: Maps, priority: Array) -> npt.NDArray[np.int64]:
    """Returns collision-free actions [E, N] of N agents in E worlds from action scores [E, N, 5].

    Scores may be Q values. `place` [E, N, 2] are the agents' rows and columns, and `maps` is
    [E, H, W] (rows and columns), as in `Worlds`. Agents with a higher `priority` [E, N] choose
    first. Ties go to the lowest agent or action number. Absent agents (position -1) stay.
    """
    action = np.zeros(priority.shape, dtype=np.int64)
    _shield(np.asarray(score, np.float32), place, maps, np.asarray(priority, np.float64), action)
    return action


@njit(cache=True, nogil=True)
def _shield(score, places, maps, priority, action):  # type: ignore[no-untyped-def]
    """Writes collision-free actions of the agents in all parallel grid worlds to `action`."""
    for world in range(maps.shape[0]):
        near = link(maps[world])
        present = np.flatnonzero(places[world, :, 0] >= 0)
        cells = places[world, :, 0].astype(np.int32) * maps.shape[2] + places[world, :, 1]
        cells = cells[present]
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


@njit(cache=True, nogil=True)
def _action(near, cell, target):  # type: ignore[no-untyped-def]
    action = 0
    while near[cell, action] != target:
        action += 1
    return action
