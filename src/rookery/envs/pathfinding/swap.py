"""Who has to let whom pass in a corridor, so that the two change places. Compiled.

The idea is that of Okumura 2023, "Improving LaCAM for scalable eventually optimal multi-agent
pathfinding": two that want past each other in a corridor can do so only at a fork. There the one
with the higher priority goes away from its goal, and pulls the other behind it.
"""

from numba import njit

from rookery.envs.pathfinding.pibt import NOBODY


@njit(cache=True, nogil=True)
def pair(turn, near, far, goals):  # type: ignore[no-untyped-def]
    """Fills `turn.partner`: for each agent the one it lets pass, or NOBODY."""
    for agent in range(goals.size):
        turn.partner[agent] = _partner(turn, near, far, goals, agent)


@njit(cache=True, nogil=True)
def _partner(turn, near, far, goals, agent):  # type: ignore[no-untyped-def]
    here, best = turn.now[agent], turn.choice[agent, 0]
    if best == here:
        return NOBODY
    other = turn.there[best]
    if (
        other != NOBODY
        and _must(turn, near, far, goals, agent, other, here, best)
        and _can(turn, near, goals, best, here)
    ):
        return other
    for action in range(1, 5):  # somebody behind it may need the cell that it would go to
        beside = near[here, action]
        if beside < 0 or beside == best:
            continue
        other = turn.there[beside]
        if (
            other != NOBODY
            and _must(turn, near, far, goals, other, agent, here, best)
            and _can(turn, near, goals, best, here)
        ):
            return other
    return NOBODY


@njit(cache=True, nogil=True)
def _must(turn, near, far, goals, pusher, pushed, back, front):  # type: ignore[no-untyped-def]
    """Can the one at `back` not get to its goal but through the other, all along the corridor?"""
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
    """Does the way from `back` over `front` come to a fork?"""
    first = back
    while front != first:
        exits, beyond = _exits(turn, near, goals, back, front)
        if exits != 1:
            return exits > 1
        back, front = front, beyond
    return False


@njit(cache=True, nogil=True)
def _exits(turn, near, goals, back, here):  # type: ignore[no-untyped-def]
    """Returns how many ways lead on from `here`, and one of them.

    A dead end in which somebody is at home is none.
    """
    exits, beyond = 0, -1
    for action in range(1, 5):
        cell = near[here, action]
        if cell < 0 or cell == back:
            continue
        other = turn.there[cell]
        if other != NOBODY and goals[other] == cell and _degree(near, cell) == 1:
            continue
        exits, beyond = exits + 1, cell
    return exits, beyond


@njit(cache=True, nogil=True)
def _degree(near, cell):  # type: ignore[no-untyped-def]
    count = 0
    for action in range(1, 5):
        count += near[cell, action] >= 0
    return count
