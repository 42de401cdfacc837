"""For all small cases: a plan is one by the plain rules, and none is missing that exists."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plain_pathfinding import beside, cells, crowds, free_cells
from rookery.pathfinding.planner.plan import PlanStatus, plan
from rookery.pathfinding.planner.shield import shield
from rookery.pathfinding.world.cases import generate
from rookery.pathfinding.world.rules import Collision, WorldRules
from rookery.pathfinding.world.worlds import Worlds


def is_step(free, before, after):
    """Returns whether all agents may move from here to there at once."""
    present = [i for i, cell in enumerate(before) if cell is not None]
    if any((after[i] is None) != (before[i] is None) for i in range(len(before))):
        return False
    near = all(after[i] in [beside(before[i], action) for action in range(5)] for i in present)
    apart = len({after[i] for i in present}) == len(present)
    swap = any(
        i != j and after[i] == before[j] and after[j] == before[i] for i, j in pairs(present)
    )
    return near and apart and not swap and all(after[i] in free for i in present)


def pairs(numbers):
    return product(numbers, repeat=2)


def check(cases, found, steps):
    """Says what is wrong with a plan for a case."""
    free, rows = free_cells(cases.maps[0]), [cells(row) for row in found.paths]
    goals = cells(cases.goals[0])
    assert rows[0] == cells(cases.starts[0])
    assert all(is_step(free, *both) for both in pairwise(rows))
    assert [row == goals for row in rows] == [False] * found.length + [True]
    assert found.length <= steps
    assert found.cost == sum(settled([row[i] for row in rows]) for i in range(len(goals)))


def settled(way):
    """Returns the first moment from which on somebody does not move any more."""
    return max((t for t in range(1, len(way)) if way[t] != way[t - 1]), default=0)


def fewest_steps(cases):
    """Tries everything, all agents together, one step after the other; None: there is no way."""
    free, goals = free_cells(cases.maps[0]), tuple(cells(cases.goals[0]))
    ring = seen = {tuple(cells(cases.starts[0]))}
    for steps in range(len(free) ** len(goals)):
        if goals in ring:
            return steps
        ring = {after for before in ring for after in successors(free, before)} - seen
        seen = seen | ring
        if not ring:
            return None
    raise AssertionError("there are not so many configurations")


def successors(free, before):
    options = [
        [None] if cell is None else [beside(cell, action) for action in range(5)] for cell in before
    ]
    return (after for after in product(*options) if is_step(free, before, after))


@given(crowds(), st.integers(0, 2**32))
def test_every_plan_obeys_the_plain_rules(crowd, seed):
    cases, _ = crowd
    found = plan(cases, steps=100, seed=seed, budget=3000)[0]

    assert (found.paths is None) == (found.status is not PlanStatus.FOUND)
    assert found.spent <= 3000
    if found.paths is not None:
        check(cases, found, 100)


@settings(max_examples=200)
@given(crowds(most=3), st.integers(0, 2**32))
def test_a_plan_is_found_exactly_if_there_is_one(crowd, seed):
    cases, _ = crowd
    assume(np.count_nonzero(cases.starts[0, :, 0] >= 0) <= 3)
    least = fewest_steps(cases)
    found = plan(cases, steps=10_000, seed=seed, budget=2_000_000)[0]

    assert found.status is (PlanStatus.UNSOLVABLE if least is None else PlanStatus.FOUND)
    assert least is None or found.length >= least


@pytest.mark.parametrize("rule", Collision)
@settings(max_examples=60)
@given(crowd=crowds())
def test_every_collision_rule_lets_a_plan_happen(rule, crowd):
    cases, _ = crowd
    found = plan(cases, steps=100, budget=3000)[0]
    worlds = Worlds(cases, WorldRules(collision=rule))

    for action in found.actions():
        assert not worlds.step(action[None]).collided.any()
    assert found.paths is None or np.array_equal(worlds.place[0], cases.goals[0])


@settings(max_examples=40)
@given(st.integers(5, 30), st.floats(0.0, 0.3), st.integers(0, 2**32))
def test_larger_crowds_get_home_by_the_plain_rules(agents, density, seed):
    rng = np.random.default_rng(seed)
    cases = generate(1, agents=agents, size=14, density=density, rng=rng)
    found = plan(cases, steps=128, seed=seed)[0]

    assert found.status in (PlanStatus.FOUND, PlanStatus.UNSOLVABLE)
    if found.paths is not None:
        check(cases, found, 128)


@given(crowds(), st.integers(0, 2**32))
def test_what_a_shield_lets_through_is_a_step_by_the_plain_rules(crowd, seed):
    cases, _ = crowd
    rng, agents = np.random.default_rng(seed), cases.starts.shape[1]
    score = rng.integers(-2, 3, size=(agents, 5)).astype(np.float32)  # many are equal
    priority = rng.integers(0, 4, size=agents)
    action = shield(score[None], cases.starts, cases.maps, priority[None])[0]
    before = cells(cases.starts[0])
    after = [cell and beside(cell, action[i]) for i, cell in enumerate(before)]

    assert is_step(free_cells(cases.maps[0]), before, after)
    assert not Worlds(cases).step(action[None]).collided.any()
