"""Trajectories: what an environment told, as rows, and back."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rookery.api.trajectories import Trajectory, as_trajectory, rows_of, trajectories_in
from rookery.config.schema import EnvConfig
from rookery.envs.spaces import SpaceCodec, spec_of
from rookery.envs.toy import basic
from rookery.errors import ConfigError
from rookery.types import End

TOLD = Trajectory(
    obs=np.eye(3, 8, dtype=np.float32),
    action=np.array([0, 1, 1]),
    reward=np.array([0.5, -2.0, 4.0]),
    terminated=np.array([False, False, True]),
    truncated=np.zeros(3, dtype=bool),
    final_obs=np.full(8, 0.5, dtype=np.float32),
)


class Shifted(basic.Echo):
    """Its actions begin at 5."""

    def __init__(self) -> None:
        super().__init__(classes=3)
        self.action_space = spaces.Discrete(3, start=5)


def doors(env: gym.Env[Any, Any]) -> tuple[Any, SpaceCodec]:
    return (
        spec_of("toy", env.observation_space, env.action_space),
        SpaceCodec(env.observation_space, env.action_space),
    )


def rows(trajectory: Trajectory, **env: Any) -> Any:
    return rows_of(trajectory, *doors(basic.Corridor()), EnvConfig(**env))


def played(env: gym.Env[Any, Any], steps: int = 6) -> Trajectory:
    """An episode by hand, as a user would write it down."""
    seen, action, reward = [env.reset(seed=3)[0]], [], []
    env.action_space.seed(1)
    for _ in range(steps):
        action.append(env.action_space.sample())
        obs, earned, *_ = env.step(action[-1])
        seen.append(obs)
        reward.append(earned)
    obs = seen[:-1]
    batch: Any = np.stack(obs) if not isinstance(obs[0], dict) else None
    if batch is None:
        batch = {name: np.stack([one[name] for one in obs]) for name in obs[0]}
    no = np.zeros(steps, dtype=bool)
    return Trajectory(batch, np.array(action), np.array(reward, np.float32), no, no, seen[-1])


def test_every_step_is_a_row_and_the_final_observation_one_more():
    found = rows(TOLD)

    assert found["action"].tolist() == [0, 1, 1, 0]
    assert found["reward"].tolist() == [0.5, -2.0, 4.0, 0.0]
    assert found["end"].tolist() == [End.RUNNING] * 3 + [End.TERMINATED]
    assert found["t"].tolist() == [0, 1, 2, 3]
    assert found["obs"].tolist() == [*TOLD.obs.tolist(), [0.5] * 8]


@pytest.mark.parametrize(
    ("terminated", "truncated", "end"),
    [
        (True, False, End.TERMINATED),
        (False, True, End.TRUNCATED),
        (True, True, End.TERMINATED),
        (False, False, End.TRUNCATED),  # cut by whoever wrote it down
    ],
)
def test_the_last_step_says_how_the_episode_ended(terminated, truncated, end):
    flags = np.zeros((2, 3), dtype=bool)
    flags[:, -1] = terminated, truncated

    assert rows(TOLD._replace(terminated=flags[0], truncated=flags[1]))["end"][-1] == end


def test_rewards_are_stored_as_an_actor_would_store_them():
    found = rows(TOLD, reward_scale=2.0, reward_clip=3.0)

    assert found["reward"].tolist() == [1.0, -3.0, 3.0, 0.0]
    assert TOLD.score == 2.5


@pytest.mark.parametrize(
    "env",
    [basic.Corridor(), basic.Pictures(12), basic.Mixed(), basic.Dials(), Shifted()],
    ids=lambda e: type(e).__name__,
)
def test_rows_become_the_trajectory_they_came_from(env):
    told = played(env)
    spec, codec = doors(env)

    (found,) = trajectories_in(rows_of(told, spec, codec, EnvConfig()), spec, codec)

    expected = told._replace(truncated=np.arange(6) == 5)
    for name in Trajectory._fields:
        np.testing.assert_equal(getattr(found, name), getattr(expected, name))


def test_a_mapping_with_the_same_names_is_a_trajectory():
    assert as_trajectory(TOLD._asdict()) is not TOLD
    assert as_trajectory(TOLD._asdict())._asdict() == TOLD._asdict()
    with pytest.raises(ConfigError, match=r"has obs, action, .* got done, obs"):
        as_trajectory({"obs": TOLD.obs, "done": TOLD.terminated})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"terminated": np.array([True, False, False])}, "end at step 1; give each episode"),
        ({"truncated": np.array([False, True, False])}, "end at step 2; give each episode"),
        ({"reward": np.zeros(2)}, "got 3 actions and .*'reward': 2.*; give at least one action"),
        ({"action": np.array([0, 1, 2])}, "whole numbers from 0 to 1, .* from 0 to 2"),
        ({"action": np.array([-1, 0, 1])}, "whole numbers from 0 to 1"),
    ],
)
def test_what_is_not_one_episode_of_this_environment_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        rows(TOLD._replace(**change))


def test_an_episode_without_a_step_is_refused():
    none = np.zeros(0)
    with pytest.raises(ConfigError, match="at least one action"):
        rows(Trajectory(np.zeros((0, 8)), none, none, none, none, np.zeros(8)))
