"""The planner in small pictures: a is to get to A."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.pathfinding.planner import lacam
from rookery.pathfinding.planner.plan import STATUS_OF, PlanStatus, plan
from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.map_text import parse
from rookery.pathfinding.world.worlds import Worlds

BAY = """
    ##.##
    aB.Ab
"""
DEAD_END = "aBAb"


def planned(picture, **kwargs):
    return plan(drawn(picture), **{"steps": 64} | kwargs)[0]


def drawn(picture):
    return parse("\n".join(line.strip() for line in picture.strip().splitlines()))


def steps_of(plan):
    return [[tuple(place) for place in row] for row in plan.paths.tolist()]


def test_a_lone_agent_takes_a_shortest_way():
    found = planned("""
        a.#.
        .#..
        ...A
    """)

    assert found.status is PlanStatus.FOUND
    assert (found.length, found.cost) == (5, 5)


def test_who_is_home_at_the_start_needs_no_step():
    cases = Cases(np.zeros((1, 2, 2), np.uint8), *[np.zeros((1, 1, 2), np.int16)] * 2)

    assert steps_of(plan(cases, steps=1)[0]) == [[(0, 0)]]


def test_two_pass_each_other_at_a_bay():
    found = planned(BAY)

    assert found.status is PlanStatus.FOUND
    assert steps_of(found)[-1] == [(1, 3), (1, 1)]
    assert found.length == 5  # one waits in the bay: 2 steps there, 1 in it, 2 back


@pytest.mark.parametrize("picture", [DEAD_END, "aBA.b", "a#A"], ids=["tight", "roomy", "apart"])
def test_what_cannot_be_solved_is_proven_so_within_the_budget(picture):
    answer = planned(picture, budget=5000)

    assert answer.status is PlanStatus.UNSOLVABLE
    assert answer.paths is None
    assert answer.spent < 5000
    assert answer.actions().shape == (0, 0)


@pytest.mark.parametrize(
    ("blocked", "starts", "goals"),
    [
        ([[0, 0, 0, 0], [1, 1, 0, 0]], [(0, 0), (0, 2)], [(0, 1), (0, 0)]),
        ([[1, 0, 1, 0], [0, 0, 0, 0]], [(1, 3), (1, 2)], [(1, 2), (1, 3)]),
        ([[0, 0, 0, 0, 0], [0, 1, 0, 1, 0]], [(1, 4), (0, 4)], [(0, 0), (0, 1)]),
        ([[0, 0, 0, 0], [0, 0, 1, 0]], [(0, 3), (0, 2)], [(0, 3), (1, 3)]),
    ],
)
def test_steps_that_no_agent_prefers_are_prescribed_where_nothing_else_helps(
    blocked, starts, goals
):
    ends = (np.array([places], np.int16) for places in (starts, goals))

    assert plan(Cases(np.array([blocked], np.uint8), *ends), steps=64)[0].status is PlanStatus.FOUND


def test_a_proof_has_tried_every_step_of_every_agent():
    """Two in a row of four cells stand in 6 ways; from these, they can go on in 37 together."""
    assert planned(DEAD_END).spent >= 37 + 6


def test_one_group_without_a_plan_leaves_the_case_without_one():
    answer = planned(f"""
        {DEAD_END}
        ####
        c..C
    """)

    assert answer.status is PlanStatus.UNSOLVABLE


def test_a_way_that_takes_too_many_steps_is_late():
    assert planned(BAY, steps=4).status is PlanStatus.LATE


def test_a_search_ends_with_its_budget():
    answer = planned(BAY, budget=1)

    assert (answer.status, answer.spent, answer.paths) == (PlanStatus.SPENT, 1, None)


def test_a_full_circle_turns():
    maps = np.zeros((1, 2, 2), np.uint8)
    starts = np.array([[(0, 0), (0, 1), (1, 1), (1, 0)]], np.int16)

    assert plan(Cases(maps, starts, np.roll(starts, -1, axis=1)), steps=1)[0].length == 1


def test_an_absent_agent_is_nowhere():
    cases = drawn(BAY)
    absent = np.full((1, 1, 2), -1, np.int16)
    ends = (np.concatenate([absent, part, absent], axis=1) for part in (cases.starts, cases.goals))

    found = plan(Cases(cases.maps, *ends), steps=64)[0]

    assert (found.paths[:, [0, 3]] == -1).all()
    assert (found.actions()[:, [0, 3]] == 0).all()
    assert (found.length, found.cost) == (planned(BAY).length, planned(BAY).cost)


def test_a_seed_gives_the_same_plans_and_another_gives_others():
    cases = generate(4, agents=12, size=12, density=0.2, rng=np.random.default_rng(1))
    first, again, other = (
        [found.paths.tobytes() for found in plan(cases, steps=128, seed=seed)] for seed in (3, 3, 4)
    )

    assert first == again
    assert first != other


def test_more_rounds_cost_no_more():
    cases = generate(4, agents=20, size=12, density=0.2, rng=np.random.default_rng(2))
    hasty, patient = (plan(cases, steps=128, rounds=rounds) for rounds in (0, 100))

    assert all(b.cost <= a.cost for a, b in zip(hasty, patient, strict=True))
    assert sum(found.cost for found in patient) < sum(found.cost for found in hasty)


def test_a_plan_played_in_worlds_gets_all_agents_home_at_its_last_step():
    cases = generate(3, agents=24, size=14, density=0.2, rng=np.random.default_rng(5))
    for k, found in enumerate(plan(cases, steps=128)):
        worlds = Worlds(Cases(*(part[k : k + 1] for part in cases)))
        finished = []
        for action in found.actions():
            stepped = worlds.step(action[None])
            assert not stepped.collided.any()
            finished.append(bool(stepped.finished[0]))

        assert finished == [False] * (found.length - 1) + [True]


def test_every_outcome_of_a_search_has_its_verdict():
    assert set(STATUS_OF) == {lacam.FOUND, lacam.NONE, lacam.SPENT}
    assert set(STATUS_OF.values()) == set(PlanStatus) - {PlanStatus.LATE}


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"budget": 0}])
def test_a_plan_without_room_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} of at least 1, got 0"):
        planned(BAY, **wrong)
