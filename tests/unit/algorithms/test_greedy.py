"""`greedy`, which is exported, chooses as `act` does without noise: every algorithm of the core."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from greedy_choices import ROWS, agrees
from rookery.algorithms import build_algorithm
from rookery.algorithms.algorithm import Algorithm, best_actions
from rookery.config.algorithms import ALGORITHMS
from rookery.config.load import load
from rookery.envs.spaces import spec_of
from rookery.errors import ConfigError
from rookery.types import ActionSpec, Obs

SEEN = spaces.Dict(
    {"a": spaces.Box(-1.0, 1.0, (3,), np.float32), "b": spaces.Box(0, 255, (6, 6, 3), np.uint8)}
)
CHOICE, MOTION = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2, 2), np.float32)
CHOICES = spaces.MultiDiscrete([2, 3, 4])
CONTINUOUS = ("sac", "td3", "ddpg", "tqc", "ppo", "a2c", "impala")
ACTIONS = [(name, CHOICE) for name in ALGORITHMS if name not in ("td3", "ddpg", "tqc")]
ACTIONS += [(name, MOTION) for name in CONTINUOUS]
ACTIONS += [(name, CHOICES) for name in ("ppo", "a2c", "impala")]
PARTS: list[dict[str, Any]] = [
    {"algo.values": values, "algo.dueling": dueling, "algo.noisy": noisy}
    for values in ("mean", "categorical", "quantiles", "implicit")
    for dueling, noisy in ((False, False), (True, True))
]


def seen(rng: np.random.Generator) -> Obs:
    return {
        "a": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "b": rng.integers(0, 256, (ROWS, 3, 6, 6), np.uint8),
    }


@pytest.mark.parametrize(("name", "space"), ACTIONS, ids=lambda given: str(given))
def test_every_algorithm_of_the_core_is_as_greedy_in_torch_as_when_it_acts(name, space):
    config = load(changes={"algo.name": name, "net.hidden": [8], "net.memory": 6})

    agrees(build_algorithm(config, spec_of("here", SEEN, space)), seen)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(map(str, parts.values())))
def test_so_is_every_kind_of_dqn(parts):
    config = load(changes={"algo.name": "dqn", "net.hidden": [8], **parts})

    agrees(build_algorithm(config, spec_of("here", SEEN, CHOICE)), seen)


def test_a_policy_and_value_in_one_network_are_told_apart():
    config = load(changes={"algo.name": "ppo", "net.hidden": [8], "algo.shared_net": True})

    agrees(build_algorithm(config, spec_of("here", SEEN, CHOICE)), seen)


def test_several_choices_are_decided_one_by_one():
    scores = torch.tensor([[0.0, 1.0, 5.0, 0.0, 6.0], [1.0, 0.0, 0.0, 9.0, 0.0]])

    assert best_actions(scores, ActionSpec(shape=(2,), sizes=(2, 3))).tolist() == [[1, 2], [0, 1]]


def test_an_algorithm_without_scores_says_what_to_do():
    with pytest.raises(ConfigError, match=r"Algorithm has no scores.*export it as safetensors"):
        Algorithm.greedy(Algorithm.__new__(Algorithm), torch.zeros(1))
