"""10,000 episodes under random masks: no policy takes a forbidden action."""

from typing import Any

import pytest

from masked_envs import NEXT, SAME, Fences
from rookery.actors.actor import Actor
from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.config.schema import ActorConfig, EnvConfig
from rookery.envs.vector import Envs
from rookery.evaluation.evaluator import Evaluator

EACH, NUM = 1_000, 32
EXPLORING = [("dqn", 0.5), ("dqn", 0.0), ("dqn", 1.0), ("r2d2", 0.5), ("sac", 0.2)]
PLAYERS = [*EXPLORING, ("ppo", 0.0), ("impala", 0.0)]
JUDGED = ["dqn", "ppo", "r2d2"]


def built(name: str, envs: Envs) -> Any:
    changes = {"algo.name": name, "net.hidden": [16], "net.memory": 8}
    return build_algorithm(load(changes=changes), envs.spec)


def fences(seed: int, mode: Any = SAME, num: int = NUM) -> tuple[Fences, Envs]:
    vector = Fences(num, actions=3 + seed % 5, mode=mode, seed=seed)
    return vector, Envs(vector, "fences")


@pytest.mark.parametrize(("name", "epsilon"), PLAYERS)
def test_an_actor_never_does_what_is_forbidden(name: str, epsilon: float) -> None:
    """Half of the episodes in each autoreset mode; the vector raises where it is trespassed."""
    for seed, mode in enumerate((SAME, NEXT)):
        vector, envs = fences(seed, mode)
        plan = ActorConfig(envs=NUM, chunk=NUM * 4)
        actor = Actor(envs, built(name, envs), plan, EnvConfig(), seed=seed, values=True)
        while vector.episodes < EACH / 2:
            actor.collect(NUM * 4, epsilon)
            actor.ring.consume(actor.ring.committed)

        assert vector.forced > vector.taken / 20  # steps with one allowed action are among them


@pytest.mark.parametrize("name", JUDGED)
def test_an_evaluator_never_does_what_is_forbidden(name: str) -> None:
    made: list[Fences] = []

    def environments(num: int) -> Envs:
        vector, envs = fences(3 + len(made), num=num)
        made.append(vector)
        return envs

    _, envs = fences(3)
    evaluator = Evaluator(environments, built(name, envs), episodes=EACH)

    evaluated = evaluator.run(seed=0)

    assert len(evaluated.returns) == EACH
    assert made[0].episodes >= EACH


def test_that_is_ten_thousand_episodes() -> None:
    assert EACH * (len(PLAYERS) + len(JUDGED)) >= 10_000
