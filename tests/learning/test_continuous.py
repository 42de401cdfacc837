"""Continuous actions: a point goes to its goal, full speed first and then onto it.

The bar is the regret: what the best policy earns more, which is known for each goal. Episodes are
played greedily for all 81 goals. Without learning the mean regret is above 40.
"""

from typing import Any

import numpy as np
import pytest

from rookery.algorithms import build_algorithm
from rookery.envs.make import make
from rookery.envs.toy.basic import Reach
from rookery.networks.named_arrays import load_arrays
from short_trainings import BASE, CONTROL, Trained, train

pytestmark = pytest.mark.learning

GOALS = np.arange(-40, 41) / 8
BAR = 6.0  # mean regret; 20 steps at 0.3 from the goal, which may be 5 away

REACH = BASE | {
    "env.id": "rookery.envs.toy.basic:Reach",
    "env.kwargs": {},
    "env.reward_scale": 0.2,
    "run.env_steps": 2_000,
    "algo.gamma": 0.8,
    "algo.n_step": 1,
    "algo.target_tau": 0.02,
    "net.hidden": [64, 64],
    "replay.learning_starts": 200,
    "replay.batch_size": 64,
    "replay.samples_per_insert": 64.0,
    "actor.envs": 4,
    "actor.chunk": 4,
    "actor.pull_period": 4,
    "learner.lr": 0.003,
    "learner.publish_period": 1,
}

ALGORITHMS: dict[str, dict[str, Any]] = {
    "sac": {"algo.initial_temperature": 0.1},
    "tqc": {"algo.initial_temperature": 0.1, "algo.quantiles": 10, "algo.dropped_quantiles": 1},
    "td3": {"algo.noise": 0.3},
    "ddpg": {"algo.noise": 0.3},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "one step": {},
    "three steps, ranked by actors": {
        "algo.n_step": 3,
        "replay.sampling": "prioritized",
        "replay.initial_priority": "actor",
    },
}


def regret(trained: Trained) -> float:
    """Returns the mean over all goals of what was missed."""
    envs = make(trained.config.env, 1)
    envs.close()
    algorithm = build_algorithm(trained.config, envs.spec)
    load_arrays(algorithm.acting, trained.weights)
    tasks, missed = [Reach() for _ in GOALS], 0.0
    for task, goal in zip(tasks, GOALS.tolist(), strict=True):
        task.reset(seed=0)
        task.goal = goal
        missed += task.optimal_return
    rng = np.random.default_rng(0)
    for _ in range(Reach.LIMIT):
        obs = np.array([[task.position, task.goal] for task in tasks], dtype=np.float32)
        action = algorithm.act(obs, rng, noise=False).action
        steps = zip(tasks, action * Reach.SPEED, strict=True)
        missed -= sum(task.step(velocity)[1] for task, velocity in steps)
    return missed / len(GOALS)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_point_is_brought_to_its_goal(name: str, variant: dict[str, Any]) -> None:
    settings = REACH | ALGORITHMS[name] | {"algo.name": name} | variant
    trained = train(settings, seed=1, until=lambda trained: regret(trained) < BAR)

    assert regret(trained) < BAR


@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_learning_it_is_not(name: str) -> None:
    trained = train(REACH | ALGORITHMS[name] | {"algo.name": name} | CONTROL, seed=1)

    assert regret(trained) > 5 * BAR
