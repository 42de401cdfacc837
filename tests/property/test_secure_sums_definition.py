"""Secure sums against their definition: the plain sum of those whose updates arrived."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.errors import RefusedError
from rookery.server.masks import Grid
from rookery.server.shamir import join, split
from summing import NEVER, random_updates, summed

STEPS = st.sampled_from([1, 2, 3, 4, NEVER, NEVER, NEVER, NEVER])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEPS, min_size=2, max_size=7),
    st.integers(1, 5),
    st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    st.integers(0, 1000),
)
def test_a_secure_sum_is_the_plain_sum_of_those_who_stayed_or_is_refused(left, size, bound, seed):
    clients, threshold = len(left), len(left) // 2 + 1
    updates = random_updates(clients, size, seed, bound)
    leaves = dict(zip(updates, left, strict=True))
    stay = sum(step == NEVER for step in left)

    if stay < threshold:
        with pytest.raises(RefusedError, check=lambda error: error.code == "quorum"):
            summed(updates, left=leaves, threshold=threshold, bound=bound)
        return
    total = summed(updates, left=leaves, threshold=threshold, bound=bound)

    there = [updates[name].astype(np.float64) for name in updates if leaves[name] > 3]
    assert np.all(np.abs(total - sum(there)) <= len(there) * Grid(bound, clients).step)


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))),
    st.randoms(use_true_random=False),
)
def test_any_threshold_of_shares_give_the_secret_back(secret, of, random):
    threshold, holders = of
    shares = dict(enumerate(split(secret, threshold, holders), start=1))
    chosen = random.sample(sorted(shares), random.randint(threshold, holders))
    assert join({x: shares[x] for x in chosen}, threshold) == secret


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=30),
    st.integers(2, 1000),
    st.sampled_from([1.0, 3.7, 1e10]),
)
def test_a_number_comes_back_from_the_grid_within_a_step_and_no_larger(numbers, clients, bound):
    grid, update = Grid(bound, clients), np.array(numbers) * bound
    back = grid.restore(grid.quantise(update), 1)
    assert np.all(np.abs(back - update) < grid.step)
    assert np.all(np.abs(back) <= np.abs(update))
