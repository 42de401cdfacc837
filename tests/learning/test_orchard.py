"""Pictures of several things at once: what is ripe is caught, and what is rotten is let go.

The scenario as it is packaged, a little shorter. Five of five seeds had a mean of at least 11.5 of
the 12 there are after 25,000 to 35,000 env steps.
"""

from typing import Any

import numpy as np
import pytest

from short_trainings import CONTROL, train

pytestmark = [pytest.mark.learning, pytest.mark.slow]

ORCHARD: dict[str, Any] = {"run.env_steps": 36_000, "env.check": False, "learner.device": "cpu"}
GOOD = 10.5  # of 12; a basket that stays where it is catches about one


def mean_of(settings: dict[str, Any], seed: int) -> float:
    trained = train(
        settings, seed, scenario="orchard", until=lambda done: np.mean(done.returns) >= GOOD
    )
    return float(np.mean(trained.returns))


def test_the_orchard_is_harvested() -> None:
    """One of two seeds; none of five failed."""
    assert any(mean_of(ORCHARD, seed) >= GOOD for seed in range(2))


def test_without_learning_the_orchard_is_not_harvested() -> None:
    assert mean_of(ORCHARD | CONTROL, seed=0) < 4
