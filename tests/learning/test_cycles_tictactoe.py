"""Cycles of games learn: train_dqn beats random players at tic-tac-toe, from either seat.

The bar is a share of the points in 200 greedy games. Of 26 seeds the worst has 0.83 after training;
networks that never learned have 0.29 to 0.70, as a random player has 0.5.
"""

from typing import Any

import numpy as np
import pytest

import rookery

pytestmark = pytest.mark.learning

BAR = 0.78
ARGUMENTS: dict[str, Any] = {
    "env": "tictactoe",
    "n_episodes": 1_500,
    "num_workers": 1,
    "episodes_per_batch": 16,
    "learning_steps_per_batch": 24,
    "hidden": (128,),
    "target_period": 50,
    "epsilon_decay": 0.96,
    "engine": "inline",
    "device": "cpu",
    "settings": {"actor.envs": 16, "selfplay.snapshot_period": 200},
}


def points(seed: int, **changes: Any) -> float:
    """Returns the share of the points that a trained agent wins from random players."""
    agent = rookery.train_dqn(**ARGUMENTS | changes, seed=seed)
    games = rookery.rollout_worker(agent.policy(), episodes=200, seed=100)
    return float(np.mean([(game.score > 0) + 0.5 * (game.score == 0) for game in games]))


def test_cycles_of_games_beat_random_players_for_two_seeds() -> None:
    assert min(points(seed) for seed in range(2)) > BAR


def test_without_learning_no_opponent_is_beaten() -> None:
    """Their weights do not change, so it need not take long."""
    assert max(points(seed, lr=0.0, n_episodes=64) for seed in range(2)) < BAR
