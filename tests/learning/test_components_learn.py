"""Loops put together from components find the way out of a corridor, whose best return is known.

A network that was never trained walks straight to the door for one seed in four, so several seeds
have to, and a control without learning must not.
"""

from typing import Any

import pytest

from rookery import (
    AsyncMainLoop,
    DistributedAgent,
    DistributedEnvironment,
    MainLoop,
    ParameterServer,
    ReplayBufferPool,
)
from rookery.envs.toy.basic import Corridor

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

OPTIMUM = Corridor().optimal_return
SETTINGS: dict[str, Any] = {"net.hidden": [64], "actor.epsilon_steps": 2_000, "algo.gamma": 0.9}


def solved(
    seeds: range,
    *,
    lr: float = 0.003,
    episodes: int = 60,
    prioritized: bool = False,
    server: dict[str, Any] | None = None,
) -> int:
    """Returns how many of the seeds walk straight to the door after training."""
    found = 0
    for seed in seeds:
        agent = DistributedAgent(
            lr=lr, update_frequency=2, env=Corridor, seed=seed, settings=SETTINGS
        )
        buffer = ReplayBufferPool(2, 5_000, use_prioritized=prioritized, seed=seed)
        own = None if server is None else ParameterServer(agent.get_policy_parameters(), **server)
        with DistributedEnvironment(Corridor, 2, engine="inline", seed=seed) as environment:
            loop = MainLoop(environment, buffer, agent, own, {"warmup": 200})
            loop.run_training(episodes, evaluation_frequency=0)
        found += agent.evaluate_policy(1).reward == pytest.approx(OPTIMUM)
    return found


@pytest.mark.parametrize("prioritized", [False, True])
def test_the_main_loop_solves_it_with_a_server_of_its_own(prioritized):
    assert solved(range(4), prioritized=prioritized) == 4


def test_it_solves_it_with_a_separate_server_that_averages():
    averaging = {"update_frequency": 2, "optimizer": "adam", "lr": 0.003}
    assert solved(range(4), server=averaging) == 4


def test_it_solves_it_with_a_server_as_it_comes():
    """Which takes the agent's optimizer; a plain step of 0.001 for ten gradients solves nothing."""
    assert solved(range(4), server={}) == 4


@pytest.mark.parametrize(("algorithm", "lr"), [("ppo", 0.003), ("a2c", 0.01)])
def test_on_policy_agents_solve_it(algorithm, lr):
    settings = {"net.hidden": [64]}
    agent = DistributedAgent(algorithm, lr=lr, env=Corridor, settings=settings)
    with DistributedEnvironment(Corridor, 4, engine="inline") as environment:
        MainLoop(environment, ReplayBufferPool(1, 5_000), agent).run_training(
            200, evaluation_frequency=0
        )

    assert agent.evaluate_policy(1).reward == pytest.approx(OPTIMUM)


def test_without_learning_it_is_solved_by_luck_at_most():
    """Their weights do not change, so it need not take long."""
    assert solved(range(4), lr=0.0, episodes=12) <= 2


@pytest.mark.slow
def test_asynchronous_workers_solve_it():
    agent = DistributedAgent(
        "a2c", env=Corridor, settings={"net.hidden": [32], "actor.envs": 4, "actor.chunk": 32}
    )
    server = ParameterServer(
        agent.get_policy_parameters(), update_frequency=1, optimizer="adam", lr=0.01
    )
    loop = AsyncMainLoop(
        DistributedEnvironment(Corridor), ReplayBufferPool(1, 100), agent, server, num_workers=2
    )
    loop.run_async_training(total_steps=12_000)

    assert agent.evaluate_policy(1).reward == pytest.approx(OPTIMUM)
