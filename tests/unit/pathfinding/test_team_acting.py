"""A team acts the same wherever it is asked: exported, and by central inference."""

import numpy as np
import pytest

from central_inference import (
    answers_do_not_depend_on_others,
    central_is_as_greedy_as_local,
    service,
)
from greedy_choices import ROWS, agrees
from rookery.algorithms import build_algorithm
from rookery.config.load import load
from rookery.envs.spaces import spec_of
from rookery.pathfinding.settings import Talk
from rookery.pathfinding.world.curriculum import CurriculumTask
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.team_env import Team, action_space, observation_space
from rookery.types import Obs

TASK = CurriculumTask(agents=3, size=6)
CENTRAL = (
    {"algo.name": "team", "algo.temperature": 0.5},
    action_space(TASK),
    observation_space(TASK, WorldRules(radius=1)),
    {"view": 64, "place": TASK.size},
)


def seen(rng: np.random.Generator) -> Obs:
    return {
        "view": rng.integers(0, 64, (ROWS, 3, 9, 9), np.uint8),
        "place": rng.integers(0, 10, (ROWS, 3, 2), np.int16),
        "reward": np.zeros((ROWS, 3), dtype=np.float32),
    }


@pytest.mark.parametrize("talk", list(Talk))
def test_a_team_is_as_greedy_in_torch_as_when_it_acts(talk):
    config = load(changes={"algo.name": "team", "algo.talk": str(talk), "net.memory": 6})
    world = Team(agents=3, size=10)
    spec = spec_of("here", world.observation_space, world.action_space)

    agrees(build_algorithm(config, spec), seen)


def test_an_answer_does_not_depend_on_who_else_is_asking():
    with service(*CENTRAL) as made:
        answers_do_not_depend_on_others(made)


def test_central_and_local_are_equally_greedy_with_the_same_weights():
    with service(*CENTRAL) as made:
        central_is_as_greedy_as_local(made)
