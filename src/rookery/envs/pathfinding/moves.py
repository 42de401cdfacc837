"""Moves: who gets where it wants to go, decided for all agents of a world at once.

A rule is a compiled function

    rule(maps, occupant, place, action, moved)

    maps      uint8 [E, H, W]   1: blocked
    occupant  int16 [E, H, W]   the number of the agent that stands in a cell, -1: nobody
    place     int16 [E, N, 2]   row and column of each agent, -1: nobody has this number
    action    int64 [E, N]      of `rules.MOVES`, all within 0 to 4
    moved     bool  [E, N]      written: who leaves its cell for the one its action leads to

It changes nothing but `moved`. Nobody is ever where somebody else is, on the way in or out, and a
number that nobody has does not move, whatever its action.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from rookery.envs.pathfinding.rules import MOVES, Collision
from rookery.envs.pathfinding.soft import soft

Rule: TypeAlias = Callable[[Any, Any, Any, Any, Any], None]

# What is known of an agent, while the others are looked at.
_STAYS, _MOVES, _OPEN = range(3)


@njit(cache=True, nogil=True)
def reference(maps, occupant, place, action, moved):  # type: ignore[no-untyped-def]
    """The rule of DHC (Ma, Luo, Ma 2021) as a fixpoint, so that no order has to be agreed on.

    Those that run into a wall fail, those that would swap cells both fail, and of several that want
    one cell all but the lowest number fail. Whoever wants a cell that is not left fails as well,
    and so on backwards. What is left moves: into empty cells, behind each other, in rings of three
    or more.
    """
    worlds, agents = action.shape
    target = np.empty((agents, 2), dtype=np.int64)
    state = np.empty(agents, dtype=np.uint8)
    claim = np.full(maps.shape[1:], -1, dtype=np.int16)  # who is to have a cell
    for world in range(worlds):
        _want(maps[world], place[world], action[world], target, state)
        _part(occupant[world], place[world], target, state)
        _claim(claim, target, state)
        _follow(occupant[world], target, state)
        for i in range(agents):
            moved[world, i] = state[i] == _MOVES


RESOLVE: dict[Collision, Rule] = {Collision.REFERENCE: reference, Collision.SOFT: soft}


@njit(cache=True, nogil=True)
def _want(blocked, place, action, target, state):  # type: ignore[no-untyped-def]
    """Finds where everybody wants to go; walls and the map's edge are not to be entered."""
    rows, columns = blocked.shape
    for i in range(action.size):
        row = place[i, 0] + MOVES[action[i], 0]
        column = place[i, 1] + MOVES[action[i], 1]
        target[i, 0], target[i, 1], state[i] = row, column, _STAYS
        present, inside = place[i, 0] >= 0, 0 <= row < rows and 0 <= column < columns
        if present and inside and action[i] != 0 and blocked[row, column] == 0:
            state[i] = _OPEN


@njit(cache=True, nogil=True)
def _part(occupant, place, target, state):  # type: ignore[no-untyped-def]
    """Stops both of two that want to swap."""
    for i in range(state.size):
        if state[i] != _OPEN:
            continue
        other = occupant[target[i, 0], target[i, 1]]
        if other < 0 or state[other] != _OPEN:
            continue
        if target[other, 0] == place[i, 0] and target[other, 1] == place[i, 1]:
            state[i] = state[other] = _STAYS


@njit(cache=True, nogil=True)
def _claim(claim, target, state):  # type: ignore[no-untyped-def]
    """Leaves one candidate for each cell, the lowest number; `claim` is empty again afterwards."""
    for i in range(state.size):
        if state[i] == _OPEN:
            if claim[target[i, 0], target[i, 1]] < 0:
                claim[target[i, 0], target[i, 1]] = i
            else:
                state[i] = _STAYS
    for i in range(state.size):
        if state[i] == _OPEN:
            claim[target[i, 0], target[i, 1]] = -1


@njit(cache=True, nogil=True)
def _follow(occupant, target, state):  # type: ignore[no-untyped-def]
    """Settles the candidates, a queue of them at a time.

    A cell has one candidate and one occupant, so whoever waits for whom forms queues and rings that
    never join. A queue goes as its head goes; a ring turns.
    """
    for first in range(state.size):
        if state[first] != _OPEN:
            continue
        last, ahead = first, occupant[target[first, 0], target[first, 1]]
        while ahead >= 0 and state[ahead] == _OPEN and ahead != first:
            last, ahead = ahead, occupant[target[ahead, 0], target[ahead, 1]]
        stuck = ahead >= 0 and state[ahead] == _STAYS
        at = first
        while True:
            state[at] = _STAYS if stuck else _MOVES
            if at == last:
                break
            at = occupant[target[at, 0], target[at, 1]]
