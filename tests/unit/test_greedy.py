"""`greedy`, which is exported, chooses as `act` does without noise: for every algorithm."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rookery.algos import build_algorithm
from rookery.algos.interface import Algorithm, decided
from rookery.config.algorithms import ALGORITHMS, Talk
from rookery.config.load import load
from rookery.envs.pathfinding.team import Team as World
from rookery.envs.spaces import spec_of
from rookery.errors import ConfigError
from rookery.nets.ask import tensors
from rookery.types import ActionSpec, Obs

ROWS = 50
SEEN = spaces.Dict(
    {"a": spaces.Box(-1.0, 1.0, (3,), np.float32), "b": spaces.Box(0, 255, (6, 6, 3), np.uint8)}
)
CHOICE, MOTION = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2, 2), np.float32)
CHOICES = spaces.MultiDiscrete([2, 3, 4])
CONTINUOUS = ("sac", "td3", "ddpg", "tqc", "ppo", "a2c", "impala")
ACTIONS = [(name, CHOICE) for name in ALGORITHMS if name not in ("td3", "ddpg", "tqc", "team")]
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


def seen_by_a_team(rng: np.random.Generator) -> Obs:
    return {
        "view": rng.integers(0, 64, (ROWS, 3, 9, 9), np.uint8),
        "place": rng.integers(0, 10, (ROWS, 3, 2), np.int16),
        "reward": np.zeros((ROWS, 3), dtype=np.float32),
    }


def agrees(
    algorithm: Algorithm, space: Any, look: Callable[[np.random.Generator], Obs] = seen
) -> None:
    rng = np.random.default_rng(0)
    obs = look(rng)
    memory = None
    if algorithm.memory:
        memory = rng.normal(size=(ROWS, algorithm.memory)).astype(np.float32)
    algorithm.act(obs, rng, memory=memory)  # whatever noise there is stays behind

    wanted = algorithm.act(obs, rng, noise=False, memory=memory)
    algorithm.act(obs, rng, memory=memory)
    given = None if memory is None else torch.from_numpy(memory)
    with torch.inference_mode():
        found, after = algorithm.greedy(tensors(obs, torch.device("cpu")), given)

    assert found.shape == (ROWS, *algorithm.spec.action.shape)
    assert str(found.dtype).removeprefix("torch.") == algorithm.spec.action.dtype
    if isinstance(space, spaces.Box):
        np.testing.assert_allclose(found, wanted.action, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, wanted.action)
    if wanted.memory is not None:
        assert after is not None
        np.testing.assert_allclose(after, wanted.memory, atol=1e-6)


@pytest.mark.parametrize(("name", "space"), ACTIONS, ids=lambda given: str(given))
def test_every_algorithm_is_as_greedy_in_torch_as_when_it_acts(name, space):
    config = load(changes={"algo.name": name, "net.hidden": [8], "net.memory": 6})

    agrees(build_algorithm(config, spec_of("here", SEEN, space)), space)


@pytest.mark.parametrize("talk", list(Talk))
def test_so_is_a_team(talk):
    config = load(changes={"algo.name": "team", "algo.talk": str(talk), "net.memory": 6})
    world = World(agents=3, size=10)
    spec = spec_of("here", world.observation_space, world.action_space)

    agrees(build_algorithm(config, spec), world.action_space, seen_by_a_team)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(map(str, parts.values())))
def test_so_is_every_kind_of_dqn(parts):
    config = load(changes={"algo.name": "dqn", "net.hidden": [8], **parts})

    agrees(build_algorithm(config, spec_of("here", SEEN, CHOICE)), CHOICE)


def test_a_policy_and_value_in_one_network_are_told_apart():
    config = load(changes={"algo.name": "ppo", "net.hidden": [8], "algo.shared_net": True})

    agrees(build_algorithm(config, spec_of("here", SEEN, CHOICE)), CHOICE)


def test_several_choices_are_decided_one_by_one():
    scores = torch.tensor([[0.0, 1.0, 5.0, 0.0, 6.0], [1.0, 0.0, 0.0, 9.0, 0.0]])

    assert decided(scores, ActionSpec(shape=(2,), sizes=(2, 3))).tolist() == [[1, 2], [0, 1]]


def test_an_algorithm_without_scores_says_what_to_do():
    with pytest.raises(ConfigError, match=r"Algorithm has no scores.*export it as safetensors"):
        Algorithm.greedy(Algorithm.__new__(Algorithm), torch.zeros(1))
