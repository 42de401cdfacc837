"""Choices by soft actor-critic: the way through a corridor.

The bar is the exactly known optimum in every greedy episode. A policy that was never trained walks
straight to the door only where its first network happens to say so everywhere.
"""

import pytest

from rookery.envs.toy.basic import Corridor
from short_trainings import BASE, CONTROL, solved

pytestmark = pytest.mark.learning

OPTIMUM = Corridor().optimal_return
SEEDS = range(3)

SOFT = BASE | {
    "run.env_steps": 2_000,
    "algo.name": "sac",
    "algo.target_tau": 0.02,
    "algo.initial_temperature": 0.1,
    "algo.target_entropy": 0.1,
    "algo.n_step": 3,
    "net.hidden": [32],
    "replay.learning_starts": 200,
    "replay.batch_size": 32,
    "replay.samples_per_insert": 32.0,
    "actor.pull_period": 16,
    "actor.chunk": 16,
    "learner.lr": 0.003,
    "learner.publish_period": 1,
}


@pytest.mark.parametrize("draw", ["uniform", "prioritized"])
def test_the_door_is_found(draw: str) -> None:
    assert solved({**SOFT, "replay.sampling": draw}, OPTIMUM, SEEDS) == len(SEEDS)


def test_without_learning_it_is_found_by_luck_at_most() -> None:
    assert solved(SOFT | CONTROL, OPTIMUM, SEEDS) <= 1
