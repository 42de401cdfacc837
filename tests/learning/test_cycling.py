"""Cycles of episodes learn: train_dqn finds the way through a corridor.

The bar is the exactly known optimum in a greedy episode. A network that was never trained walks
straight to the door in 25% of seeds, so a test asks for several of them.
"""

from typing import Any

import pytest

import rookery
from rookery.envs.toy.basic import Corridor

pytestmark = pytest.mark.learning

OPTIMUM = Corridor().optimal_return
ARGUMENTS: dict[str, Any] = {
    "env": "rookery.envs.toy.basic:Corridor",
    "n_episodes": 90,
    "num_workers": 2,
    "episodes_per_batch": 2,
    "learning_steps_per_batch": 40,
    "batch_size": 32,
    "buffer_size": 10_000,
    "hidden": (32,),
    "lr": 0.003,
    "n_step": 3,
    "target_period": 50,
    "epsilon_decay": 0.93,
    "engine": "inline",
    "device": "cpu",
    "settings": {"env.check": False},
}


def solved(seeds: range, **changes: Any) -> int:
    """Returns how many of the seeds walk straight to the door afterwards."""
    found = 0
    for seed in seeds:
        agent = rookery.train_dqn(**ARGUMENTS | changes, seed=seed)
        (greedy,) = rookery.rollout_worker(agent.policy())
        found += greedy.score == pytest.approx(OPTIMUM)
    return found


@pytest.mark.parametrize("prioritized", [False, True])
def test_cycles_of_episodes_solve_it_for_five_seeds(prioritized: bool) -> None:
    """40 of 40 seeds do, 20 of them prioritised; without learning 11 of 40 do."""
    assert solved(range(5), prioritized=prioritized) == 5


def test_without_learning_it_is_solved_by_luck_at_most() -> None:
    """Their weights do not change, so it need not take long."""
    assert solved(range(5), learning_steps_per_batch=0, n_episodes=8) <= 3
