"""Path finding, slow and plain: what the compiled worlds must agree with.

Written from the description of the system DHC, in sets and loops, without numpy's tricks. A cell is
(row, column); `places` has None for an absent agent.
"""

import numpy as np
from hypothesis import strategies as st

from rookery.pathfinding.world.cases import Cases

STEPS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


@st.composite
def crowds(draw, most=6):
    """Returns a case of up to most x most cells, as packed as may be, and an action for each."""
    rows, columns = draw(st.integers(1, most)), draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    blocked = (rng.random((rows, columns)) < draw(st.sampled_from((0, 0.1, 0.3)))).astype(np.uint8)
    blocked[rng.integers(rows), rng.integers(columns)] = 0
    free = np.argwhere(blocked == 0).astype(np.int16)
    count = draw(st.integers(1, len(free)))
    absent = np.full((draw(st.integers(0, 2)), 4), -1, dtype=np.int16)
    pairs = np.concatenate([rng.permutation(free)[:count], rng.permutation(free)[:count]], axis=1)
    slots = rng.permutation(np.concatenate([pairs, absent]))
    action = rng.integers(draw(st.integers(0, 1)), 5, size=len(slots))
    return Cases(blocked[None], slots[None, :, :2], slots[None, :, 2:]), action


def cells(places):
    return [(int(row), int(column)) if row >= 0 else None for row, column in places]


def beside(cell, action):
    return cell[0] + STEPS[action][0], cell[1] + STEPS[action][1]


def free_cells(blocked):
    return {(int(r), int(c)) for r, c in np.argwhere(blocked == 0)}


def arrived(free, places, actions, order):
    """Returns where everybody is after a step; conflicts are settled in any order: `order` draws.

    Movers into walls turn back, then those that would swap, then cells with several claims are
    looked at until there is none: if one of them is there already, the movers turn back; else all
    but the lowest number.
    """
    here = {i: cell for i, cell in enumerate(places) if cell is not None}
    want = {i: beside(cell, actions[i]) for i, cell in here.items()}
    for i in here:
        if want[i] not in free:
            want[i] = here[i]
    while swaps := _swaps(here, want):
        for i in order.choice(swaps):
            want[i] = here[i]
    while crowded := _crowded(want):
        claims = crowded[order.choice(sorted(crowded))]
        movers = [i for i in claims if want[i] != here[i]]
        losers = movers if len(movers) < len(claims) else sorted(movers)[1:]
        for i in losers:
            want[i] = here[i]
    return [want.get(i) for i in range(len(places))]


def _swaps(here, want):
    return [
        (i, j) for i in here for j in here if i < j and want[i] == here[j] and want[j] == here[i]
    ]


def _crowded(want):
    claims = {}
    for i, cell in want.items():
        claims.setdefault(cell, []).append(i)
    return {cell: who for cell, who in claims.items() if len(who) > 1}


def steps_to(free, goal):
    """Returns cell → steps to the goal, for those that have a way: one ring of cells at a time."""
    found, ring, steps = {goal: 0}, {goal}, 0
    while ring:
        steps += 1
        ring = {
            near
            for cell in ring
            for near in (beside(cell, action) for action in (1, 2, 3, 4))
            if near in free and near not in found
        }
        found.update(dict.fromkeys(ring, steps))
    return found


def seen(shape, free, places, i, goal, *, radius, outside):
    """Returns agent i's planes as sets: channel k → cells (y, x) of its window that have it."""
    steps, channels = steps_to(free, goal), [set() for _ in range(6)]
    others = {cell for j, cell in enumerate(places) if j != i and cell is not None}
    for y in range(2 * radius + 1):
        for x in range(2 * radius + 1):
            cell = places[i][0] + y - radius, places[i][1] + x - radius
            inside = 0 <= cell[0] < shape[0] and 0 <= cell[1] < shape[1]
            if cell in others:
                channels[0].add((y, x))
            if cell not in free and (inside or outside):
                channels[1].add((y, x))
            for action in (1, 2, 3, 4):
                if steps.get(beside(cell, action), np.inf) < steps.get(cell, -1):
                    channels[1 + action].add((y, x))
    return channels
