"""What is borrowed from whom, where a strategy says so and where somebody else does."""

import numpy as np
import pytest

from rookery.config.schema import Strategy
from rookery.sharing.appetite import MOST, Planned, Told

NAMES = ("own", "a", "b")
SIZES = np.array([100, 50, 0])


def test_whoever_is_told_takes_nothing_from_those_who_are_empty_or_not_named() -> None:
    fare = Told({"b": 3.0, "a": 1.0, "gone": 9.0}, 0.2).weigh(1, NAMES, SIZES)

    assert fare.weights.tolist() == [0.0, 1.0, 0.0]
    assert (fare.newest, fare.share) == (0.2, 1.0)


@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.ADAPTIVE])
def test_a_strategy_keeps_its_share_whoever_is_there(strategy: Strategy) -> None:
    planned = Planned(strategy, 0.3, np.random.default_rng(0))

    assert planned.weigh(1, NAMES, SIZES).share == 0.3
    assert planned.weigh(0, (), np.zeros(0, dtype=np.int64)).share == 0.3
    assert not planned.observe(np.ones(4))


def test_a_share_that_adapts_leaves_something_of_a_batch_for_own_rows() -> None:
    planned = Planned(Strategy.ADAPTIVE, 1.0, np.random.default_rng(0))

    assert planned.weigh(1, NAMES, SIZES).share == MOST
