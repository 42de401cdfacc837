"""The adapter to POGEMA, against a fake of the part of POGEMA that it uses."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.map_text import parse
from rookery.pathfinding.world.pogema_env import Pogema
from rookery.pathfinding.world.rules import (
    DOWN,
    LEFT,
    RIGHT,
    STAY,
    UP,
    Collision,
    Outside,
    WorldRules,
)
from rookery.pathfinding.world.worlds import Worlds

ID = "rookery.pathfinding.world.pogema_env:Pogema"
DRAWN = {"map": "a.#B\n...A\n...b"}


class GridConfig:
    def __init__(self, **settings):
        if settings.get("num_agents", 1) < 1:
            raise KeyError("num_agents")
        self.settings = settings


class Game:
    """As POGEMA: lists for all agents, and a border around everything unless it is ignored."""

    def __init__(self, config):
        self.config = config.settings
        rng = np.random.default_rng(self.config["seed"])
        drawn = self.config.get("map")
        agents = self.config.get("num_agents", 1)
        self.cases = (
            parse(drawn) if drawn else generate(1, agents=agents, size=6, density=0.2, rng=rng)
        )
        self.worlds = Worlds(self.cases, WorldRules(collision=Collision.SOFT))

    def reset(self):
        return [], [{}]

    def step(self, actions):
        stepped = self.worlds.step(np.array([actions]))
        actions[:] = [STAY] * len(actions)  # as POGEMA does to those it sends home
        over = bool(stepped.finished[0])
        late = bool(self.worlds.steps[0] >= self.config["max_episode_steps"])
        info = {"metrics": {"CSR": float(over)}} if over or late else {}
        count = len(actions)
        return [], [float(over)] * count, [over] * count, [late] * count, [info] + [{}] * count

    def get_obstacles(self, ignore_borders=False):
        bare, border = self.worlds.maps[0], self.config["obs_radius"]
        return bare.astype(float) if ignore_borders else np.pad(bare, border, constant_values=1)

    def get_agents_xy(self, only_active=False, ignore_borders=False):
        return self._listed(self.worlds.place[0], ignore_borders)

    def get_targets_xy(self, only_active=False, ignore_borders=False):
        return self._listed(self.worlds.goals[0], ignore_borders)

    def _listed(self, places, ignore_borders):
        return (places + (0 if ignore_borders else self.config["obs_radius"])).tolist()


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Puts the fake in POGEMA's place; returns the games that were made of it, in order."""
    games = []

    def pogema_v0(config):
        games.append(Game(config))
        return games[-1]

    monkeypatch.setitem(
        sys.modules, "pogema", SimpleNamespace(GridConfig=GridConfig, pogema_v0=pogema_v0)
    )
    return games


def test_the_adapter_passes_gymnasiums_checker():
    check_env(Pogema({"num_agents": 3}), skip_render_check=True)


@pytest.mark.parametrize("outside", Outside)
def test_agents_see_what_they_see_in_our_own_worlds(made, outside):
    env = Pogema({"num_agents": 5}, radius=3, outside=outside)
    obs, _ = env.reset(seed=4)
    twin = Worlds(Cases(*made[-1].cases), WorldRules(radius=3, outside=outside, collision="soft"))

    for action in np.random.default_rng(1).integers(5, size=(20, 5)):
        assert np.array_equal(obs["view"], twin.views()[0])
        assert np.array_equal(obs["place"], twin.place[0])
        obs, *_ = env.step(action)
        twin.step(action[None])


def test_the_algorithm_team_plays_it():
    kwargs = {"config": {"num_agents": 3}, "steps": 4}
    config = load(None, changes={"algo.name": "team", "env.id": ID, "env.kwargs": kwargs})
    envs, rng = make(config.env, 2), np.random.default_rng(0)
    team = build_algorithm(config, envs.spec)
    obs, memory = envs.reset(seed=0), np.zeros((2, team.memory), dtype=np.float32)

    for _ in range(6):
        acted = team.act(obs, rng, memory=memory)
        stepped = envs.step(acted.action)
        obs, memory = stepped.obs, acted.memory

    assert (obs["view"].dtype, obs["place"].dtype) == (np.uint8, np.int16)
    assert obs["place"].shape == (2, 3, 2)


def test_the_game_is_played_as_in_the_benchmark(made):
    Pogema({"num_agents": 2, "density": 0.1}, radius=3, steps=50)

    assert made[-1].config == {
        "num_agents": 2,
        "density": 0.1,
        "seed": 0,
        "on_target": "nothing",
        "collision_system": "soft",
        "observation_type": "MAPF",
        "obs_radius": 3,
        "max_episode_steps": 50,
    }


def test_an_episode_terminates_when_all_are_on_their_targets():
    env = Pogema(DRAWN)
    env.reset(seed=0)
    ways = np.array([[DOWN, UP], [RIGHT, UP], [RIGHT, STAY], [RIGHT, STAY]])  # a, b

    *before, last = [env.step(action) for action in ways]

    assert [step[1:] for step in before] == [(0.0, False, False, {})] * 3
    obs, reward, terminated, truncated, info = last
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert obs["reward"].tolist() == [1.0, 1.0]
    assert obs["place"].tolist() == [[1, 3], [0, 3]]
    assert info == {
        "is_success": 1,
        "individual_success": 1.0,
        "length": 4,
        "sum_of_costs": 6,  # 4 and 2
        "agents": 2,
        "size": 4,
        "metrics": {"CSR": 1.0},
    }


def test_an_episode_is_truncated_when_its_steps_are_over():
    env = Pogema(DRAWN, steps=2)
    env.reset(seed=0)

    env.step(np.array([STAY, UP]))
    _, _, terminated, truncated, info = env.step(np.array([STAY, UP]))

    assert (terminated, truncated) == (False, True)
    assert (info["is_success"], info["individual_success"]) == (0, 0.5)


def test_actions_stay_the_callers():
    env = Pogema(DRAWN)
    env.reset(seed=0)
    action = [LEFT, LEFT]

    env.step(action)

    assert action == [LEFT, LEFT]


def test_the_seed_of_a_reset_says_which_cases_follow(made):
    env = Pogema({"num_agents": 3})
    first = [env.reset(seed=9)[0]["place"].tolist(), env.reset()[0]["place"].tolist()]
    again = [env.reset(seed=9)[0]["place"].tolist(), env.reset()[0]["place"].tolist()]

    assert first == again
    assert first[0] != first[1]


def test_a_seed_in_the_config_fixes_the_case(made):
    env = Pogema({"num_agents": 3, "seed": 5})
    env.reset(seed=1)
    env.reset(seed=2)

    assert [game.config["seed"] for game in made] == [5, 5, 5]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"obs_radius": 5}, "obs_radius was given in config; give it as radius"),
        ({"max_episode_steps": 5}, "give it as steps"),
        ({"on_target": "finish"}, "on_target was given .* leave it out"),
        ({"integration": "PettingZoo"}, "integration was given .* leave it out"),
        ({"num_agents": 0}, r"POGEMA does not take .*'num_agents': 0.* \(KeyError"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Pogema(config)


def test_without_pogema_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pogema", None)

    with pytest.raises(ConfigError, match="install POGEMA 2 or newer"):
        Pogema()
