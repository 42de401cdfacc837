"""PIBT: one collision-free step of all agents, compiled with numba.

Okumura et al. 2022, "Priority inheritance with backtracking for iterative multi-agent path
finding". Agents choose their next cells in order of priority. If an agent wants a cell that an
undecided agent occupies, that agent inherits the priority and chooses next. If the second agent
finds no free cell, it stays, and the first one tries its next choice. Staying is always possible,
so there always is a solution, unless steps were fixed in advance (`pin`).

Calls for one step; the `JointStep` `turn` can be reused for the next step:

    begin(turn, cells)
    pin(turn, agent, cell)          # for agents whose next cell is fixed in advance
    prefer(turn, near, agent, key)  # for all other agents; `swap.pair` may set turn.partner
    decide(turn, agent)             # by priority, for all agents that are undecided (chosen < 0)
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from rookery.pathfinding.planner.grid_graph import sort
from rookery.types import Array

NO_AGENT = -1
_DONE, _STUCK = -1, -2


class JointStep(NamedTuple):
    """State of one PIBT step: current, preferred and chosen cells of all agents, mostly int32."""

    now: Array  # [N] current cell of each agent
    there: Array  # [cells] the agent that occupies the cell, or NO_AGENT
    choice: Array  # [N, 5] cells each agent may go to, best first; -1: none
    chosen: Array  # [N] cell after the step; -1: undecided
    taken: Array  # [cells] bool: occupied after the step
    tried: Array  # [N] how many of its choices an agent has tried
    stack: Array  # [N] agents, each of which waits for the decision of the next one
    partner: Array  # [N] the agent that an agent swaps with by moving away first, or NO_AGENT


@njit(cache=True, nogil=True)
def make_joint_step(agents, cells):  # type: ignore[no-untyped-def]
    return JointStep(
        np.full(agents, -1, np.int32),
        np.full(cells, NO_AGENT, np.int32),
        np.full((agents, 5), -1, np.int32),
        np.full(agents, -1, np.int32),
        np.zeros(cells, np.bool_),
        np.zeros(agents, np.int32),
        np.zeros(agents, np.int32),
        np.full(agents, NO_AGENT, np.int32),
    )


@njit(cache=True, nogil=True)
def begin(turn, cells):  # type: ignore[no-untyped-def]
    """Starts a PIBT step: sets the current cells of all agents and clears their decisions."""
    for agent in range(cells.size):
        if turn.chosen[agent] >= 0:
            turn.taken[turn.chosen[agent]] = False
        if turn.now[agent] >= 0:
            turn.there[turn.now[agent]] = NO_AGENT
        turn.chosen[agent] = -1
    for agent in range(cells.size):
        turn.now[agent] = cells[agent]
        turn.there[cells[agent]] = agent


@njit(cache=True, nogil=True)
def prefer(turn, near, agent, key):  # type: ignore[no-untyped-def]
    """Writes an agent's preferred next cells: the targets of its 5 actions, by ascending `key` [5].

    `near` [cells, 5] is the cell that each action leads to, -1 if it is blocked.
    """
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
    """Fixes an agent's next cell; returns False if that collides with an agent fixed before."""
    if not _is_open(turn, agent, cell):
        return False
    turn.chosen[agent] = cell
    turn.taken[cell] = True
    return True


@njit(cache=True, nogil=True)
def _is_open(turn, agent, cell):  # type: ignore[no-untyped-def]
    """Returns whether an agent can move to a cell without a vertex conflict or a swap."""
    if cell < 0 or turn.taken[cell]:
        return False
    other = turn.there[cell]
    if other == NO_AGENT:
        return True
    return other == agent or turn.chosen[other] != turn.now[agent]


@njit(cache=True, nogil=True)
def decide(turn, agent):  # type: ignore[no-untyped-def]
    """Chooses the next cells of an agent and of all agents that it pushes away.

    Returns False if the agent cannot go to any cell, not even stay.
    """
    depth = 0
    _start_choices(turn, agent, depth)
    while depth >= 0:
        answer = _try_next_cell(turn, turn.stack[depth])
        if answer == _DONE:  # then all agents on the stack can move as well
            _pull_partners(turn, depth)
            return True
        if answer == _STUCK:
            depth -= 1
        else:
            depth += 1
            _start_choices(turn, answer, depth)
    return False


@njit(cache=True, nogil=True)
def _start_choices(turn, agent, depth):  # type: ignore[no-untyped-def]
    """Pushes an agent on the stack of agents that are choosing a next cell, all choices untried.

    If it has to swap with an undecided agent, the order of its choices is reversed: it moves away
    from its goal first.
    """
    turn.stack[depth], turn.tried[agent] = agent, 0
    partner = turn.partner[agent]
    if partner == NO_AGENT:
        return
    if turn.chosen[partner] >= 0:
        turn.partner[agent] = NO_AGENT
        return
    count = 0
    while count < 5 and turn.choice[agent, count] >= 0:
        count += 1
    turn.choice[agent, :count] = turn.choice[agent, :count][::-1].copy()


@njit(cache=True, nogil=True)
def _pull_partners(turn, depth):  # type: ignore[no-untyped-def]
    """Lets each agent's swap partner follow into the cell that the agent leaves.

    Applies to the agents on the stack up to index `depth` that got their first choice, if the
    partner is undecided.
    """
    for k in range(depth, -1, -1):
        agent = turn.stack[k]
        partner, cell = turn.partner[agent], turn.now[agent]
        if partner == NO_AGENT or turn.tried[agent] != 1 or turn.chosen[partner] >= 0:
            continue
        if not turn.taken[cell]:
            turn.chosen[partner] = cell
            turn.taken[cell] = True


@njit(cache=True, nogil=True)
def _try_next_cell(turn, agent):  # type: ignore[no-untyped-def]
    """Chooses the best cell that an agent has not tried yet and that is possible.

    Returns the undecided agent in that cell, which has to choose next; _DONE if there is none; or
    _STUCK if no cell is left, so the agent stays.
    """
    for k in range(turn.tried[agent], 5):
        cell = turn.choice[agent, k]
        if not _is_open(turn, agent, cell):
            continue
        turn.tried[agent] = k + 1
        turn.chosen[agent] = cell
        turn.taken[cell] = True
        other = turn.there[cell]
        return other if other != NO_AGENT and turn.chosen[other] < 0 else _DONE
    turn.tried[agent] = 5
    # The agent that waits for it has chosen this cell, and tries another one next.
    turn.chosen[agent] = turn.now[agent]
    return _STUCK
