"""Masks in targets: with them the values are right, and without them provably not."""

from typing import Any, ClassVar

import numpy as np
import pytest

from masked_envs import TWENTY, Pit
from rookery.types import MASK
from short_trainings import BASE, CONTROL, reaches, train

pytestmark = pytest.mark.learning

PIT: dict[str, Any] = BASE | {
    "env.id": "masked_envs:Pit",
    "env.kwargs": {},
    "run.env_steps": 3_000,
    "actor.epsilon_steps": 1_500,
    "actor.epsilon_end": 0.3,
    "algo.gamma": 1.0,
    "algo.n_step": 1,
    "algo.target_tau": 0.05,
    "net.hidden": [],
    "learner.lr": 0.005,
}


def learned(settings: dict[str, Any], seed: int) -> Any:
    """Returns the training, and what it thinks of both ways in front of the door."""
    trained = train(PIT | settings, seed)
    obs = {"observation": np.eye(2, dtype=np.float32), MASK: np.ones((2, TWENTY), np.int8)}
    return trained, trained.q(obs)[0]


@pytest.mark.parametrize("seed", range(3))
def test_values_are_exact_where_targets_keep_to_the_mask(seed: int) -> None:
    trained, q = learned({}, seed)

    assert trained.optimal(Pit.optimal_return)
    np.testing.assert_allclose(q[:2], [0.4, 0.6], atol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_one_that_forgets_it_believes_in_what_it_may_not_do(seed: int) -> None:
    """The control: it acts by the mask, and its targets do not."""
    trained, q = learned({"algo.name": "masked_envs:Forgetful"}, seed)

    assert q[0] > 0.5
    assert trained.returns
    assert not trained.optimal(Pit.optimal_return)


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
class TestPolicies:
    """Of seed 0, whose first weights go through the door."""

    SHORT: ClassVar[dict[str, Any]] = {
        "env.id": "masked_envs:Pit",
        "env.kwargs": {},
        "env.check": False,
        "eval.target": None,
        "run.mode": "sync",
        "run.env_steps": 6_000,
        "learner.device": "cpu",
    }

    def test_each_learns_under_masks(self, name: str) -> None:
        assert reaches(self.SHORT, Pit.optimal_return, scenario=f"{name}-cartpole")

    def test_none_does_without_learning(self, name: str) -> None:
        control = self.SHORT | CONTROL

        assert not reaches(control, Pit.optimal_return, scenario=f"{name}-cartpole")
