"""What is borrowed from whom, where a strategy says so and where somebody else does."""

import numpy as np
import pytest

from rookery.config.schema import Strategy
from rookery.sharing.strategies import AssignedWeights, strategy_plan

NAMES = ("own", "a", "b")
SIZES = np.array([100, 50, 0])


def test_a_given_plan_takes_nothing_from_empty_or_unnamed_buffers() -> None:
    fare = AssignedWeights({"b": 3.0, "a": 1.0, "gone": 9.0}, 0.2).plan(NAMES, SIZES)

    assert fare.weights.tolist() == [0.0, 1.0, 0.0]
    assert (fare.newest, fare.share) == (0.2, 1.0)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_strategy_keeps_its_share_with_any_members(strategy: Strategy) -> None:
    assert strategy_plan(strategy, 0.3, 1, SIZES).share == 0.3
    assert strategy_plan(strategy, 0.3, 0, np.zeros(0, dtype=np.int64)).share == 0.3
