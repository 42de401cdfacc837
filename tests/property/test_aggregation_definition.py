"""Aggregation against its definitions, written slowly and in plain Python."""

import math
from fractions import Fraction
from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from aggregated import aggregate
from rookery.server.aggregate import Aggregation, Liars
from rookery.types import Floats

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 5))
FLOATS = st.floats(-1e6, 1e6, width=32)
UPDATES = npst.arrays(np.float32, SIZES, elements=FLOATS)
TOLERANCE = 1e-6


def columns(updates: Floats) -> list[list[Fraction]]:
    return [[Fraction(float(v)) for v in column] for column in updates.T]


def close(found: Floats, expected: list[Fraction], updates: Floats) -> bool:
    size = max(1.0, float(np.abs(updates).max()) * len(updates))
    return all(
        abs(float(f) - float(e)) <= TOLERANCE * size for f, e in zip(found, expected, strict=True)
    )


def ones(updates: Floats) -> Floats:
    return np.ones(len(updates))


@given(UPDATES)
def test_average_and_sum(updates):
    totals = [sum(column) for column in columns(updates)]

    found = aggregate(Aggregation.SUM, updates, ones(updates))
    mean = aggregate(Aggregation.AVERAGE, updates, ones(updates))

    assert close(found, totals, updates)
    assert close(mean, [total / len(updates) for total in totals], updates)


@given(UPDATES, st.data())
def test_weighted_is_the_mean_of_copies(updates, data):
    count = len(updates)
    weights = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count).filter(any))
    copies = np.repeat(updates, weights, axis=0)
    expected = [sum(column) / len(copies) for column in columns(copies)]

    for method in (Aggregation.WEIGHTED, Aggregation.FEDERATED):
        found = aggregate(method, updates, np.array(weights, float))
        assert close(found, expected, updates)


@given(UPDATES)
def test_median_is_that_of_each_coordinate(updates):
    found = aggregate(Aggregation.MEDIAN, updates, ones(updates))

    assert close(found, [median(column) for column in columns(updates)], updates)


@given(UPDATES, st.integers(0, 49))
def test_trimmed_mean_leaves_out_both_ends(updates, percent):
    count = len(updates)
    cut = min(math.ceil(Fraction(percent, 100) * count), (count - 1) // 2)
    kept = [sorted(column)[cut : count - cut] for column in columns(updates)]

    liars = Liars(trim=percent / 100)
    found = aggregate(Aggregation.TRIMMED_MEAN, updates, ones(updates), liars)

    assert close(found, [sum(column) / len(column) for column in kept], updates)


@given(npst.arrays(np.float32, SIZES, elements=st.integers(-50, 50)), st.integers(0, 2))
def test_krum_takes_one_whose_nearest_are_nearest(updates, byzantine):
    count = len(updates)
    liars = byzantine or max(0, (count - 3) // 2)

    def score(i: int) -> float:
        apart = sorted(sum((updates[i] - updates[j]) ** 2) for j in range(count) if j != i)
        return float(sum(apart[: max(1, count - liars - 2)]))

    best = min(range(count), key=score)  # the first of equals
    found = aggregate(Aggregation.KRUM, updates, ones(updates), Liars(byzantine=byzantine))

    assert np.array_equal(found, updates[best])


@given(UPDATES, st.sampled_from(Aggregation), st.randoms(use_true_random=False))
def test_the_order_of_workers_does_not_matter(updates, method, random):
    order = list(range(len(updates)))
    random.shuffle(order)
    found = aggregate(method, updates, ones(updates))
    again = aggregate(method, updates[order], ones(updates))

    if method is Aggregation.KRUM:  # equals: one of them
        assert any(np.array_equal(again, update) for update in updates)
    else:
        assert close(again, [Fraction(float(v)) for v in found], updates)
