"""Policies that give probabilities learn: one choice, several at once, and motions.

How many seeds passed when the settings were chosen stands with each test. A policy that was never
trained walks straight to the corridor's door by luck now and then, so that asks for several seeds.
"""

from typing import Any

import numpy as np
import pytest

from rookery.envs.toy.basic import Corridor, Dials
from short_trainings import CONTROL, reaches, train

pytestmark = pytest.mark.learning

SMALL: dict[str, Any] = {
    "env.check": False,
    "eval.target": None,
    "env.reward_scale": 1.0,
    "learner.device": "cpu",
    "learner.lr": 0.005,
    "net.hidden": [32],
}
CORRIDOR = SMALL | {"env.id": "rookery.envs.toy.basic:Corridor"}
PPO = {"algo.epochs": 5, "replay.batch_size": 64, "actor.chunk": 128, "learner.lr": 0.003}
WALKS: dict[str, dict[str, Any]] = {
    "ppo": CORRIDOR | PPO | {"run.env_steps": 2_500},
    "a2c": CORRIDOR | {"run.env_steps": 6_000, "actor.envs": 8, "actor.chunk": 64},
    "impala": CORRIDOR | {"run.env_steps": 6_000},
}
DIALS = SMALL | PPO
DIALS |= {
    "env.id": "rookery.envs.toy.basic:Dials",
    "run.env_steps": 8_000,
    "algo.gamma": 0.5,
    "algo.epochs": 8,
    "learner.lr": 0.005,
}
REACH = SMALL | PPO
REACH |= {
    "env.id": "rookery.envs.toy.basic:Reach",
    "run.env_steps": 8_000,
    "algo.gamma": 0.9,
    "algo.epochs": 10,
    "actor.chunk": 256,
    "env.reward_scale": 0.2,
}
NEAR = -3.0  # the optimum's mean is -1; without moving it is about -50


def walked(name: str, seed: int, changes: dict[str, Any]) -> bool:
    optimum = Corridor().optimal_return
    return reaches(WALKS[name] | changes, optimum, seed, scenario=f"{name}-cartpole")


@pytest.mark.parametrize("name", WALKS)
def test_credit_over_many_steps_is_found_by(name: str) -> None:
    """15 of 15 seeds for each of the three."""
    assert all(walked(name, seed, {}) for seed in range(3))


@pytest.mark.parametrize("name", WALKS)
def test_without_learning_the_way_is_found_by_luck_at_most(name: str) -> None:
    assert not all(walked(name, seed, CONTROL) for seed in range(3))


def test_ppo_learns_several_choices_at_once() -> None:
    """8 of 8 seeds. A policy that leaves one dial to chance is right a third of the time."""
    assert reaches(DIALS, Dials().optimal_return, scenario="ppo-cartpole")


def test_without_learning_several_choices_are_not_right_at_once() -> None:
    trained = train(DIALS | CONTROL, scenario="ppo-cartpole")

    assert np.mean(trained.returns) < 5.0


def mean_reached(changes: dict[str, Any]) -> float:
    trained = train(
        REACH | changes, scenario="ppo-cartpole", until=lambda done: np.mean(done.returns) > NEAR
    )
    return float(np.mean(trained.returns))


def test_ppo_learns_a_motion() -> None:
    """8 of 8 seeds."""
    assert mean_reached({}) > NEAR


def test_without_learning_no_goal_is_reached() -> None:
    assert mean_reached(CONTROL) < -20.0
