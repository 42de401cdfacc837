"""How cases of path finding are played and measured, on episodes computed by hand."""

import numpy as np
import pytest

from rookery.algorithms import Acted
from rookery.pathfinding.evaluation.play_cases import (
    ShortestPathPolicy,
    evaluate_cases,
    record_episode,
)
from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.rules import NEARER, WorldRules

STAY, UP, DOWN, LEFT, RIGHT = range(5)
OPEN = np.zeros((3, 4), dtype=np.uint8)


def case(*ways, blocked=OPEN):
    """A case of agents that go from a cell to a cell; None: an absent agent."""
    ends = [((-1, -1), (-1, -1)) if way is None else way for way in ways]
    starts, goals = np.array(ends, dtype=np.int16).transpose(1, 0, 2)
    return Cases(blocked[None], starts[None], goals[None])


def both(*cases):
    return Cases(*(np.concatenate(parts) for parts in zip(*cases, strict=True)))


class Scripted:
    """Does what is written for each step, in all worlds alike, and notes what it is asked."""

    memory = 0

    def __init__(self, *steps):
        self.steps, self.asked = list(steps), []

    def act(self, obs, rng, *, memory=None):
        action = np.array(self.steps[len(self.asked)])
        self.asked.append(obs)
        return Acted(np.broadcast_to(action, obs["place"].shape[:2]))


class Straight:
    """Takes the first of the moves that shorten an agent's own way; draws nothing."""

    memory = 0

    def act(self, obs, rng, *, memory=None):
        under = obs["view"][..., 4, 4]
        shorter = under[..., None] & (NEARER << np.arange(4)) > 0
        return Acted(np.where(shorter.any(-1), shorter.argmax(-1) + UP, STAY))


def test_a_case_ends_when_all_are_home_and_costs_what_each_one_took():
    cases = case(((0, 0), (0, 2)), ((1, 0), (1, 1)))

    result = evaluate_cases(Scripted([RIGHT, RIGHT], [RIGHT, STAY]), cases, WorldRules(steps=9))

    assert result._asdict() == {
        "agents": 2,
        "size": "3 x 4",
        "cases": 1,
        "success": 1.0,
        "individual_success": 1.0,
        "mean_length": 2.0,
        "sum_of_costs": 3.0,  # 2 and 1
    }


def test_who_leaves_its_goal_again_pays_until_it_stays_there():
    cases = case(((0, 0), (0, 3)), ((1, 0), (1, 1)))
    policy = Scripted([RIGHT, RIGHT], [RIGHT, RIGHT], [RIGHT, LEFT])

    result = evaluate_cases(policy, cases, WorldRules(steps=9))

    assert (result.mean_length, result.sum_of_costs) == (3.0, 6.0)  # 3 and 3


def test_a_failed_case_and_who_is_not_home_in_it_count_the_limit():
    cases = case(((0, 0), (0, 3)), ((1, 0), (1, 1)))
    policy = Scripted([STAY, RIGHT], *[[STAY, STAY]] * 3)

    result = evaluate_cases(policy, cases, WorldRules(steps=4))

    assert (result.success, result.individual_success) == (0.0, 0.5)
    assert (result.mean_length, result.sum_of_costs) == (4.0, 5.0)  # 4 and 1


def test_success_in_the_last_step_is_success():
    cases = case(((0, 0), (0, 2)))

    assert evaluate_cases(Scripted([RIGHT], [RIGHT]), cases, WorldRules(steps=2)).success == 1.0


def test_a_case_whose_agents_start_on_their_goals_is_over_before_it_begins():
    result = evaluate_cases(Scripted(), case(((0, 0), (0, 0))), WorldRules(steps=4))

    assert (result.success, result.mean_length, result.sum_of_costs) == (1.0, 0.0, 0.0)


def test_an_absent_agent_does_not_count():
    cases = case(((0, 0), (0, 1)), None)

    result = evaluate_cases(Scripted([STAY, RIGHT], [STAY, UP]), cases, WorldRules(steps=2))

    assert (result.agents, result.individual_success, result.sum_of_costs) == (1, 0.0, 2.0)


def test_measures_are_means_over_cases():
    cases = both(case(((0, 0), (0, 1))), case(((0, 0), (0, 3))))

    result = evaluate_cases(Scripted([RIGHT], [RIGHT], [STAY]), cases, WorldRules(steps=3))

    assert (result.cases, result.success, result.individual_success) == (2, 0.5, 0.5)
    assert (result.mean_length, result.sum_of_costs) == (2.0, 2.0)  # of 1 and 3


def test_worlds_that_are_over_drop_out_of_the_batch():
    policy = Scripted([RIGHT], [RIGHT], [RIGHT])

    evaluate_cases(
        policy, both(case(((0, 0), (0, 1))), case(((0, 0), (0, 3)))), WorldRules(steps=9)
    )

    assert [len(obs["view"]) for obs in policy.asked] == [2, 1, 1]


def test_agents_are_told_what_their_last_step_earned():
    policy = Scripted([UP], [RIGHT], [RIGHT])

    evaluate_cases(policy, case(((0, 0), (0, 2))), WorldRules(steps=9))

    earned = [obs["reward"].item() for obs in policy.asked]
    assert earned == pytest.approx([0.0, -0.5, -0.075])


@pytest.mark.parametrize("policy", [Straight(), ShortestPathPolicy()], ids=["best", "drawn"])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_how_many_worlds_are_played_at_once_changes_nothing(batch, policy):
    cases = generate(20, agents=4, size=10, density=0.2, rng=np.random.default_rng(3))

    assert evaluate_cases(policy, cases, WorldRules(steps=40), batch=batch) == evaluate_cases(
        policy, cases, WorldRules(steps=40)
    )


def test_what_is_drawn_follows_from_the_seed():
    cases = generate(20, agents=4, size=10, density=0.2, rng=np.random.default_rng(3))

    one, same, other = (
        evaluate_cases(ShortestPathPolicy(), cases, WorldRules(steps=40), seed=s) for s in (1, 1, 2)
    )

    assert one == same != other


def test_a_recorded_case_is_the_one_that_is_evaluated_also_with_random_actions():
    cases = generate(9, agents=6, size=10, density=0.2, rng=np.random.default_rng(3))
    rules = WorldRules(steps=40)

    episodes = [
        record_episode(ShortestPathPolicy(), cases, rules, seed=5, case=case) for case in range(9)
    ]

    result = evaluate_cases(ShortestPathPolicy(), cases, rules, seed=5)
    home = np.array([episode.home[-1].mean() for episode in episodes])
    assert 0 < np.mean(home == 1) < 1
    assert result.success == np.mean(home == 1)
    assert result.individual_success == pytest.approx(home.mean())
    assert result.mean_length == np.mean([episode.steps for episode in episodes])


class Counting(Straight):
    """Remembers how many steps there were, in two numbers for each world."""

    memory = 2

    def __init__(self):
        self.seen = []

    def act(self, obs, rng, *, memory=None):
        self.seen.append(memory.copy())
        return super().act(obs, rng)._replace(memory=memory + 1)


def test_memory_is_empty_at_the_start_and_goes_with_its_world():
    policy = Counting()

    evaluate_cases(
        policy, both(case(((0, 0), (0, 1))), case(((0, 0), (0, 3)))), WorldRules(steps=9)
    )

    assert [m.tolist() for m in policy.seen] == [[[0, 0], [0, 0]], [[1, 1]], [[2, 2]]]


def test_a_single_agent_arrives_by_the_shortest_path():
    wall = OPEN.copy()
    wall[0:2, 2] = 1
    cases = case(((0, 0), (0, 3)), blocked=wall)

    result = evaluate_cases(ShortestPathPolicy(), cases, WorldRules(steps=20))

    assert (result.success, result.mean_length) == (1.0, 7.0)


def test_the_same_seed_draws_the_same_ways():
    cases = generate(10, agents=8, size=10, density=0.1, rng=np.random.default_rng(0))

    twice = [
        evaluate_cases(ShortestPathPolicy(), cases, WorldRules(steps=30), seed=5) for _ in range(2)
    ]

    assert twice[0] == twice[1]


class Gossip(Straight):
    """Everybody listens to agent 0."""

    def links(self, obs):
        worlds, agents = obs["place"].shape[:2]
        return np.tile(np.array([[i, 0] for i in range(agents)]), (worlds, 1, 1))


def test_an_episode_is_kept_from_the_start_to_the_end():
    cases = case(((0, 0), (0, 2)), ((1, 0), (1, 1)))

    episode = record_episode(Gossip(), cases, WorldRules(steps=9))

    assert episode.places[:, 0].tolist() == [[0, 0], [0, 1], [0, 2]]
    assert (episode.steps, episode.home[-1].tolist()) == (2, [True, True])
    assert episode.links.shape == (2, 2, 2)
    assert record_episode(Straight(), cases, WorldRules(steps=9)).links is None
