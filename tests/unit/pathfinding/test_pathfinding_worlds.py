"""Worlds, in small pictures: who moves, what it earns, what is refused."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.distance_fields import distances
from rookery.pathfinding.world.rules import Outside, Rewards, WorldRules
from rookery.pathfinding.world.worlds import BEYOND, Worlds

STAY, UP, DOWN, LEFT, RIGHT = range(5)
FAR = ((9, 9), (9, 8), (9, 7), (9, 6))  # goals that no agent reaches
REWARDS = Rewards(move=1.0, wait=2.0, home=3.0, collision=4.0, finish=5.0)


def world(starts, goals=FAR, blocked=(), rules=None):
    """A world of 10 x 10 cells."""
    maps = np.zeros((1, 10, 10), dtype=np.uint8)
    for cell in blocked:
        maps[0][cell] = 1
    ends = (np.array([ends[: len(starts)]], dtype=np.int16) for ends in (starts, goals))
    return Worlds(Cases(maps, *ends), rules)


def drawn(count, agents=3, size=8, seed=0):
    rng = np.random.default_rng(seed)
    return generate(count, agents=agents, size=size, density=0.2, rng=rng)


def test_every_outside_is_in_its_table():
    assert set(BEYOND) == set(Outside)


@pytest.mark.parametrize(
    ("starts", "actions", "ends"),
    [
        pytest.param([(0, 0)], [UP], [(0, 0)], id="no agent leaves the map"),
        pytest.param([(1, 1)], [RIGHT], [(1, 1)], id="no agent enters a wall"),
        pytest.param([(0, 0), (0, 1)], [RIGHT, LEFT], [(0, 0), (0, 1)], id="a swap fails for both"),
        pytest.param([(0, 2), (0, 0)], [LEFT, RIGHT], [(0, 1), (0, 0)], id="the lowest wins"),
        pytest.param([(0, 0), (0, 1)], [RIGHT, RIGHT], [(0, 1), (0, 2)], id="following is allowed"),
        pytest.param(
            [(0, 0), (0, 1), (0, 2)],
            [RIGHT, RIGHT, STAY],
            [(0, 0), (0, 1), (0, 2)],
            id="a queue waits",
        ),
        pytest.param(
            [(5, 5), (5, 6), (6, 6), (6, 5)],
            [RIGHT, DOWN, LEFT, UP],
            [(5, 6), (6, 6), (6, 5), (5, 5)],
            id="a ring turns",
        ),
        pytest.param(
            [(5, 5), (5, 6), (4, 5)],
            [RIGHT, LEFT, DOWN],
            [(5, 5), (5, 6), (4, 5)],
            id="a failed swap blocks",
        ),
        pytest.param(
            [(0, 2), (0, 1), (1, 1), (0, 0)],
            [LEFT, UP, UP, STAY],
            [(0, 2), (0, 1), (1, 1), (0, 0)],
            id="a winner fails where the cell is not left",
        ),
    ],
)
def test_a_step_leads(starts, actions, ends):
    worlds = world(starts, blocked=[(1, 2)])

    stepped = worlds.step([actions])

    assert [tuple(place) for place in worlds.place[0].tolist()] == ends
    failed = [a != STAY and s == e for s, a, e in zip(starts, actions, ends, strict=True)]
    assert stepped.collided[0].tolist() == failed


@pytest.mark.parametrize(
    ("start", "action", "reward"),
    [
        pytest.param((5, 5), RIGHT, 1.0, id="moves"),
        pytest.param((9, 8), RIGHT, 1.0, id="moves onto its goal"),
        pytest.param((5, 5), STAY, 2.0, id="waits"),
        pytest.param((9, 9), STAY, 3.0, id="stays on its goal"),
        pytest.param((0, 0), UP, 4.0, id="runs into the edge"),
        pytest.param((9, 9), DOWN, 4.0, id="runs into the edge from its goal"),
    ],
)
def test_rewards_of_a_step_while_an_agent_is_not_home(start, action, reward):
    worlds = world([start, (3, 3)], goals=[(9, 9), (0, 5)], rules=WorldRules(rewards=REWARDS))

    stepped = worlds.step([[action, STAY]])

    assert stepped.reward[0].tolist() == [reward, 2.0]
    assert stepped.reward.dtype == np.float32
    assert not stepped.finished[0]


def test_finishing_pays_all_agents_whatever_they_did():
    goals = [(9, 9), (0, 0), (4, 4)]
    worlds = world([(9, 8), (0, 0), (4, 4)], goals, rules=WorldRules(rewards=REWARDS))

    stepped = worlds.step([[RIGHT, UP, STAY]])

    assert stepped.finished.tolist() == [True]
    assert stepped.reward[0].tolist() == [5.0, 5.0, 5.0]
    assert stepped.collided[0].tolist() == [False, True, False]
    assert stepped.home[0].tolist() == [True, True, True]


def test_the_default_rewards_are_the_references():
    assert Rewards() == Rewards(move=-0.075, wait=-0.075, home=0, collision=-0.5, finish=3)


def test_an_absent_agent_is_home_sees_and_earns_nothing_and_blocks_no_agent():
    absent = (-1, -1)
    worlds = world([absent, (0, 1), absent], goals=[absent, (0, 0), absent])

    stepped = worlds.step([[RIGHT, LEFT, DOWN]])

    assert worlds.place[0].tolist() == [[-1, -1], [0, 0], [-1, -1]]
    assert stepped.reward[0].tolist() == [0, 3, 0]
    assert stepped.home[0].tolist() == [True, True, True]
    assert stepped.collided[0].tolist() == [False, False, False]
    assert stepped.finished[0]
    assert not worlds.views()[0, [0, 2]].any()
    assert (distances(worlds.maps, worlds.goals)[0, [0, 2]] == -1).all()


def test_loading_some_worlds_leaves_the_others_alone():
    worlds, fresh = Worlds(drawn(3)), drawn(1, seed=1)
    worlds.step(np.ones((3, 3), dtype=np.int64))
    before = worlds.place.copy(), worlds.views().copy()

    worlds.load([1], fresh)

    assert worlds.steps.tolist() == [1, 0, 1]
    for world in (0, 2):
        np.testing.assert_array_equal(worlds.place[world], before[0][world])
        np.testing.assert_array_equal(worlds.views()[world], before[1][world])
    np.testing.assert_array_equal(worlds.views()[1], Worlds(fresh).views()[0])
    assert [worlds.maps[1].tolist(), worlds.goals[1].tolist()] == [
        fresh.maps[0].tolist(),
        fresh.goals[0].tolist(),
    ]


def test_cases_are_copied_when_they_are_loaded():
    cases = drawn(2)
    starts = cases.starts.copy()

    for _ in range(5):
        Worlds(cases).step(np.ones((2, 3), dtype=np.int64))

    np.testing.assert_array_equal(cases.starts, starts)


@pytest.mark.parametrize(
    "action",
    [
        pytest.param([[0, 1]], id="too few"),
        pytest.param([[0, 1, 5]], id="no such action"),
        pytest.param([[0, -1, 0]], id="negative"),
        pytest.param([[0.0, 1.0, 2.0]], id="not whole"),
    ],
)
def test_actions_that_are_none_are_refused_and_nothing_moves(action):
    worlds = Worlds(drawn(1))
    before = worlds.place.copy()

    with pytest.raises(ConfigError, match="whole numbers from 0 to 4"):
        worlds.step(action)

    np.testing.assert_array_equal(worlds.place, before)


@pytest.mark.parametrize(
    ("which", "cases", "message"),
    [
        pytest.param([0, 1], drawn(1), "instances as worlds", id="two worlds, one case"),
        pytest.param([0], drawn(1, agents=2), "agents", id="other agents"),
        pytest.param([0], drawn(1, size=9), "cells", id="other size"),
        pytest.param([2], drawn(1), "worlds 0 to 1", id="no such world"),
    ],
)
def test_loading_what_does_not_fit_is_refused(which, cases, message):
    with pytest.raises(ConfigError, match=message):
        Worlds(drawn(2)).load(which, cases)
