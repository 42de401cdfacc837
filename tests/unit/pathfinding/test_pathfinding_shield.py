"""The shield in small scenes, on a map of one row."""

import numpy as np

from rookery.pathfinding.planner.shield import shield
from rookery.pathfinding.world.cases import generate
from rookery.pathfinding.world.rules import DOWN, LEFT, RIGHT, STAY, UP
from rookery.pathfinding.world.worlds import Worlds

ROW = np.zeros((1, 3), np.uint8)


def wishes(*orders):
    """Scores that put actions in these orders; those not named come last, the lowest first."""
    score = np.zeros((len(orders), 5), np.float32)
    for i, order in enumerate(orders):
        score[i, list(order)] = np.arange(len(order), 0, -1)
    return score


def acted(score, columns, priority, blocked=ROW):
    places = np.array([[(0, column) for column in columns]], np.int16)
    return shield(score[None], places, blocked[None], np.array([priority]))[0].tolist()


def test_an_agent_without_conflict_keeps_its_action():
    row = np.zeros((1, 4), np.uint8)

    assert acted(wishes([RIGHT], [LEFT]), [0, 3], [1, 0], row) == [RIGHT, LEFT]


def test_a_wish_for_a_wall_gives_way_to_the_next():
    assert acted(wishes([UP, DOWN, RIGHT]), [0], [0]) == [RIGHT]


def test_of_two_that_want_a_cell_the_higher_priority_gets_it():
    assert acted(wishes([RIGHT], [LEFT]), [0, 2], [0, 1]) == [STAY, LEFT]
    assert acted(wishes([RIGHT], [LEFT]), [0, 2], [1, 0]) == [RIGHT, STAY]


def test_of_equal_priorities_the_lowest_number_goes_first():
    assert acted(wishes([RIGHT], [LEFT]), [0, 2], [1, 1]) == [RIGHT, STAY]


def test_who_stands_in_the_way_of_a_higher_priority_is_pushed_on():
    assert acted(wishes([RIGHT], [STAY]), [0, 1], [1, 0]) == [RIGHT, RIGHT]


def test_who_cannot_be_pushed_stays_and_the_other_takes_its_next_wish():
    assert acted(wishes([RIGHT, LEFT], [STAY]), [1, 2], [1, 0]) == [LEFT, STAY]


def test_no_agents_swap():
    assert acted(wishes([RIGHT], [LEFT]), [1, 2], [1, 0]) == [STAY, STAY]


def test_worlds_are_shielded_separately_and_no_agent_stays():
    score = np.stack([wishes([RIGHT], [RIGHT]), wishes([LEFT], [RIGHT])])
    places = np.array([[(0, 0), (-1, -1)], [(0, 1), (0, 0)]], np.int16)
    maps, priority = np.stack([ROW, ROW]), np.array([[0, 1], [0, 1]], np.uint8)

    assert shield(score, places, maps, priority).tolist() == [[RIGHT, STAY], [RIGHT, RIGHT]]


def test_no_action_of_a_shield_ever_fails_in_worlds():
    rng = np.random.default_rng(0)
    worlds = Worlds(generate(8, agents=24, size=9, density=0.2, rng=rng))
    moved = 0
    for _ in range(40):
        score = rng.standard_normal((8, 24, 5)).astype(np.float32)
        action = shield(score, worlds.place, worlds.maps, rng.random((8, 24)))
        moved += np.count_nonzero(action)

        assert not worlds.step(action).collided.any()
    assert moved > 8 * 24 * 40 / 2  # it would be no use if all stayed
