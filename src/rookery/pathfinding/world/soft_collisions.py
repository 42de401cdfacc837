"""POGEMA's collision rule `soft`, for agents that stay in the world after reaching their goals.

POGEMA (Skrynnik et al. 2025, "POGEMA: a benchmark platform for cooperative multi-agent
pathfinding") lets each agent claim its target cell and then cancels moves until no cell is claimed
twice. An agent whose move is cancelled claims its current cell instead.

1. Every agent, lowest number first, joins the queue of its target cell (its own cell if it stays).
2. Of two agents that would swap cells, the move of the lower number is cancelled; it joins the end
   of its own cell's queue.
3. Highest number first, the move of an agent is cancelled if its target is blocked or also claimed
   by others. If its own cell has a queue, the move of the first agent in that queue is cancelled
   next, and so on.

Agents may follow each other and rotate in cycles of three or more, but not swap. Of several agents
with the same free target cell the lowest number moves. `collisions.reference` gives the same
result, as the tests check.
"""

import numpy as np
from numba import njit

from rookery.pathfinding.world.rules import MOVES

_QUEUE = 5  # possible claims of a cell: four neighbours and its occupant


@njit(cache=True, nogil=True)
def soft(maps, occupant, place, action, moved):  # type: ignore[no-untyped-def]
    """Collision rule `soft` of POGEMA: writes which agents' moves succeed to `moved`.

    The module `collisions` lists the arguments of collision rules.
    """
    worlds, agents = action.shape
    home = np.empty(agents, dtype=np.int64)  # the agent's cell; -1: an absent agent
    claim = np.empty(agents, dtype=np.int64)  # the claimed cell; -1: a wall
    queue = np.empty((maps[0].size, _QUEUE), dtype=np.int64)
    length = np.zeros(maps[0].size, dtype=np.int64)
    for world in range(worlds):
        _aim(maps[world], place[world], action[world], home, claim)
        for i in range(agents):
            if claim[i] >= 0:
                _join(queue, length, claim[i], i)
        _stop_swaps(occupant[world].ravel(), home, claim, queue, length)
        for i in range(agents - 1, -1, -1):
            if home[i] >= 0 and (claim[i] < 0 or length[claim[i]] > 1):
                _send_home(i, home, claim, queue, length)
        for i in range(agents):
            moved[world, i] = claim[i] != home[i]
            if home[i] >= 0:
                length[claim[i]] = 0


@njit(cache=True, nogil=True)
def _aim(blocked, place, action, home, claim):  # type: ignore[no-untyped-def]
    """Writes the current cell (`home`) and the target cell (`claim`) of each agent.

    The target cell is -1 if it is blocked or outside of the map; both are -1 for absent agents.
    """
    rows, columns = blocked.shape
    for i in range(action.size):
        home[i] = claim[i] = -1
        if place[i, 0] < 0:
            continue
        home[i] = place[i, 0] * columns + place[i, 1]
        row = place[i, 0] + MOVES[action[i], 0]
        column = place[i, 1] + MOVES[action[i], 1]
        if 0 <= row < rows and 0 <= column < columns and blocked[row, column] == 0:
            claim[i] = row * columns + column


@njit(cache=True, nogil=True)
def _stop_swaps(occupant, home, claim, queue, length):  # type: ignore[no-untyped-def]
    """Cancels the move of the lower-numbered agent of each pair that would swap cells.

    The move of the other agent is cancelled by the caller, since its target cell is then occupied.
    """
    for i in range(home.size):
        other = occupant[claim[i]] if claim[i] >= 0 else -1
        if other > i and claim[other] == home[i]:
            _leave(queue, length, claim[i], i)
            _join(queue, length, home[i], i)
            claim[i] = home[i]


@njit(cache=True, nogil=True)
def _send_home(who, home, claim, queue, length):  # type: ignore[no-untyped-def]
    """Cancels the move of agent `who`, which then claims its current cell (`home`).

    If others are in the queue of that cell, cancels the move of the first one next, and so on.
    """
    while True:
        if claim[who] >= 0:
            _leave(queue, length, claim[who], who)
        claim[who] = home[who]
        _join(queue, length, claim[who], who)
        if length[claim[who]] == 1:
            return
        who = queue[claim[who], 0]


@njit(cache=True, nogil=True)
def _join(queue, length, cell, who):  # type: ignore[no-untyped-def]
    queue[cell, length[cell]] = who
    length[cell] += 1


@njit(cache=True, nogil=True)
def _leave(queue, length, cell, who):  # type: ignore[no-untyped-def]
    kept = 0
    for at in range(length[cell]):
        if queue[cell, at] != who:
            queue[cell, kept] = queue[cell, at]
            kept += 1
    length[cell] = kept
