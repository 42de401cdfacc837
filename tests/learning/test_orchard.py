"""Pictures of several things at once: what is ripe is caught, and what is rotten is let go.

The scenario as it is packaged, a little shorter. Five of five seeds had a mean of at least 11.5 of
the 12 there are after 25,000 to 35,000 env steps.
"""

from typing import Any

import numpy as np
import pytest

from schooling import CONTROL, train

pytestmark = [pytest.mark.learning, pytest.mark.slow]

ORCHARD: dict[str, Any] = {"run.env_steps": 36_000, "env.check": False, "learner.device": "cpu"}
GOOD = 10.5  # of 12; a basket that stays where it is catches about one


def test_the_orchard_is_harvested() -> None:
    """One of two seeds; none of five failed."""
    means = (np.mean(train(ORCHARD, seed, scenario="orchard").returns) for seed in range(2))

    assert any(mean >= GOOD for mean in means)


def test_without_learning_the_orchard_is_not_harvested() -> None:
    settings = ORCHARD | CONTROL | {"run.env_steps": 4_000}

    assert np.mean(train(settings, seed=0, scenario="orchard").returns) < 4
