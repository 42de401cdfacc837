"""What agents see and how far they have to go, against plain definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_pathfinding import cells, crowds, free_cells, seen, steps_to
from rookery.pathfinding.world.distance_fields import distances
from rookery.pathfinding.world.rules import CHANNELS, Outside, WorldRules
from rookery.pathfinding.world.views import planes
from rookery.pathfinding.world.worlds import Worlds


@pytest.mark.parametrize("outside", Outside)
@given(crowd=crowds(most=5), radius=st.integers(1, 3))
def test_views_equal_their_definition_before_and_after_a_step(outside, crowd, radius):
    cases, action = crowd
    worlds = Worlds(cases, WorldRules(radius=radius, outside=outside))
    free, goals = free_cells(cases.maps[0]), cells(cases.goals[0])

    for _ in range(2):
        shown, places = planes(worlds.views())[0], cells(worlds.place[0])
        for i in range(len(places)):
            sets = [{tuple(cell) for cell in np.argwhere(plane).tolist()} for plane in shown[i]]
            if places[i] is None:
                assert not any(sets)
                continue
            beyond = outside is Outside.BLOCKED
            shape = cases.maps.shape[1:]
            assert sets == seen(shape, free, places, i, goals[i], radius=radius, outside=beyond)
        worlds.step(action[None])


@given(crowds())
def test_distances_equal_rings_around_the_goal(crowd):
    cases, _ = crowd
    found = distances(cases.maps, cases.goals)[0]

    for i, goal in enumerate(cells(cases.goals[0])):
        expected = np.full(cases.maps.shape[1:], -1)
        if goal is not None:
            for cell, steps in steps_to(free_cells(cases.maps[0]), goal).items():
                expected[cell] = steps
        np.testing.assert_array_equal(found[i], expected)


@given(st.integers(0, 2**32 - 1))
def test_planes_are_the_bits_of_codes(seed):
    codes = np.random.default_rng(seed).integers(64, size=(2, 3, 5, 5)).astype(np.uint8)

    bits = [(codes >> channel) & 1 for channel in range(CHANNELS)]
    np.testing.assert_array_equal(planes(codes), np.stack(bits, axis=2))
