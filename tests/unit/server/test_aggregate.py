"""Many updates become one: by hand, and with a liar among them."""

import numpy as np
import pytest

from aggregated import aggregate
from rookery.server.aggregate import (
    ROBUST,
    Aggregation,
    Liars,
    RunningSum,
    Votes,
    gather,
    least,
    trimmed,
)
from rookery.types import Floats

EQUAL = np.ones(5)
UPDATES = np.array([[1, 10], [2, 20], [3, 30], [4, 40], [100, -900]], np.float32)  # [5, 2]


def of(method: Aggregation, updates: Floats = UPDATES, **liars: float) -> list[float]:
    return aggregate(method, updates, np.ones(len(updates)), Liars(**liars)).tolist()


def test_a_running_sum_is_for_all_rules_but_those_that_compare():
    kinds = {method: type(gather(method, Liars())) for method in Aggregation}

    assert {method for method, kind in kinds.items() if kind is Votes} == ROBUST
    assert set(kinds.values()) == {Votes, RunningSum}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Aggregation.AVERAGE, [22, -160]),
        (Aggregation.SUM, [110, -800]),
        (Aggregation.WEIGHTED, [22, -160]),
        (Aggregation.FEDERATED, [22, -160]),
        (Aggregation.MEDIAN, [3, 20]),
        (Aggregation.TRIMMED_MEAN, [3, 20]),  # of (2, 3, 4) and of (10, 20, 30)
        (Aggregation.KRUM, [2, 20]),  # f = 1: of 2 and 3, whose two nearest are as near, the first
    ],
)
def test_an_aggregate_is_the_one_computed_by_hand(method, expected):
    assert of(method) == expected


def test_weights_are_shares():
    found = aggregate(Aggregation.WEIGHTED, UPDATES[:2], np.array([3.0, 1.0]))

    assert found.tolist() == [1.25, 12.5]


def test_where_all_weights_are_zero_nobody_has_a_say():
    assert aggregate(Aggregation.WEIGHTED, UPDATES, np.zeros(5)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", Aggregation)
def test_one_update_is_its_own_aggregate_bit_for_bit(method):
    update = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)

    found = aggregate(method, update, np.array([0.3]))

    assert found.dtype == np.float32
    assert np.array_equal(found, update[0])


@pytest.mark.parametrize("method", [m for m in Aggregation if m is not Aggregation.SUM])
def test_the_largest_floats_do_not_overflow(method):
    updates = np.full((4, 3), np.finfo(np.float32).max)

    assert np.array_equal(aggregate(method, updates, np.ones(4)), updates[0])


def test_a_sum_may_overflow_without_a_warning():
    assert of(Aggregation.SUM, np.full((4, 1), 3e38, np.float32)) == [np.inf]


@pytest.mark.parametrize(
    ("count", "trim", "byzantine", "cut"),
    [
        (5, 0.1, 0, 1),
        (30, 0.1, 0, 3),
        (10, 0.0, 0, 0),
        (10, 0.1, 3, 3),
        (2, 0.4, 0, 0),
        (1, 0.4, 9, 0),
    ],
)
def test_so_many_are_cut_off_at_each_end(count, trim, byzantine, cut):
    assert trimmed(count, Liars(trim, byzantine)) == cut


@pytest.mark.parametrize(
    ("method", "byzantine", "expected"),
    [
        (Aggregation.AVERAGE, 5, 1),
        (Aggregation.MEDIAN, 0, 3),
        (Aggregation.TRIMMED_MEAN, 2, 5),
        (Aggregation.KRUM, 0, 3),
        (Aggregation.KRUM, 2, 7),
    ],
)
def test_a_rule_needs_so_many_workers(method, byzantine, expected):
    assert least(method, byzantine) == expected


def descended(method: Aggregation, liar: bool) -> float:
    """Descends on |x|^2 / 2 with five workers, noisy and perhaps one liar; returns |x|."""
    rng = np.random.default_rng(1)
    x = np.full(8, 10.0)
    for _ in range(60):
        if np.abs(x).max() > 1e9:  # nothing will bring it back
            break
        grads = x + rng.normal(0, 0.1, (5, 8))
        if liar:
            grads[4] *= -1000.0
        x = x - 0.1 * aggregate(method, grads, EQUAL)
    return float(np.linalg.norm(x))


@pytest.mark.parametrize("method", sorted(ROBUST))
def test_a_liar_does_not_stop_robust_rules_from_learning(method):
    assert descended(method, liar=True) < 0.5


@pytest.mark.parametrize(
    ("method", "honest", "liars", "byzantine", "holds"),
    [
        (Aggregation.MEDIAN, 3, 2, 0, True),
        (Aggregation.MEDIAN, 2, 2, 0, False),  # half of them
        (Aggregation.MEDIAN, 2, 3, 0, False),
        (Aggregation.TRIMMED_MEAN, 4, 1, 0, True),  # a tenth of 5 is 1
        (Aggregation.TRIMMED_MEAN, 3, 2, 0, False),
        (Aggregation.TRIMMED_MEAN, 3, 2, 2, True),
        (Aggregation.TRIMMED_MEAN, 9, 2, 0, True),  # and of 11 it is 2
        (Aggregation.TRIMMED_MEAN, 8, 3, 0, False),
        (Aggregation.KRUM, 4, 1, 1, True),  # 2f + 3
        (Aggregation.KRUM, 5, 2, 2, True),
        (Aggregation.KRUM, 5, 2, 0, True),  # 0: as many as 7 can bear
        (Aggregation.KRUM, 3, 4, 2, False),
    ],
)
def test_a_robust_rule_holds_up_to_its_bound_and_breaks_beyond(
    method, honest, liars, byzantine, holds
):
    rng = np.random.default_rng(2)
    updates = np.full((honest + liars, 3), 1000.0)  # liars agree with each other
    updates[:honest] = rng.normal(1.0, 0.1, (honest, 3))

    found = np.array(of(method, updates, byzantine=byzantine))

    assert (np.abs(found - 1.0) < 0.5).all() == holds


@pytest.mark.parametrize("method", sorted(set(Aggregation) - ROBUST))
def test_a_liar_breaks_the_other_rules(method):
    assert descended(method, liar=True) > 1e6
    assert descended(method, liar=False) < 0.5
