"""Two actors teach a learner as well as one does, in lockstep and out of it.

Where actors have processes of their own a run takes seconds to start, so that one seed of each has
to do; ROOKERY_SEEDS=5 tries five. When the settings were chosen, of 20 seeds of each environment
20 reached the optimum: in sync and async with actors at home, and in async with processes.
"""

import os
from typing import Any

import pytest

from rookery.envs.toy.basic import Corridor, Echo, Loop
from short_trainings import CONTROL, CORRIDOR, ECHO, LOOP, solved

pytestmark = pytest.mark.learning

TASKS: dict[str, tuple[dict[str, Any], float]] = {
    "corridor": (CORRIDOR | {"algo.n_step": 3}, Corridor().optimal_return),
    "echo": (ECHO, Echo().optimal_return),
    "loop": (LOOP, Loop().optimal_return),
}
TWO = {"actor.num": 2}
AT_HOME = TWO | {"run.engine": "inline"}
SEEDS = range(1, 1 + int(os.environ.get("ROOKERY_SEEDS", "1")))  # 0 solves the corridor by luck


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("task", TASKS)
def test_two_actors_at_home_reach_the_optimum_for_five_seeds(task: str, mode: str) -> None:
    settings, optimum = TASKS[task]

    assert solved(settings | AT_HOME | {"run.mode": mode}, optimum, range(5)) == 5


@pytest.mark.parametrize("task", TASKS)
def test_two_asynchronous_actors_reach_it_too(task: str) -> None:
    settings, optimum = TASKS[task]

    reached = solved(settings | TWO | {"run.mode": "async"}, optimum, SEEDS)

    assert reached >= 0.8 * len(SEEDS)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("task", TASKS)
def test_without_learning_they_do_not(task: str, mode: str) -> None:
    """Seeds 1 to 5: by luck a corridor is solved once in four, an echo or a loop hardly ever."""
    settings, optimum = TASKS[task]

    lucky = solved(settings | AT_HOME | CONTROL | {"run.mode": mode}, optimum, range(1, 6))

    assert lucky <= 1
