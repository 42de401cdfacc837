"""Sets of cases: random ones, from files, and with which rules a policy plays them."""

import numpy as np
import pytest
import torch

from rookery.algorithms import Acted
from rookery.config.load import load
from rookery.errors import ConfigError
from rookery.pathfinding.evaluation.case_sets import from_file, from_map, random_case_sets
from rookery.pathfinding.evaluation.play_cases import (
    ShortestPathPolicy,
    evaluate_cases,
    evaluate_plans,
)
from rookery.pathfinding.evaluation.team_policy import TeamPolicy
from rookery.pathfinding.planner.plan import JointPlan, PlanStatus
from rookery.pathfinding.team_dqn import VALUES
from rookery.pathfinding.world import cases
from rookery.pathfinding.world.cases import Cases
from rookery.pathfinding.world.rules import Outside, WorldRules

FIXED = {"sizes": (8, 8), "densities": (0.2, 0.2)}
MIXED = {"sizes": (6, 9), "densities": (0.0, 0.3)}
TEAM = "rookery.pathfinding.world.team_env:Team"


def only(count, agents, seed=0, **what):
    """Draws the cases of one row."""
    (case_set,) = random_case_sets(count, agents=[agents], seed=seed, **what)
    return case_set


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("what", [FIXED, MIXED])
def test_a_row_begins_alike_however_long_it_is_and_whatever_is_beside_it(what):
    short = only(2, 3, **what).cases
    *_, long = random_case_sets(5, agents=[1, 3], seed=0, **what)

    assert equal(short, Cases(*(part[:2] for part in long.cases)))


def test_a_file_says_of_its_agents_what_its_row_will_say(tmp_path):
    file = tmp_path / "cases.npz"
    cases.save(file, cases.pad(only(2, 3, **FIXED).cases, 8, 8))

    case_set = from_file(str(file), agents=[3])

    assert evaluate_cases(ShortestPathPolicy(), case_set.cases, WorldRules(steps=2)).agents == 3
    with pytest.raises(ConfigError, match=r"--agents is 8, and .* has instances of 3"):
        from_file(str(file), agents=[8])


def test_a_scenario_with_too_few_rows_is_refused_before_anything_is_evaluated(tmp_path):
    (tmp_path / "a.map").write_text("type octile\nheight 1\nwidth 4\nmap\n....\n")
    (tmp_path / "a.scen").write_text("version 1\n0\ta.map\t4\t1\t0\t0\t1\t0\t1\n")

    with pytest.raises(ConfigError, match="1 rows, one for each agent, but 2"):
        from_map(str(tmp_path / "a.map"), [str(tmp_path / "a.scen")], [1, 2])


def test_another_seed_draws_other_cases():
    assert not equal(only(3, 2, **FIXED).cases, only(3, 2, seed=1, **FIXED).cases)


def test_maps_of_mixed_sizes_are_blocked_beyond_their_edges():
    case_set = only(30, 2, **MIXED)

    assert case_set.size == "6-9"
    assert case_set.cases.maps.shape == (30, 9, 9)
    edges = {9 - int(blocked.all(0)[::-1].argmin()) for blocked in case_set.cases.maps}
    assert {6, 7, 8, 9} <= edges


def test_each_scenario_is_a_case_of_its_first_agents(tmp_path):
    (tmp_path / "a.map").write_text("type octile\nheight 1\nwidth 4\nmap\n....\n")
    for name, rows in {
        "a": ["0\t0\t1\t0", "2\t0\t3\t0"],
        "b": ["3\t0\t2\t0", "1\t0\t0\t0"],
    }.items():
        lines = "".join(f"0\ta.map\t4\t1\t{row}\t1\n" for row in rows)
        (tmp_path / f"{name}.scen").write_text(f"version 1\n{lines}")

    scenarios = [str(tmp_path / f"{name}.scen") for name in "ab"]
    one, two = from_map(str(tmp_path / "a.map"), scenarios, [1, 2])

    assert one.cases.starts.tolist() == [[[0, 0]], [[0, 3]]]
    assert two.cases.goals.tolist() == [[[0, 1], [0, 3]], [[0, 2], [0, 0]]]


def test_an_instance_without_a_plan_counts_the_limit_for_all_agents():
    places = np.zeros((2, 3, 2), dtype=np.int16)
    cases = Cases(np.zeros((2, 4, 4), dtype=np.uint8), places, places)
    ways = np.zeros((6, 3, 2), dtype=np.int16)
    plans = [JointPlan(PlanStatus.FOUND, ways, 12, 1), JointPlan(PlanStatus.LATE, None, 0, 1)]

    result = evaluate_plans(cases, plans, 20)

    assert (result.success, result.individual_success) == (0.5, 0.5)
    assert (result.mean_length, result.sum_of_costs) == (12.5, 36.0)  # of 5 and 20, of 12 and 60


class Stubborn:
    """Two agents that both want to go right, and would rather go down than stay."""

    memory = 0

    def act(self, obs, rng, *, noise=True, memory=None):
        worlds, agents = obs["place"].shape[:2]
        q = np.tile(np.array([0.0, -1.0, 1.0, -1.0, 2.0], dtype=np.float32), (worlds, agents, 1))
        return Acted(q.argmax(2), extras={VALUES: q})


def test_a_shield_finds_a_way_around_what_would_have_failed():
    starts = np.array([[[0, 0], [0, 1]]], dtype=np.int16)
    goals = np.array([[[0, 1], [1, 1]]], dtype=np.int16)
    cases = Cases(np.zeros((1, 2, 2), dtype=np.uint8), starts, goals)

    bare = evaluate_cases(Stubborn(), cases, WorldRules(steps=1))
    shielded = evaluate_cases(Stubborn(), cases, WorldRules(steps=1), shielded=True)

    assert (bare.success, shielded.success) == (0.0, 1.0)


def test_agents_see_as_they_did_in_training():
    kwargs = {"agents": 2, "radius": 3, "outside": "free", "steps": 9}
    config = load(None, changes={"algo.name": "team", "env.id": TEAM, "env.kwargs": kwargs})

    rules = TeamPolicy(config, {}, None, torch.device("cpu")).rules(steps=50)

    assert (rules.radius, rules.outside, rules.steps) == (3, Outside.FREE, 50)
