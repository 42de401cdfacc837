"""The collision rule: which agents of each world move, given the actions of all agents.

It is that of DHC (Ma, Luo, Ma 2021). The arguments of `resolve` are arrays of E parallel grid
worlds of N agents on maps of H rows and W columns:

    maps      uint8 [E, H, W]   1: blocked
    occupant  int16 [E, H, W]   the agent that stands in a cell, -1: none
    place     int16 [E, N, 2]   row and column of each agent, -1: an absent agent
    action    int64 [E, N]      0 stay, 1 up, 2 down, 3 left, 4 right
    moved     bool  [E, N]      output: whether an agent moves to the cell its action leads to

The rule `soft` of POGEMA (Skrynnik et al. 2025, "POGEMA: a benchmark platform for cooperative
multi-agent pathfinding") lets every agent claim its target cell. Then it sends agents back to their
own cells, until no cell is claimed twice: the lower number of two that would swap, then, highest
number first, each agent whose target is blocked or also claimed by others, and if others claim the
cell it returns to, the first of these, and so on.

Both rules let the same agents move. Soft never sends back an agent that moves here: take the first
one that it sends back. The occupant of its target moves here too, so that one was not sent back
before and the two do not swap. No lower number claims the target, or that one would move here in
its place; and a higher number with that claim was sent back before. So nothing sends it back.
An agent that stays here is sent back by soft, too. If it would swap, its partner never leaves the
cell it wants. If a lower number wants the same cell, that one claims it still or was sent back for
the cell's occupant, which then stays. If it waits for an agent ahead that stays, that one is back
in its cell, for the same reasons, and sends it back.
"""

import numpy as np
from numba import njit

from rookery.pathfinding.world.rules import MOVES

# The state of an agent while the moves are resolved.
_STAYS, _MOVES, _OPEN = range(3)


@njit(cache=True, nogil=True)
def resolve(maps, occupant, place, action, moved):  # type: ignore[no-untyped-def]
    """Writes to `moved` which agents move; never two into one cell, and never two that swap.

    Moves into obstacles fail. Both moves of a swap fail. Of several agents with the same target
    cell only the lowest number can succeed. A move into a cell whose occupant does not leave fails,
    and so do the moves of agents queued behind. All other moves succeed: into empty cells, behind
    each other, and in cycles of three or more. The module docstring lists the arguments.
    """
    worlds, agents = action.shape
    target = np.empty((agents, 2), dtype=np.int64)
    state = np.empty(agents, dtype=np.uint8)
    claim = np.full(maps.shape[1:], -1, dtype=np.int16)  # the agent that may enter a cell
    for world in range(worlds):
        _target_cells(maps[world], place[world], action[world], target, state)
        _stop_swaps(occupant[world], place[world], target, state)
        _keep_lowest(claim, target, state)
        _resolve_queues(occupant[world], target, state)
        for i in range(agents):
            moved[world, i] = state[i] == _MOVES


@njit(cache=True, nogil=True)
def _target_cells(blocked, place, action, target, state):  # type: ignore[no-untyped-def]
    """Writes the target cell of each action, and whether the agent may still move or stays.

    Moves into obstacles or off the map fail, so these agents stay.
    """
    rows, columns = blocked.shape
    for i in range(action.size):
        row = place[i, 0] + MOVES[action[i], 0]
        column = place[i, 1] + MOVES[action[i], 1]
        target[i, 0], target[i, 1], state[i] = row, column, _STAYS
        present, inside = place[i, 0] >= 0, 0 <= row < rows and 0 <= column < columns
        if present and inside and action[i] != 0 and blocked[row, column] == 0:
            state[i] = _OPEN


@njit(cache=True, nogil=True)
def _stop_swaps(occupant, place, target, state):  # type: ignore[no-untyped-def]
    """Cancels the moves of both agents of each pair that would swap cells."""
    for i in range(state.size):
        if state[i] != _OPEN:
            continue
        other = occupant[target[i, 0], target[i, 1]]
        if other < 0 or state[other] != _OPEN:
            continue
        if target[other, 0] == place[i, 0] and target[other, 1] == place[i, 1]:
            state[i] = state[other] = _STAYS


@njit(cache=True, nogil=True)
def _keep_lowest(claim, target, state):  # type: ignore[no-untyped-def]
    """Cancels the moves of all but the lowest-numbered of several agents with one target cell.

    `claim` is a scratch array with one entry per cell; it is all -1 before and after the call.
    """
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
def _resolve_queues(occupant, target, state):  # type: ignore[no-untyped-def]
    """Decides the moves that are still possible, one queue of agents behind each other at a time.

    Each cell has at most one agent that would enter it and one occupant, so the agents form queues
    and cycles that never join. A queue moves if the cell ahead of it is empty or becomes empty; a
    cycle rotates.
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
