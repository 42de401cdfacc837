"""Teams: two agents find their ways, and two learn to tell each other what only one can see.

The bar of the second is the most there is, in every greedy episode. Without a word an agent is
right half of the time whatever it learns, and the mean of 60 episodes deviates from that by 0.09:
three quarters of the optimum is luck less than once in a billion times. Of the first, four seeds
reached 0.87 to 0.98.
"""

from typing import Any

import numpy as np
import pytest

from short_trainings import BASE, CONTROL, Trained, solved, train
from telling_env import STEPS, Telling

pytestmark = pytest.mark.learning

SMALL: dict[str, Any] = BASE | {
    "algo.name": "team",
    "algo.heads": 2,
    "algo.width": 8,
    "algo.target_tau": 0.02,
    "algo.explorers": 1,
    "net.memory": 32,
    "replay.batch_size": 16,
    "actor.envs": 8,
    "actor.chunk": 64,
}
TELLING = SMALL | {
    "env.id": "telling_env:Telling",
    "env.kwargs": {},
    "run.env_steps": 4_000,
    "actor.epsilon_steps": 2_000,
    "algo.gamma": 0.0,
    "algo.n_step": 1,
    "algo.length": STEPS,
    "algo.burn_in": 0,
    "replay.samples_per_insert": 8.0,
    "replay.learning_starts": 200,
    "learner.lr": 0.003,
}
FINDING = SMALL | {
    "env.id": "rookery.pathfinding.world.team_env:Team",
    "env.kwargs": {"agents": 2, "size": 4, "density": 0.0, "radius": 1, "steps": 12},
    "run.env_steps": 10_000,
    "actor.epsilon_steps": 4_000,
    "algo.gamma": 0.95,
    "algo.n_step": 2,
    "algo.length": 4,
    "algo.burn_in": 2,
    "algo.rounds": 1,
    "algo.target_tau": 0.05,
    "replay.capacity": 10_000,
    "replay.samples_per_insert": 6.0,
    "replay.learning_starts": 500,
    "learner.lr": 0.003,
}

FOUND = 0.6  # of the episodes end with both at home


def arrived(settings: dict[str, Any], seed: int = 0) -> float:
    """Returns the share of episodes in which both got home: without that all rewards are losses."""
    return _share(train(settings, seed, until=lambda trained: _share(trained) > FOUND))


def _share(trained: Trained) -> float:
    return float(np.mean(np.array(trained.returns) > 0))


def test_what_only_a_neighbour_sees_is_learned_by_talking() -> None:
    assert solved(TELLING, float(STEPS), range(2)) == 2


@pytest.mark.parametrize(
    "settings", [TELLING | {"algo.talk": "none"}, TELLING | CONTROL], ids=["no word", "no learning"]
)
def test_without_a_word_or_without_learning_it_is_a_guess(settings: dict[str, Any]) -> None:
    assert np.mean(train(settings).returns) < 0.75 * STEPS


def test_two_agents_find_their_ways() -> None:
    assert arrived(FINDING) > FOUND


def test_without_learning_they_do_not() -> None:
    assert arrived(FINDING | CONTROL) < 0.3


def test_the_toy_pays_for_what_the_other_one_sees() -> None:
    env = Telling()
    for _ in range(20):
        obs, _ = env.reset()
        signs = obs["view"][:, 1, 1] // 2

        assert env.step(signs[::-1])[1] == 1.0
