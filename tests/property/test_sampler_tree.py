"""For all priorities: the tree is the sum of its leaves, a draw is a cumulative search, and rows
without a priority are never drawn."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rookery.replay.sampler import CEILING, FAN, SWEEP, Prioritized
from rookery.types import Array
from small_replays import Noise, prioritized, rank

CAPACITIES = st.one_of(
    st.integers(1, 20), st.sampled_from([63, 64, 65, 512, 513, SWEEP, SWEEP + 1, SWEEP * FAN + 3])
)
SIZES = st.one_of(
    st.floats(0, CEILING, width=32),
    st.sampled_from([1e-6, 1.0, 1e-30, 1e30, 0.1, 1 / 3, CEILING / 2]),
)
ALMOST_ONE = float(np.nextafter(1.0, 0.0))


@st.composite
def operations(draw: Any) -> tuple[Prioritized, list[tuple[str, Array, Array]]]:
    """A sampler, and what happens to it: rows with numbers that may be stale, and TD errors."""
    capacity = draw(CAPACITIES)
    sampler = prioritized(capacity, committed=draw(st.integers(1, 3 * capacity)))
    count = st.integers(1, min(capacity, 12))
    rows = st.integers(0, sampler._ring.committed - 1)
    happened = []
    for _ in range(draw(st.integers(1, 8))):
        what = draw(st.sampled_from(["admit", "update_priorities", "clear"]))
        size = draw(count)
        some = draw(st.lists(rows, min_size=size, max_size=size))
        errors = draw(st.lists(SIZES, min_size=size, max_size=size))
        happened.append((what, np.array(some), np.array(errors)))
    return sampler, happened


def apply(sampler: Prioritized, what: str, rows: Array, errors: Array) -> None:
    if what == "admit":
        sampler.admit(rows, errors)
    elif what == "update_priorities":
        sampler.update_priorities(rows, errors)
    else:
        sampler.clear(int(rows[0]), rows.size)


def by_definition(leaves: Array) -> float:
    """Returns the total, children summed in order, eight at a time."""
    level = leaves
    while level.size > 1:
        padded = np.zeros(-(-level.size // FAN) * FAN)
        padded[: level.size] = level
        level = np.array([sum(node[1:], node[0]) for node in padded.reshape(-1, FAN)])
    return float(level[0])


@given(operations(), st.sampled_from([0.0, 0.6, 1.0]))
def test_the_root_is_the_sum_of_the_leaves_and_a_rebuilt_tree_is_the_live_one(
    case: tuple[Prioritized, list[tuple[str, Array, Array]]], alpha: float
) -> None:
    sampler, happened = case
    sampler._alpha = alpha
    for what, rows, errors in happened:
        apply(sampler, what, rows, errors)
    rebuilt = prioritized(
        sampler._ring.capacity, committed=sampler._ring.committed, alpha=sampler._alpha
    )

    rebuilt.restore(sampler.state())

    assert sampler.spread == by_definition(sampler.leaves)
    assert np.isfinite(sampler.leaves).all()
    assert (sampler.leaves >= 0).all()
    assert rebuilt._tree.tobytes() == sampler._tree.tobytes()  # bit for bit


LEAVES = st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any)


@given(LEAVES, st.sampled_from([1, 3, 17, 300, 1000]), st.sampled_from([1, 2, 4, 16]), st.data())
def test_a_draw_is_a_cumulative_search(
    leaves: list[int], spread: int, batch: int, data: st.DataObject
) -> None:
    """Priorities are small integers and noise is a sixteenth: every sum is exact, and many masses
    lie exactly between two rows. `spread` puts empty leaves in between, over more levels."""
    capacity = len(leaves) * spread
    sampler = prioritized(capacity)
    rank(sampler, {k * spread: float(p) for k, p in enumerate(leaves) if p})
    sixteenths = data.draw(st.lists(st.integers(0, 15), min_size=batch, max_size=batch))
    noise = np.array(sixteenths) / 16

    drawn = sampler.sample(batch, 1.0, Noise(noise)).rows

    mass = (np.arange(batch) + noise) * sum(leaves) / batch
    expected = np.searchsorted(np.cumsum(leaves), mass, side="right") * spread
    assert drawn.tolist() == expected.tolist()


@given(
    st.dictionaries(st.integers(0, 5000), SIZES.filter(lambda p: p > 0), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 5e-324, 0.5, ALMOST_ONE]), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.5, 1.0]),
)
@example({0: 1.0, 5000: 1e-30}, [ALMOST_ONE], 1.0)
@example({7: CEILING, 8: 1e-38, 4999: 1.0}, [0.0, ALMOST_ONE, 0.0, ALMOST_ONE], 1.0)
def test_a_row_without_a_priority_is_never_drawn(
    priorities: dict[int, float], noise: list[float], alpha: float
) -> None:
    sampler = prioritized(5001, alpha=alpha)
    rank(sampler, priorities)

    rows, weight = sampler.sample(len(noise), 1.0, Noise(noise))

    assert set(rows.tolist()) <= set(priorities)
    assert np.isfinite(weight).all()
    assert weight.max() == 1.0


@pytest.mark.parametrize("capacity", [7, 100, 3000, SWEEP * FAN * 2])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.sampled_from([0.0, 0.6, 1.0]))
def test_each_batch_holds_every_row_as_often_as_its_share_says(
    capacity: int, seed: int, alpha: float
) -> None:
    """One draw from each of B strata: a row with share s fills s * B of them, of which the first
    and the last only in part. So its count is less than 2 away, always: no false alarms."""
    rng = np.random.default_rng(seed)
    sampler = prioritized(capacity, alpha=alpha)
    rows = np.flatnonzero(rng.random(capacity) < 0.7) if capacity > 7 else np.arange(capacity)
    priorities = rng.exponential(size=rows.size) + 1e-3
    rank(sampler, dict(zip(rows.tolist(), priorities, strict=True)))

    drawn = np.bincount(sampler.sample(4096, 1.0, rng).rows, minlength=capacity)

    share = np.zeros(capacity)
    share[rows] = priorities**alpha
    assert abs(drawn - 4096 * share / share.sum()).max() < 2 + 1e-6


def test_over_many_batches_frequencies_are_shares() -> None:
    """A row's count in a batch varies by at most the two ends of its stretch: variance at most a
    half. Over 4,000 batches the mean has a standard deviation below 0.0112; six of them would be
    exceeded once in 10^7 (10 rows, two sides), and the seed is fixed."""
    rng = np.random.default_rng(1)
    sampler = prioritized(10, alpha=0.6)
    priorities = rng.exponential(size=10) + 0.05
    rank(sampler, dict(enumerate(priorities.tolist())))
    batches, batch = 4000, 32

    drawn = sum(
        np.bincount(sampler.sample(batch, 1.0, rng).rows, minlength=10) for _ in range(batches)
    )

    share = priorities**0.6
    assert abs(drawn / batches - batch * share / share.sum()).max() < 6 * 0.0112


def test_a_tree_of_a_million_rows_stays_its_own_sum() -> None:
    capacity = 2**20
    rng = np.random.default_rng(2)
    sampler = prioritized(capacity)
    sampler.admit(np.arange(capacity))
    for _ in range(50):
        drawn = sampler.sample(256, 0.4, rng)
        sampler.update_priorities(drawn.rows, rng.normal(size=256))
    rebuilt = prioritized(capacity)
    rebuilt.restore(sampler.state())

    assert rebuilt._tree.tobytes() == sampler._tree.tobytes()
    again = rebuilt.sample(256, 0.4, np.random.default_rng(3))
    assert np.array_equal(again.rows, sampler.sample(256, 0.4, np.random.default_rng(3)).rows)
