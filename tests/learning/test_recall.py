"""Memory: R2D2 recalls a cue it saw long ago, and nothing without a memory can.

The bar is the optimum in every greedy episode. Without memory the expected return is 0 whatever is
learned, and 60 episodes deviate from it by 0.13: half of the optimum is luck once in 10000 times.
"""

from typing import Any

import numpy as np
import pytest

from rookery.envs.toy.recall import Recall
from short_trainings import BASE, CONTROL, solved, train

pytestmark = pytest.mark.learning

DELAY = 4
OPTIMUM = Recall(DELAY).optimal_return
TASK: dict[str, Any] = BASE | {
    "env.id": "rookery.envs.toy.recall:Recall",
    "env.kwargs": {"delay": DELAY},
    "run.env_steps": 4_000,
    "actor.epsilon_steps": 2_000,
    "replay.learning_starts": 200,
    "net.hidden": [32],
    "learner.lr": 0.003,
}
RECALL = TASK | {
    "algo.name": "r2d2",
    "algo.length": DELAY + 2,
    "algo.burn_in": 0,
    "algo.overlap": 0,
    "algo.target_period": 50,
    "net.memory": 16,
    "replay.sampling": "prioritized",
}


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
def test_it_recalls_the_cue(recurrent: str) -> None:
    settings = RECALL | {"net.recurrent": recurrent}
    assert solved(settings, OPTIMUM, range(3)) == 3


@pytest.mark.parametrize("frames", [1, DELAY + 1])
def test_without_memory_it_is_a_coin(frames: int) -> None:
    """Deep Q-learning with the same budget, even with frames that almost reach the cue."""
    returns = train(TASK | {"env.frame_stack": frames}).returns

    assert abs(np.mean(returns)) < OPTIMUM / 2


def test_without_learning_it_is_a_coin() -> None:
    assert abs(np.mean(train(RECALL | CONTROL).returns)) < OPTIMUM / 2
