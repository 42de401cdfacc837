"""PettingZoo's view of path finding."""

import importlib
import sys
import warnings

import numpy as np
import pytest

from rookery.algorithms import Acted
from rookery.errors import ConfigError, ProtocolError
from rookery.pathfinding.evaluation.play_cases import evaluate_cases
from rookery.pathfinding.world import parallel_env as parallel
from rookery.pathfinding.world.cases import Cases, generate, select
from rookery.pathfinding.world.parallel_env import parallel_env
from rookery.pathfinding.world.rules import NEARER, WorldRules
from rookery.pathfinding.world.world_image import TILE, colour

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports games it has deprecated
    from pettingzoo.test import parallel_api_test, parallel_seed_test

STAY, UP, DOWN, LEFT, RIGHT = range(5)
MEASURES = {  # of an info, and of an evaluation's row
    "is_success": "success",
    "individual_success": "individual_success",
    "length": "mean_length",
    "sum_of_costs": "sum_of_costs",
}


def small(**more):
    return parallel_env(**{"agents": 3, "size": 6, "density": 0.2, "steps": 12, **more})


def pair(starts, goals):
    """A case of two agents on 4 x 4 free cells."""
    ends = (np.array([ends], dtype=np.int16) for ends in (starts, goals))
    return Cases(np.zeros((1, 4, 4), dtype=np.uint8), *ends)


def test_pettingzoos_own_test_of_the_interface_passes():
    parallel_api_test(small(), num_cycles=30)


def test_pettingzoos_own_test_of_seeds_passes():
    parallel_seed_test(small, num_cycles=10)


def test_observations_are_planes_of_their_space():
    env = small(radius=2)
    observations, _ = env.reset(seed=0)

    assert list(observations) == env.agents == ["agent_0", "agent_1", "agent_2"]
    for agent, seen in observations.items():
        assert env.observation_space(agent).contains(seen)
        assert seen.shape == (6, 5, 5)


def test_seeds_name_episodes_and_none_goes_on_with_the_next():
    env = small()
    first, second = (env.reset(seed=seed)[0]["agent_0"] for seed in (1, None))
    again = env.reset(seed=1)[0]["agent_0"]

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


def test_all_agents_terminate_when_all_are_home_and_only_then():
    env = parallel_env(agents=2)
    env.reset(options={"cases": pair([(0, 0), (3, 3)], [(0, 1), (3, 1)])})

    _, rewards, terminations, _, infos = env.step({"agent_0": RIGHT, "agent_1": LEFT})
    assert rewards == pytest.approx({"agent_0": -0.075, "agent_1": -0.075})
    assert not any(terminations.values())
    assert infos["agent_0"] == {"collided": False, "home": True}

    _, rewards, terminations, truncations, infos = env.step({"agent_0": UP, "agent_1": LEFT})
    assert rewards == {"agent_0": 3.0, "agent_1": 3.0}
    assert all(terminations.values())
    assert not any(truncations.values())
    assert infos["agent_0"] == {
        "collided": True,
        "home": True,
        "is_success": 1,
        "individual_success": 1.0,
        "length": 2,
        "sum_of_costs": 3,  # 1 and 2
    }
    assert env.agents == []


def test_an_episode_is_measured_as_an_evaluation_does():
    cases = generate(20, agents=6, size=7, density=0.2, rng=np.random.default_rng(0))
    env, told = parallel_env(agents=6, steps=20), []
    for at in range(20):
        env.reset(options={"cases": select(cases, slice(at, at + 1))})
        while env.agents:
            *_, infos = env.step(dict(zip(env.agents, straight(env), strict=True)))
        told.append(infos["agent_3"])

    evaluated = evaluate_cases(Straight(), cases, WorldRules(steps=20))

    assert 0 < evaluated.success < 1
    for ours, theirs in MEASURES.items():
        assert np.mean([info[ours] for info in told]) == pytest.approx(getattr(evaluated, theirs))


def straight(env):
    return Straight().act({"view": env.team._worlds.views()}, None).action[0].tolist()


class Straight:
    """Takes the first of the moves that shorten an agent's own way; draws nothing."""

    memory = 0

    def act(self, obs, rng, *, noise=True, memory=None):
        shorter = obs["view"][..., 4, 4, None] & (NEARER << np.arange(4)) > 0
        return Acted(np.where(shorter.any(-1), shorter.argmax(-1) + UP, STAY))


def test_the_limit_truncates_and_does_not_terminate():
    env = small(steps=2)
    env.reset(seed=0)
    for _ in range(2):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, STAY))

    assert all(truncations.values())
    assert not any(terminations.values())
    with pytest.raises(ProtocolError, match="call reset first"):
        env.step({})


def test_arriving_with_the_last_step_is_a_termination_alone():
    env = parallel_env(agents=2, steps=1)
    env.reset(options={"cases": pair([(0, 0), (3, 3)], [(0, 1), (3, 2)])})

    _, _, terminations, truncations, _ = env.step({"agent_0": RIGHT, "agent_1": LEFT})

    assert all(terminations.values())
    assert not any(truncations.values())


def test_a_missing_action_is_refused_by_name():
    env = small()
    env.reset(seed=0)

    with pytest.raises(ConfigError, match="no action of agent_1, agent_2"):
        env.step({"agent_0": STAY})


def test_cases_for_other_agents_are_refused():
    cases = generate(2, agents=3, size=6, density=0.0, rng=np.random.default_rng(0))

    with pytest.raises(ConfigError, match="one problem instance"):
        small().reset(options={"cases": cases})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"agents": 0}, "agents from 1", id="no agents"),
        pytest.param({"radius": 0}, "radius", id="blind"),
        pytest.param({"collision": "hard"}, "reference, soft", id="no such rule"),
        pytest.param({"outside": "open"}, "blocked, free", id="no such outside"),
        pytest.param({"rewards": {"crash": 1}}, "move, wait, home", id="no such reward"),
    ],
)
def test_settings_that_are_none_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        small(**asked)


def test_a_picture_has_every_agent_in_its_colour():
    env = parallel_env(agents=2, render_mode="rgb_array")
    assert env.render() is None  # nothing to be seen yet
    env.reset(options={"cases": pair([(0, 0), (3, 3)], [(0, 1), (3, 1)])})

    painted = env.render()

    assert painted.shape == (4 * TILE, 4 * TILE, 3)
    assert tuple(painted[TILE // 2, TILE // 2]) == colour(0)
    assert tuple(painted[-TILE // 2, -TILE // 2]) == colour(1)
    assert tuple(painted[1, TILE + 1]) == colour(0)  # the frame of its goal


def test_without_pettingzoo_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, parallel.__name__)

    with pytest.raises(ConfigError, match=r"rookery\[pettingzoo\]"):
        importlib.import_module(parallel.__name__)
