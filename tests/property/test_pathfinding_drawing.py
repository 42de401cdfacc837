"""Drawn cases, whatever is asked for: they can be played."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_pathfinding import cells, free_cells, steps_to
from rookery.errors import ConfigError
from rookery.pathfinding.world import cases as case

ASKED = st.tuples(
    st.integers(1, 5),  # agents, who find room on the least of these maps, if not on the first
    st.integers(5, 9),
    st.one_of(st.none(), st.floats(0, 0.5)),
    st.integers(0, 2**32 - 1),
)


def drawn(agents, size, density, seed):
    rng = np.random.default_rng(seed)
    return case.generate(3, agents=agents, size=size, density=density, rng=rng)


@given(ASKED)
def test_every_goal_is_within_reach_and_no_cell_is_used_twice(asked):
    found = drawn(*asked)

    case.check(found, reachable=True)
    for blocked, starts, goals in zip(*found, strict=True):
        used, free = cells(starts) + cells(goals), free_cells(blocked)
        assert len(set(used)) == len(used)
        for start, goal in zip(cells(starts), cells(goals), strict=True):
            assert start in steps_to(free, goal)


@given(ASKED)
def test_one_seed_gives_one_set_of_cases(asked):
    for first, second in zip(drawn(*asked), drawn(*asked), strict=True):
        np.testing.assert_array_equal(first, second)


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_reach_is_checked_as_it_is_defined(rows, columns, seed):
    rng = np.random.default_rng(seed)
    blocked = (rng.random((rows, columns)) < 0.4).astype(np.uint8)
    blocked[0, 0] = blocked[-1, -1] = 0
    ends = np.array([[[0, 0]], [[rows - 1, columns - 1]]], dtype=np.int16)
    cases = case.Cases(blocked[None], ends[:1], ends[1:])
    connected = (0, 0) in steps_to(free_cells(blocked), (rows - 1, columns - 1))

    case.check(cases)
    with nullcontext() if connected else pytest.raises(ConfigError, match="cannot be reached"):
        case.check(cases, reachable=True)
