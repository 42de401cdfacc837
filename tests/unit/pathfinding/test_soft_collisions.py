"""POGEMA's rule, worked out by hand."""

import numpy as np
import pytest

from rookery.pathfinding.world.collisions import resolve
from rookery.pathfinding.world.rules import DOWN, LEFT, RIGHT, STAY, UP

CASES = {
    # a row of cells, the agents in them by their numbers, their actions, who moves
    "the lowest number gets a free cell": ("0.1", [RIGHT, LEFT], [True, False]),
    "it does so from the other side": ("1.0", [LEFT, RIGHT], [True, False]),
    "agents cannot swap": ("01", [RIGHT, LEFT], [False, False]),
    "one follows the other": ("01.", [RIGHT, RIGHT], [True, True]),
    "the order of numbers is no matter to a queue": ("210.", [RIGHT] * 3, [True] * 3),
    "a wall stops a queue": ("012#", [RIGHT] * 3, [False] * 3),
    "the edge is a wall": ("10", [RIGHT, RIGHT], [False, False]),
    "whoever stays stops a queue": ("012.", [RIGHT, RIGHT, STAY], [False] * 3),
    "whoever loses a cell stops those behind": ("12.0", [LEFT, RIGHT, RIGHT], [True, False, False]),
    "a swap stops those behind on both sides": ("2013", [RIGHT, LEFT, RIGHT, LEFT], [False] * 4),
}


@pytest.mark.parametrize("case", CASES)
def test_in_a_row(case):
    row, action, expected = CASES[case]

    assert moved([row], action) == expected


def test_a_ring_of_four_turns():
    assert moved(["01", "32"], [RIGHT, DOWN, LEFT, UP]) == [True] * 4


def test_a_ring_turns_past_a_higher_number_that_wants_in():
    assert moved(["01.", "324"], [RIGHT, DOWN, LEFT, UP, LEFT]) == [True] * 4 + [False]


def test_a_ring_that_loses_a_cell_to_a_lower_number_keeps_that_one_out_too():
    """0 is first to claim the cell, but whoever lives there cannot leave it: all stay."""
    assert moved(["12.", "430"], [LEFT, RIGHT, DOWN, LEFT, UP]) == [False] * 5


def moved(rows, action):
    """Returns who moves on a map where digits are agents and `#` is blocked."""
    cells = np.array([list(row) for row in rows])
    place = np.array([np.argwhere(cells == str(i))[0] for i in range(len(action))], dtype=np.int16)
    occupant = np.full(cells.shape, -1, dtype=np.int16)
    occupant[place[:, 0], place[:, 1]] = np.arange(len(action))
    went = np.zeros((1, len(action)), dtype=np.bool_)
    resolve(
        (cells == "#").astype(np.uint8)[None],
        occupant[None],
        place[None],
        np.array([action], dtype=np.int64),
        went,
    )
    return went[0].tolist()
