"""The team environment that the loops play: its conventions, its curriculum, its state."""

import json

import numpy as np
import pytest

from rookery.config.schema import EnvConfig
from rookery.envs.make import check, make
from rookery.errors import CheckpointError, ConfigError
from rookery.pathfinding.world.cases import generate, pad
from rookery.pathfinding.world.team_env import Team

ID = "rookery.pathfinding.world.team_env:Team"
SMALL = {"agents": 3, "size": 6, "density": 0.2, "steps": 12}
CURRICULUM = {"agents": [1, 2], "sizes": [4, 6], "history": 2, "threshold": 0.5, "density": 0.0}


def followed(envs, steps):
    """Plays on with actions that are always the same, and returns everything that was seen."""
    rng, story = np.random.default_rng(5), []
    for _ in range(steps):
        stepped = envs.step(rng.integers(5, size=(envs.num, *envs.spec.action.shape)))
        leaves = [stepped.obs[name].tolist() for name in sorted(stepped.obs)]
        story.append([*leaves, stepped.reward.tolist(), stepped.terminated.tolist()])
    return story


@pytest.mark.parametrize("kwargs", [SMALL, {"curriculum": CURRICULUM}], ids=["fixed", "curriculum"])
def test_rookery_makes_it_and_gymnasiums_checker_has_nothing_to_say(kwargs):
    config = EnvConfig(id=ID, kwargs=kwargs)

    assert check(config) == []
    shapes = {leaf.name: leaf.shape for leaf in make(config, 2).spec.obs}
    agents = kwargs.get("agents", 2)
    assert shapes == {"view": (agents, 9, 9), "place": (agents, 2), "reward": (agents,)}


def test_observations_are_copies():
    env = Team(**SMALL)
    first, _ = env.reset(seed=0)
    before = {name: part.copy() for name, part in first.items()}

    for _ in range(5):
        env.step(env.action_space.sample())

    for name, part in first.items():
        np.testing.assert_array_equal(part, before[name])


def test_the_reward_is_the_mean_of_what_agents_earned_which_is_seen_next():
    env = Team(**SMALL)
    obs, _ = env.reset(seed=0)
    assert not obs["reward"].any()

    for _ in range(5):
        obs, reward, *_ = env.step(env.action_space.sample())
        assert reward == pytest.approx(obs["reward"].mean())


def test_the_last_step_says_how_it_went():
    env = Team(agents=2, size=2, density=0.0, steps=1)
    infos = []
    for seed in range(30):  # that is enough for both agents to be home now and then
        env.reset(seed=seed)
        *_, terminated, truncated, info = env.step(played_home(env))
        infos.append(info)
        assert terminated == bool(info["is_success"]) != truncated
        assert info["individual_success"] == 1.0 if terminated else info["individual_success"] < 1.0
        assert (info["agents"], info["size"]) == (2, 2)

        assert info["length"] == 1
        assert info["sum_of_costs"] == 2  # who is not home pays for all steps

    assert {info["is_success"] for info in infos} == {0, 1}


def played_home(env):
    """Returns for every agent the first action that shortens its path."""
    codes = env._worlds.views()[0][:, env.rules.radius, env.rules.radius]
    return [next((d + 1 for d in range(4) if code >> (2 + d) & 1), 0) for code in codes]


def test_an_episode_that_goes_on_says_nothing():
    env = Team(**SMALL)
    env.reset(seed=0)

    assert env.step([0, 0, 0])[4] == {}


def test_what_is_reported_of_an_episode_is_success_and_how_far_the_curriculum_has_come():
    envs = make(EnvConfig(id=ID, kwargs={"curriculum": CURRICULUM, "steps": 1}), 2)
    envs.reset(seed=0)

    steps = envs.step(np.zeros((2, 2), np.int64))

    assert envs.finished_info(steps, 1, ("agents",)) == {
        "is_success": 0.0,
        "agents": 1.0,
        "curriculum/agents": 1.0,
        "curriculum/size": 4.0,
    }


def test_absent_agents_are_nowhere_and_do_not_count():
    env = Team(curriculum=CURRICULUM)
    obs, _ = env.reset(seed=0)
    assert env.task == (1, 4)
    assert obs["place"][1].tolist() == [-1, -1]
    assert not obs["view"][1].any()

    obs, reward, terminated, *_ = env.step([*played_home(env)[:1], 3])

    assert obs["place"][1].tolist() == [-1, -1]
    assert reward == pytest.approx(3.0 if terminated else -0.075)


def test_absent_agents_are_not_among_those_that_got_home():
    env = Team(curriculum=CURRICULUM, steps=1)
    env.reset(seed=0)

    *_, truncated, info = env.step([0, 0])

    assert truncated
    assert (info["individual_success"], info["agents"]) == (0.0, 1)
    assert (info["length"], info["sum_of_costs"]) == (1, 1)


def test_a_curriculum_advances_when_a_task_is_mastered():
    env = Team(curriculum=CURRICULUM)
    for seed in range(2):
        env.reset(seed=seed)
        over, info = False, {}
        while not over:
            *_, terminated, truncated, info = env.step(played_home(env))
            over = terminated or truncated
        assert (info["is_success"], info["agents"], info["size"]) == (1, 1, 4)

    assert info["curriculum"] == {"agents": 2, "size": 6}
    assert set(env.curriculum.tasks) == {(1, 4), (1, 6), (2, 4)}


def mastered():
    """Returns an environment that has opened all tasks but the last."""
    env = Team(curriculum=CURRICULUM)
    for task in [(1, 4)] * 2:
        env.curriculum.record(task, success=True)
    env.curriculum.advance()
    return env


def test_a_new_environment_continues_the_curriculum_of_another():
    env, other = mastered(), Team(curriculum=CURRICULUM)

    other.restore_progress(json.loads(json.dumps(env.export_progress())))

    assert other.export_progress() == env.export_progress()
    drawn = set()
    for seed in range(30):
        other.reset(seed=seed)
        drawn.add(other.task)
    assert drawn == {(1, 4), (1, 6), (2, 4)}


def test_progress_has_nothing_of_an_episode():
    env = mastered()
    before = env.export_progress()

    env.reset(seed=0)
    env.step([0, 0])

    assert env.export_progress() == before


def test_without_a_curriculum_there_is_no_progress():
    env = Team(**SMALL)

    env.restore_progress(mastered().export_progress())  # it was taken away since

    assert env.export_progress() is None


@pytest.mark.parametrize(
    "kwargs", [SMALL, {"curriculum": CURRICULUM, "steps": 9}], ids=["fixed", "curriculum"]
)
@pytest.mark.parametrize("before", [0, 5, 30])
def test_a_restored_environment_plays_on_bit_for_bit(kwargs, before):
    ours, theirs = (make(EnvConfig(id=ID, kwargs=kwargs), 2) for _ in range(2))
    ours.reset(seed=3)
    theirs.reset(seed=4)
    followed(ours, before)

    obs = theirs.restore_state(json.loads(json.dumps(ours.export_state())))

    assert set(obs) == {"view", "place", "reward"}
    assert followed(theirs, 40) == followed(ours, 40)


def test_a_restored_episode_is_measured_from_its_start():
    """After six steps somebody is home, for which it has paid."""
    env, other = Team(**SMALL), Team(**SMALL)
    env.reset(seed=2)
    for _ in range(6):
        env.step(played_home(env))

    other.restore_state(json.loads(json.dumps(env.export_state())))
    infos = [{}, {}]
    for _ in range(6):
        infos = [each.step(played_home(each))[4] for each in (env, other)]
        if infos[0]:
            break

    assert infos[0] == infos[1]
    assert infos[0]["sum_of_costs"] < infos[0]["agents"] * infos[0]["length"]


def test_a_state_from_before_the_first_reset_is_one_too():
    env, other = Team(**SMALL), Team(**SMALL)

    other.restore_state(json.loads(json.dumps(env.export_state())))

    assert other.export_state() == env.export_state()


@pytest.mark.parametrize(
    ("other", "room"),
    [
        pytest.param({"agents": [1, 2], "sizes": [4, 5]}, "2 on 5 x 5", id="size"),
        pytest.param({"agents": [1, 2, 3], "sizes": [4, 6]}, "3 on 6 x 6", id="agents"),
    ],
)
def test_an_episode_of_another_shape_is_refused(other, room):
    env = Team(curriculum=CURRICULUM)
    env.reset(seed=0)

    with pytest.raises(CheckpointError, match=f"for {room}; resume with the same env.kwargs"):
        Team(curriculum={**CURRICULUM, **other}).restore_state(env.export_state())


def test_an_episode_whose_task_was_dropped_ends_as_any_other():
    env = Team(curriculum=CURRICULUM, steps=1)
    env.reset(seed=0)
    other = Team(curriculum={**CURRICULUM, "agents": [2]}, steps=1)

    other.restore_state(env.export_state())
    *_, truncated, info = other.step([0, 0])

    assert truncated
    assert info["curriculum"] == {"agents": 2, "size": 4}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"agents": 0}, "agents from 1", id="no agents"),
        pytest.param({"agents": 2, "curriculum": {}}, "leave them out", id="twice said"),
        pytest.param({"curriculum": {"sizzes": [4]}}, "curriculum takes", id="misspelt"),
        pytest.param({"density": 2.0}, "0 <= density < 1", id="density"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        Team(**asked)


def test_it_paints_what_goes_on():
    env = Team(**SMALL, render_mode="rgb_array")
    env.reset(seed=0)

    assert env.render().shape == (48, 48, 3)
    assert Team(**SMALL).render() is None


def test_padding_keeps_a_case_and_blocks_the_rest():
    cases = generate(2, agents=3, size=6, density=0.2, rng=np.random.default_rng(0))
    larger = pad(cases, 5, 8)

    np.testing.assert_array_equal(larger.maps[:, :6, :6], cases.maps)
    assert larger.maps[:, 6:].all()
    assert larger.maps[:, :, 6:].all()
    np.testing.assert_array_equal(larger.starts[:, :3], cases.starts)
    assert (larger.goals[:, 3:] == -1).all()
    with pytest.raises(ConfigError, match="do not fit"):
        pad(larger, 3, 6)
