"""Goals that random play never reaches: with hindsight they are learned, without they are not.

Fifteen bits have 32,768 goals. The bar is the share of goals that greedy episodes reach in as many
flips as there are bits. When the settings were chosen, 20 of 20 seeds reached at least 0.98 of them
with hindsight, and 10 of 10 none without.
"""

from typing import Any

import numpy as np
import pytest

from rookery.config.load import load
from short_trainings import Trained, train

pytestmark = pytest.mark.learning

BITS: int = load("bitflip").env.kwargs["bits"]
REACHED = 0.95  # of the goals
SHORT: dict[str, Any] = {
    "env.check": False,
    "eval.target": None,
    "run.env_steps": 12_000,
    "replay.capacity": 12_000,
    "learner.device": "cpu",
}


def reached(hindsight: float, seed: int) -> float:
    """Returns the share of greedy episodes that end at their goal."""

    def share(trained: Trained) -> float:
        return float(np.mean([score > -BITS for score in trained.returns]))

    settings = {**SHORT, "replay.hindsight": hindsight}
    return share(train(settings, seed, scenario="bitflip", until=lambda t: share(t) > REACHED))


@pytest.mark.parametrize("seed", range(2))
def test_goals_are_reached_with_hindsight(seed: int) -> None:
    assert reached(0.8, seed) > REACHED


def test_without_hindsight_they_are_not() -> None:
    """The same settings otherwise: the bar is not reached by luck, epsilon or an easy task."""
    assert reached(0.0, seed=0) < 0.3
