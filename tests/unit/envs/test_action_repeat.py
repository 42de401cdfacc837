"""Held actions: how often they are done, what they earn, and where they end."""

import gymnasium as gym
import numpy as np
import pytest

from rookery.config.schema import EnvConfig
from rookery.envs.action_repeat import ActionRepeat
from rookery.envs.make import make
from rookery.envs.toy.basic import Corridor
from rookery.errors import ConfigError


def corridor(steps: int) -> ActionRepeat:
    held = ActionRepeat(Corridor(), steps)
    held.reset(seed=0)
    return held


@pytest.mark.parametrize("steps", [1, 3])
def test_an_action_is_done_so_often_and_its_rewards_add_up(steps: int) -> None:
    obs, reward, *ended, _ = corridor(steps).step(1)

    assert obs.argmax() == steps
    assert reward == pytest.approx(-0.01 * steps)
    assert ended == [False, False]


def test_it_ends_with_the_episode() -> None:
    obs, reward, terminated, truncated, info = corridor(50).step(1)

    assert (obs.argmax(), terminated, truncated, info) == (7, True, False, {"is_success": True})
    assert reward == pytest.approx(0.93)


def test_time_limits_end_it_too() -> None:
    held = ActionRepeat(gym.wrappers.TimeLimit(Corridor(), 5), 8)
    held.reset(seed=0)
    _, reward, terminated, truncated, _ = held.step(0)

    assert (terminated, truncated) == (False, True)
    assert reward == pytest.approx(-0.05)


def test_its_environment_can_still_be_saved() -> None:
    config = EnvConfig(
        id="MountainCarContinuous-v0",
        wrappers=({"rookery.envs.action_repeat:ActionRepeat": {"steps": 3}},),
    )
    envs = make(config, 2)
    envs.reset(0)
    envs.step(np.ones((2, 1), np.float32))
    saved = envs.export_state()

    assert saved is not None
    obs = envs.step(np.ones((2, 1), np.float32)).obs
    envs.restore_state(saved)
    assert np.array_equal(envs.step(np.ones((2, 1), np.float32)).obs, obs)
    envs.close()


def test_less_than_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        ActionRepeat(Corridor(), 0)
