"""One step of all agents without a collision: priority inheritance with backtracking. Compiled.

Okumura et al. 2022, "Priority inheritance with backtracking for iterative multi-agent path
finding". Agents decide by priority. Who wants a cell that somebody undecided stands on makes that
one decide next, on its own behalf; where the other finds no way out, it stays, and the first takes
the next of its choices. Everybody may have to stay, so that there always is an answer, unless
somebody's step was prescribed (`pin`).

The calling sequence of one step; `turn` may be used again for the next one:

    begin(turn, cells)
    pin(turn, agent, cell)          # for whoever's step is prescribed
    prefer(turn, near, agent, key)  # for all others; turn.partner, where somebody is to pass
    settle(turn, agent)             # for all who are undecided (chosen < 0) by then, by priority
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.envs.pathfinding.graph import sort
from rookery.types import Array

NOBODY = -1
_DONE, _STUCK = -1, -2


class Turn(NamedTuple):
    """Where agents are, would like to be, and will be. Cells are int32, as in graph.py."""

    now: Array  # [N] cell of each agent
    there: Array  # [cells] who stands on it, or NOBODY
    choice: Array  # [N, 5] cells each agent may go to, best first; -1: none
    chosen: Array  # [N] cell after the step; -1: undecided
    taken: Array  # [cells] bool: somebody's after the step
    tried: Array  # [N] how many of its choices an agent has tried
    stack: Array  # [N] who waits for whom
    partner: Array  # [N] whom an agent lets pass, or NOBODY


@njit(cache=True, nogil=True)
def make_turn(agents, cells):  # type: ignore[no-untyped-def]
    return Turn(
        np.full(agents, -1, np.int32),
        np.full(cells, NOBODY, np.int32),
        np.full((agents, 5), -1, np.int32),
        np.full(agents, -1, np.int32),
        np.zeros(cells, np.bool_),
        np.zeros(agents, np.int32),
        np.zeros(agents, np.int32),
        np.full(agents, NOBODY, np.int32),
    )


@njit(cache=True, nogil=True)
def begin(turn, cells):  # type: ignore[no-untyped-def]
    """Puts all agents on these cells, and forgets what was decided before."""
    for agent in range(cells.size):
        if turn.chosen[agent] >= 0:
            turn.taken[turn.chosen[agent]] = False
        if turn.now[agent] >= 0:
            turn.there[turn.now[agent]] = NOBODY
        turn.chosen[agent] = -1
    for agent in range(cells.size):
        turn.now[agent] = cells[agent]
        turn.there[cells[agent]] = agent


@njit(cache=True, nogil=True)
def prefer(turn, near, agent, key):  # type: ignore[no-untyped-def]
    """Fills in an agent's choices: of its [5] actions the one with the lowest key first."""
    actions, count = np.arange(5), 0
    sort(actions, key)
    for action in actions:
        cell = near[turn.now[agent], action]
        if cell >= 0:
            turn.choice[agent, count] = cell
            count += 1
    turn.choice[agent, count:] = -1


@njit(cache=True, nogil=True)
def pin(turn, agent, cell):  # type: ignore[no-untyped-def]
    """Decides for an agent beforehand; False: that would collide with others of this kind."""
    if not _is_open(turn, agent, cell):
        return False
    turn.chosen[agent] = cell
    turn.taken[cell] = True
    return True


@njit(cache=True, nogil=True)
def _is_open(turn, agent, cell):  # type: ignore[no-untyped-def]
    """Is it nobody's yet, and does nobody come the other way?"""
    if cell < 0 or turn.taken[cell]:
        return False
    other = turn.there[cell]
    if other == NOBODY:
        return True
    return other == agent or turn.chosen[other] != turn.now[agent]


@njit(cache=True, nogil=True)
def settle(turn, agent):  # type: ignore[no-untyped-def]
    """Decides for an agent and for all whom it pushes; False: there is no cell left for it."""
    depth = 0
    _enter(turn, agent, depth)
    while depth >= 0:
        answer = _try_next(turn, turn.stack[depth])
        if answer == _DONE:  # what the last one could do lets all do that wait for it
            _pull(turn, depth)
            return True
        if answer == _STUCK:
            depth -= 1
        else:
            depth += 1
            _enter(turn, answer, depth)
    return False


@njit(cache=True, nogil=True)
def _enter(turn, agent, depth):  # type: ignore[no-untyped-def]
    """Begins with an agent's choices; from the last one, where it is to let somebody pass."""
    turn.stack[depth], turn.tried[agent] = agent, 0
    partner = turn.partner[agent]
    if partner == NOBODY:
        return
    if turn.chosen[partner] >= 0:
        turn.partner[agent] = NOBODY
        return
    count = 0
    while count < 5 and turn.choice[agent, count] >= 0:
        count += 1
    turn.choice[agent, :count] = turn.choice[agent, :count][::-1].copy()


@njit(cache=True, nogil=True)
def _pull(turn, depth):  # type: ignore[no-untyped-def]
    """Lets those follow whom somebody on the stack made way for."""
    for k in range(depth, -1, -1):
        agent = turn.stack[k]
        partner, cell = turn.partner[agent], turn.now[agent]
        if partner == NOBODY or turn.tried[agent] != 1 or turn.chosen[partner] >= 0:
            continue
        if not turn.taken[cell]:
            turn.chosen[partner] = cell
            turn.taken[cell] = True


@njit(cache=True, nogil=True)
def _try_next(turn, agent):  # type: ignore[no-untyped-def]
    """Takes an agent's next open choice; returns who has to make way for that, or an outcome."""
    for k in range(turn.tried[agent], 5):
        cell = turn.choice[agent, k]
        if not _is_open(turn, agent, cell):
            continue
        turn.tried[agent] = k + 1
        turn.chosen[agent] = cell
        turn.taken[cell] = True
        other = turn.there[cell]
        return other if other != NOBODY and turn.chosen[other] < 0 else _DONE
    turn.tried[agent] = 5
    turn.chosen[agent] = turn.now[agent]  # the one that waits for it has taken it: give it another
    return _STUCK
