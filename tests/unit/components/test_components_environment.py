"""Environments of the components, with workers in this process: what steps they return."""

import threading
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

import rookery
from rookery.components.agents import DistributedAgent
from rookery.components.environment import DistributedEnvironment
from rookery.components.experience import steps_in
from rookery.components.protocols import Environment
from rookery.components.replay_buffers import ReplayBuffer
from rookery.envs.toy.basic import Corridor, Echo, Mixed
from rookery.errors import ConfigError

SMALL: dict[str, Any] = {"net.hidden": [8]}


def inline(env: Any = Corridor, workers: int = 2, **more: Any) -> DistributedEnvironment:
    return DistributedEnvironment(env, workers, engine="inline", **more)


def right(obs: Any) -> int:
    return 1


class Left:
    def act(self, obs):
        return 0


def ends(steps: list[dict[str, Any]]) -> int:
    return sum(bool(step["terminated"] or step["truncated"]) for step in steps)


@pytest.mark.parametrize("episodes", [1, 2, 5])
def test_so_many_whole_episodes_come_back_as_asked_for(episodes):
    with inline() as environment:
        steps = environment.generate_experiences(right, episodes)

    assert ends(steps) == episodes
    assert len(steps) == 7 * episodes
    assert steps[-1]["terminated"]


def test_a_step_leads_to_the_next_one_of_its_episode():
    with inline(Echo, 3) as environment:
        steps = environment.generate_experiences(lambda obs: int(obs.argmax()), 7)

    for now, after in pairwise(steps):
        if not now["terminated"]:
            np.testing.assert_array_equal(now["next_obs"], after["obs"])
    assert sum(step["reward"] for step in steps) == 70  # every cue was repeated


def test_a_limit_of_steps_truncates_and_never_raises_the_environments_own():
    with inline() as environment:
        cut = environment.generate_experiences(Left(), 2, 5)
        own = environment.generate_experiences(Left(), 2, 1000)

    assert [step["truncated"] for step in cut] == ([False] * 4 + [True]) * 2
    assert len(own) == 2 * Corridor.LIMIT
    assert not any(step["terminated"] for step in cut + own)


def test_the_limit_of_a_registered_environment_is_not_raised():
    with inline("MountainCar-v0", 1) as environment:
        steps = environment.generate_experiences(right, 1, 1000)

    assert len(steps) == 200
    assert steps[-1]["truncated"]


def test_rows_of_a_lost_actor_lead_to_none_of_its_successors():
    environment = inline()
    codec, spec = environment._shown.codec, environment.spec
    rows = {
        "obs": np.eye(8, dtype=np.float32)[:5],
        "action": np.ones(5, dtype=np.int64),
        "reward": np.arange(5, dtype=np.float32),
        "end": np.array([0, 0, 0, 0, 1], dtype=np.uint8),
        "episode": np.array([0, 0, 0, 1, 1]),
        "incarnation": np.array([0, 0, 1, 1, 1]),
    }

    steps = steps_in(rows, spec, codec)

    assert steps["reward"].tolist() == [0.0, 3.0]
    assert steps["next_obs"].argmax(1).tolist() == [1, 4]
    assert steps["terminated"].tolist() == [False, True]


def test_batches_have_so_many_steps_and_go_on_where_the_last_one_ended():
    with inline(workers=1) as environment:
        first = environment.generate_batch_experiences(right, 5)
        second = environment.generate_batch_experiences(right, 9)

    where = np.concatenate([first["obs"], second["obs"]]).argmax(1)
    assert where.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]
    assert np.flatnonzero(np.concatenate([first["terminated"], second["terminated"]])).tolist() == [
        6,
        13,
    ]


def test_several_workers_bring_each_step_of_theirs_once():
    with inline(workers=3) as environment:
        batches = [environment.generate_batch_experiences(right, 10) for _ in range(4)]

    where = np.concatenate([batch["obs"].argmax(1) for batch in batches])
    assert len(where) == 40
    assert np.ptp(np.bincount(where, minlength=7)[:7]) <= 3  # each walked the same way


def test_episodes_begin_anew_after_a_batch():
    with inline() as environment:
        environment.generate_batch_experiences(right, 3)
        steps = environment.generate_experiences(right, 2)

    assert [step["obs"].argmax() for step in steps] == list(range(7)) * 2


@pytest.mark.parametrize("bias", [[100.0, 0.0], [0.0, 100.0]])
def test_workers_play_with_the_parameters_they_were_given_last(bias):
    agent = DistributedAgent(env=Corridor, settings=SMALL | {"actor.epsilon": 0.0})
    parameters = agent.get_policy_parameters()
    parameters["online.body.out.bias"] = np.float32(bias)
    with inline() as environment:
        environment.generate_experiences(right, 1, 3)
        agent.set_policy_parameters(parameters)
        by_agent = environment.generate_experiences(agent, 2, 3)
        environment.update_policy({k: np.zeros_like(v) for k, v in parameters.items()})
        environment.update_policy(parameters)
        by_update = environment.generate_experiences(None, 2, 3)
        by_policy = environment.generate_experiences(agent.policy(), 2, 3)

    wanted = int(np.argmax(bias))
    for steps in (by_agent, by_update, by_policy):
        assert {int(step["action"]) for step in steps} == {wanted}


def test_agents_explore_by_their_epsilon():
    agent = DistributedAgent(env=Corridor, settings=SMALL | {"actor.epsilon": 1.0})
    with inline() as environment:
        actions = environment.generate_batch_experiences(agent, 400)["action"]

    assert np.mean(actions) == pytest.approx(0.5, abs=0.15)  # six deviations


def test_what_a_users_policy_learned_meanwhile_counts():
    policy = Left()
    with inline() as environment:
        before = environment.generate_experiences(policy, 2, 2)
        policy.act = right  # type: ignore[method-assign]
        after = environment.generate_experiences(policy, 2, 2)

    assert {int(step["action"]) for step in before} == {0}
    assert {int(step["action"]) for step in after} == {1}


def test_parts_of_a_dict_are_keys_of_their_own():
    env = Mixed()
    keys = inline(Mixed).experience_keys
    with inline(Mixed) as environment:
        batch = environment.generate_batch_experiences(lambda obs: env.action_space.sample(), 6)
    buffer = ReplayBuffer(10, keys)
    buffer.add_batch(batch)
    agent = DistributedAgent(env=Mixed, settings=SMALL)

    assert set(batch) == set(keys)
    assert {key.partition(".")[0] for key in keys} >= {"obs", "next_obs"}
    assert len(keys) > 8
    assert np.isfinite(agent.learn_from_batch(buffer.sample(4))["loss"])


def test_the_same_seed_plays_the_same_episodes():
    played = []
    for _ in range(2):
        with inline("CartPole-v1", seed=3) as environment:
            played.append(environment.generate_batch_experiences(lambda obs: int(obs[2] > 0), 40))

    for key in played[0]:
        np.testing.assert_array_equal(played[0][key], played[1][key])


def test_statistics_count_what_was_played():
    with inline() as environment:
        environment.generate_experiences(right, 4)
        stats = environment.get_environment_stats()

    assert (stats["episodes"], stats["env_steps"], stats["num_workers"]) == (4, 28, 2)
    assert stats["mean_reward"] == pytest.approx(Corridor().optimal_return)
    assert stats["mean_length"] == 7


def test_after_a_shutdown_the_next_steps_start_new_workers():
    environment = inline()
    environment.shutdown()
    environment.generate_experiences(right, 1)
    environment.shutdown()
    environment.shutdown()

    assert ends(environment.generate_experiences(right, 1)) == 1
    environment.shutdown()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda e: e.generate_experiences(right, 0), "num_episodes must be above 0"),
        (lambda e: e.generate_experiences(right, 1, 0), "max_steps_per_episode must be"),
        (lambda e: e.generate_batch_experiences(right, 0), "batch_size must be above 0"),
        (lambda e: e.generate_experiences(None, 1), "got None"),
        (lambda e: e.generate_experiences(3, 1), "act"),
        (lambda e: e.update_policy({}), "no workers play yet"),
        (lambda e: e.generate_experiences(threading.Lock().acquire, 1), "cannot be sent"),
        (
            lambda e: e.generate_experiences(rookery.DqnAgent.new(Echo), 1),
            "made for rookery.envs.toy.basic:Echo",
        ),
    ],
)
def test_what_cannot_work_is_refused(call, says):
    with inline() as environment, pytest.raises(ConfigError, match=says):
        call(environment)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: inline(workers=0), "num_workers must be above 0, got 0"),
        (
            lambda: DistributedEnvironment(Corridor, engine="ray"),
            "must be one of processes, inline, got .*'ray'",
        ),
        (lambda: inline("pettingzoo_envs:Turns"), "several seats"),
        (lambda: inline(settings={"env.frame_stack": 2}), "FrameStackObservation"),
        (lambda: inline("CartPole-v7"), "CartPole"),
    ],
)
def test_environments_that_cannot_be_played_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_it_is_what_loops_ask_for_and_refuses_wrong_types():
    environment = inline(lambda: gym.make("CartPole-v1"))

    assert isinstance(environment, Environment)
    with pytest.raises(BeartypeCallHintViolation):
        DistributedEnvironment(Corridor, num_workers=2.5)
    with pytest.raises(BeartypeCallHintViolation):
        environment.generate_experiences(right, "all")
