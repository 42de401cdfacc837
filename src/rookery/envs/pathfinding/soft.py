"""POGEMA's collision rule `soft`, with agents that stay where their targets are and play on.

POGEMA (Skrynnik et al. 2025, "POGEMA: a benchmark platform for cooperative multi-agent
pathfinding") lets everybody claim a cell and then sends agents home until no cell is claimed twice:

1. Every agent, lowest number first, joins the queue of the cell it wants; its own if it stays.
2. Of two that want to swap, the lower number goes home: it joins the queue of its own cell, last.
3. The highest number first, whoever wants a wall or a cell that others claim too goes home. If its
   own cell has a queue, the first of that queue goes home in turn, and so on.

Following and rings of three or more are allowed, swaps are not, and of several that want one free
cell the lowest number gets it. The order of the agents runs through every step of this and yet
decides no more than that: `moves.reference` comes to the same end, as the tests check.
"""

import numpy as np
from numba import njit

from rookery.envs.pathfinding.rules import MOVES

_QUEUE = 5  # who can claim a cell: four neighbours, and who lives there


@njit(cache=True, nogil=True)
def soft(maps, occupant, place, action, moved):  # type: ignore[no-untyped-def]
    """Resolves moves as POGEMA does; see `moves` for what is given and written."""
    worlds, agents = action.shape
    home = np.empty(agents, dtype=np.int64)  # a cell's number; -1: nobody has this number
    claim = np.empty(agents, dtype=np.int64)  # the cell that is claimed; -1: a wall
    queue = np.empty((maps[0].size, _QUEUE), dtype=np.int64)
    length = np.zeros(maps[0].size, dtype=np.int64)
    for world in range(worlds):
        _aim(maps[world], place[world], action[world], home, claim)
        for i in range(agents):
            if claim[i] >= 0:
                _join(queue, length, claim[i], i)
        _part(occupant[world].ravel(), home, claim, queue, length)
        for i in range(agents - 1, -1, -1):
            if home[i] >= 0 and (claim[i] < 0 or length[claim[i]] > 1):
                _send_home(i, home, claim, queue, length)
        for i in range(agents):
            moved[world, i] = claim[i] != home[i]
            if home[i] >= 0:
                length[claim[i]] = 0


@njit(cache=True, nogil=True)
def _aim(blocked, place, action, home, claim):  # type: ignore[no-untyped-def]
    """Writes where everybody is and which cell each wants."""
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
def _part(occupant, home, claim, queue, length):  # type: ignore[no-untyped-def]
    """Turns the lower number of two that want to swap; the other finds its way blocked later."""
    for i in range(home.size):
        other = occupant[claim[i]] if claim[i] >= 0 else -1
        if other > i and claim[other] == home[i]:
            _leave(queue, length, claim[i], i)
            _join(queue, length, home[i], i)
            claim[i] = home[i]


@njit(cache=True, nogil=True)
def _send_home(who, home, claim, queue, length):  # type: ignore[no-untyped-def]
    """Turns one agent, then whoever was first to claim the cell it turns back to, and so on."""
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
