"""Detects pairs of agents that must swap positions in a corridor; compiled with numba.

This is the swap operation of Okumura 2023, "Improving LaCAM for scalable eventually optimal
multi-agent pathfinding": two agents can pass each other in a corridor only at a branching cell. One
of them moves away from its goal towards that cell, and the other one follows directly behind.
"""

from numba import njit

from rookery.pathfinding.planner.pibt import NO_AGENT


@njit(cache=True, nogil=True)
def pair(turn, near, far, goals):  # type: ignore[no-untyped-def]
    """Writes to `turn.partner`, for each agent, the agent it must swap positions with, or NO_AGENT.

    `turn` is the state of one PIBT step. `near` [cells, 5] is the cell that each action leads to,
    `far` [N, cells] the path lengths to the goals of N agents.
    """
    for agent in range(goals.size):
        turn.partner[agent] = _partner(turn, near, far, goals, agent)


@njit(cache=True, nogil=True)
def _partner(turn, near, far, goals, agent):  # type: ignore[no-untyped-def]
    here, best = turn.now[agent], turn.choice[agent, 0]
    if best == here:
        return NO_AGENT
    other = turn.there[best]
    if other != NO_AGENT and _swap(turn, near, far, goals, agent, other, here, best):
        return other
    for action in range(1, 5):  # an agent behind it may need the cell it would go to
        beside = near[here, action]
        if beside < 0 or beside == best:
            continue
        other = turn.there[beside]
        if other != NO_AGENT and _swap(turn, near, far, goals, other, agent, here, best):
            return other
    return NO_AGENT


@njit(cache=True, nogil=True)
def _swap(turn, near, far, goals, pusher, pushed, back, front):  # type: ignore[no-untyped-def]
    must = _must(turn, near, far, goals, pusher, pushed, back, front)
    return must and _can(turn, near, goals, front, back)


@njit(cache=True, nogil=True)
def _must(turn, near, far, goals, pusher, pushed, back, front):  # type: ignore[no-untyped-def]
    """Returns whether two agents must swap positions to reach their goals.

    This simulates that agent `pusher`, at cell `back`, moves towards its goal and pushes agent
    `pushed`, at cell `front`, ahead of it. They need no swap if the corridor branches, or if the
    pushed agent does not have to go back past the other one.
    """
    while far[pusher, front] < far[pusher, back]:
        exits, beyond = _exits(turn, near, goals, back, front)
        if exits > 1:
            return False
        if exits == 0:
            break
        back, front = front, beyond
    meets = far[pusher, back] == 0 or far[pusher, front] < far[pusher, back]
    return meets and far[pushed, back] < far[pushed, front]


@njit(cache=True, nogil=True)
def _can(turn, near, goals, back, front):  # type: ignore[no-untyped-def]
    """Returns whether two agents that face each other in a corridor can swap places.

    They can if the corridor, followed from cell `back` through cell `front`, reaches a junction.
    """
    first = back
    while front != first:
        exits, beyond = _exits(turn, near, goals, back, front)
        if exits != 1:
            return exits > 1
        back, front = front, beyond
    return False


@njit(cache=True, nogil=True)
def _exits(turn, near, goals, back, here):  # type: ignore[no-untyped-def]
    """Returns how many neighbour cells of `here` other than `back` are passable, and one of them.

    A dead-end cell whose occupant has its goal there counts as not passable.
    """
    exits, beyond = 0, -1
    for action in range(1, 5):
        cell = near[here, action]
        if cell < 0 or cell == back:
            continue
        other = turn.there[cell]
        if other != NO_AGENT and goals[other] == cell and _degree(near, cell) == 1:
            continue
        exits, beyond = exits + 1, cell
    return exits, beyond


@njit(cache=True, nogil=True)
def _degree(near, cell):  # type: ignore[no-untyped-def]
    count = 0
    for action in range(1, 5):
        count += near[cell, action] >= 0
    return count
