"""Every part of DQN learns, and the distributional ones learn the distribution."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rookery.envs.toy.basic import Corridor, Echo
from rookery.types import Array, Floats
from short_trainings import BASE, CONTROL, CORRIDOR, ECHO, Trained, reaches, train

pytestmark = pytest.mark.learning

ATOMS = {"algo.atoms": 31, "algo.value_min": -1.0, "algo.value_max": 1.0}
RAINBOW = ATOMS | {
    "algo.values": "categorical",
    "algo.dueling": True,
    "algo.noisy": True,
    "replay.sampling": "prioritized",
}

REACH = {"algo.value_min": -1.0, "algo.value_max": 3.0}  # with gamma 0.5 nothing is worth more

PARTS: dict[str, dict[str, Any]] = {
    "categorical": ATOMS | {"algo.values": "categorical"},
    "quantiles": {"algo.values": "quantiles"},
    "implicit": {"algo.values": "implicit", "algo.quantiles": 8},
    "noisy": {"algo.noisy": True},
    "munchausen": {"algo.munchausen": True, "algo.n_step": 1},
    "munchausen, implicit": {
        "algo.munchausen": True,
        "algo.values": "implicit",
        "algo.quantiles": 8,
    },
    "dueling quantiles, not double": {
        "algo.values": "quantiles",
        "algo.dueling": True,
        "algo.double": False,
    },
    "rainbow": RAINBOW,
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
class TestParts:
    def test_each_finds_the_way_through_a_corridor(self, part: dict[str, Any]) -> None:
        assert reaches(CORRIDOR | part, Corridor().optimal_return, seed=1)

    def test_each_repeats_the_cue(self, part: dict[str, Any]) -> None:
        assert reaches(ECHO | part | REACH, Echo().optimal_return, seed=1)

    def test_none_repeats_it_without_learning(self, part: dict[str, Any]) -> None:
        assert not reaches(ECHO | part | REACH | CONTROL, Echo().optimal_return, seed=1)


class Gamble(gym.Env[Any, Any]):
    """Action 0 ends with 1 for sure; action 1 leads to a place that pays 16 u^2 - 8.

    u is uniform from 0 to 1, so a payment is below x with the probability sqrt((x + 8) / 16).
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.inside = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.inside = False
        return self._look(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        if self.inside:
            return self._look(), 16.0 * self.np_random.random() ** 2 - 8.0, True, False, {}
        self.inside = bool(action)
        return self._look(), 0.0 if self.inside else 1.0, not self.inside, False, {}

    def _look(self) -> Floats:
        return np.array([not self.inside, self.inside], dtype=np.float32)


GAMBLE = BASE | {
    "env.id": "test_dqn_parts:Gamble",
    "env.kwargs": {},
    "run.env_steps": 3_000,
    "actor.epsilon_end": 1.0,  # both ways are taken, always
    "algo.gamma": 0.9,
    "algo.n_step": 1,
    "algo.target_tau": 0.05,
    "algo.quantiles": 16,
    "algo.atoms": 21,
    "learner.lr": 0.002,
    "learner.lr_end": 0.0002,
    "learner.lr_decay": "linear",
}
UNTAUGHT = CONTROL | {"learner.lr_end": 0.0}
PLACES = (-3.6, 0.0, 3.6)  # payments of -4, 0 and 4 one step later
BELOW = {0: (0.0, 0.0, 1.0), 1: tuple(((x / 0.9 + 8.0) / 16.0) ** 0.5 for x in PLACES)}


def below(trained: Trained, action: int) -> list[float]:
    """Returns the learned probabilities that the return is below each of the places."""
    said = trained.q(np.array([[1.0, 0.0]], dtype=np.float32))[0, action]  # [K]
    if trained.config.algo.values == "categorical":  # type: ignore[attr-defined]
        power: Array = np.exp(said - said.max())
        support, mass = np.linspace(-10.0, 10.0, len(said)), power / power.sum()
    else:
        support, mass = said, np.full(len(said), 1 / len(said))
    return [float(mass[support < place].sum()) for place in PLACES]


def miss(trained: Trained) -> float:
    """Returns how far the learned probabilities are from the true ones, at worst."""
    return max(float(np.abs(np.subtract(below(trained, a), BELOW[a])).max()) for a in BELOW)


@pytest.mark.parametrize("values", ["categorical", "quantiles", "implicit"])
def test_the_distribution_of_a_later_return_is_learned(values: str) -> None:
    assert miss(train(GAMBLE | {"algo.values": values}, seed=1)) < 0.15


@pytest.mark.parametrize("values", ["categorical", "quantiles", "implicit"])
def test_no_distribution_is_known_without_learning(values: str) -> None:
    assert miss(train(GAMBLE | {"algo.values": values} | UNTAUGHT, seed=1)) > 0.3


def test_means_are_one_number_of_a_gamble() -> None:
    """The control: what they learn is right, and says nothing of chances."""
    q = train(GAMBLE, seed=1).q(np.array([[1.0, 0.0]], dtype=np.float32))

    assert q.shape == (1, 2)
    assert q[0, 0] == pytest.approx(1.0, abs=0.1)
    assert -3.8 < q[0, 1] < -2.2  # Huber's loss rests between the median -3.6 and the mean -2.4
