"""POGEMA's rule for all states, against the rule as it is told, and against POGEMA itself."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rookery.pathfinding.world.collisions import resolve
from rookery.pathfinding.world.rules import MOVES

RECORDED = Path(__file__).parent.parent / "data" / "pogema_soft.npz"


@st.composite
def crowds(draw):
    """Returns a map, places on its free cells in any order, some of them nobody's, and actions."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    blocked = (rng.random((rows, columns)) < draw(st.sampled_from((0, 0.1, 0.3)))).astype(np.uint8)
    free = rng.permutation(np.argwhere(blocked == 0)).astype(np.int16)
    place = free[: draw(st.integers(0, len(free)))]
    absent = np.full((draw(st.integers(0, 2)), 2), -1, dtype=np.int16)
    place = rng.permutation(np.concatenate((place, absent)))
    action = rng.integers(draw(st.integers(0, 1)), 5, size=len(place))
    return blocked, place, action


@given(crowds())
def test_all_agents_move_as_the_rule_soft_is_defined(crowd):
    after = resolved(*crowd)

    assert after.tolist() == told(*crowd)


@given(crowds())
def test_it_never_puts_two_into_a_cell_nor_lets_them_swap(crowd):
    _, place, _ = crowd
    after = resolved(*crowd)
    before = [tuple(cell) for cell in place.tolist() if cell[0] >= 0]
    cells = [tuple(cell) for cell in after.tolist() if cell[0] >= 0]

    assert len(set(cells)) == len(cells) == len(before)
    ways = {way for way in zip(before, cells, strict=True) if way[0] != way[1]}
    assert not any((there, here) in ways for here, there in ways)


@given(crowds())
def test_a_world_leaves_no_trace_in_the_next_one(crowd):
    twice = moved(*(np.stack((part, part)) for part in crowd))

    assert twice[0].tolist() == twice[1].tolist()


def test_it_replays_what_pogema_recorded():
    with np.load(RECORDED) as file:
        maps, place, actions, places = (
            file[name] for name in ("maps", "starts", "actions", "places")
        )

    for action, expected in zip(actions.astype(np.int64), places, strict=True):
        place = place + MOVES[action] * moved(maps, place, action)[..., None]
        np.testing.assert_array_equal(place, expected)


def moved(maps, place, action):
    """Returns [E, N] who may go."""
    occupant = np.full(maps.shape, -1, dtype=np.int16)
    world, who = np.nonzero(place[..., 0] >= 0)
    occupant[world, place[world, who, 0], place[world, who, 1]] = who
    moved = np.zeros(action.shape, dtype=np.bool_)
    resolve(maps, occupant, place.astype(np.int16), action, moved)
    return moved


def resolved(blocked, place, action):
    went = moved(blocked[None], place[None], action[None])[0]
    return place + MOVES[action] * went[:, None]


def told(blocked, place, action):
    """The rule in words of its own: queues for cells, and agents that are sent home from them."""
    home = {i: tuple(cell) for i, cell in enumerate(place.tolist()) if cell[0] >= 0}
    wish = {i: tuple(np.add(cell, MOVES[action[i]]).tolist()) for i, cell in home.items()}
    free = {tuple(cell) for cell in np.argwhere(blocked == 0).tolist()}
    queues = {cell: [i for i in home if wish[i] == cell] for cell in {*wish.values(), *free}}

    def turn(i):
        queues[wish[i]].remove(i)
        queues[home[i]].append(i)
        wish[i] = home[i]

    for i in home:
        if any(i < j and wish[i] == home[j] and wish[j] == home[i] for j in home):
            turn(i)
    for i in reversed(home):
        if len(queues[wish[i]]) > 1 or wish[i] not in free:
            turn(i)
            while len(queues[home[i]]) > 1:
                i = queues[home[i]][0]
                turn(i)
    return [list(wish.get(i, (-1, -1))) for i in range(len(place))]
