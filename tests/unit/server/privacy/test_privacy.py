"""Clipping, noise, sampling, and what is refused because it would hide nobody."""

import math

import numpy as np
import pytest

from rookery.errors import ConfigError, RefusedError
from rookery.server.aggregate import Aggregation
from rookery.server.privacy.noise import clip, noise, noisy_mean, subsample
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.privacy.privacy_checks import (
    BOUNDED,
    UNBOUNDED,
    refuse_aggregation,
    refuse_delta,
    refuse_numbers,
    refuse_weight,
)


def ledger(**changed):
    settings = {"noise_multiplier": 1.0, "sample_rate": 1.0, "clients": 10, **changed}
    return Ledger(settings.pop("target_epsilon", 50.0), settings.pop("delta", 1e-3), **settings)


def test_a_long_update_is_scaled_to_the_bound_and_keeps_its_direction():
    clipped = clip(np.array([3.0, 4.0], np.float32), 1.0)

    assert np.linalg.norm(clipped) <= 1.0
    assert clipped == pytest.approx([0.6, 0.8], rel=1e-5)
    assert clipped.dtype == np.float32


def test_an_update_within_the_bound_stays_as_it_is():
    update = np.array([0.3, -0.4], np.float32)
    assert clip(update, 0.51) is update


@pytest.mark.parametrize("length", [1e-30, 1.0, 1e8, 1e37])
def test_no_clipped_update_is_longer_than_the_bound(length):
    rng = np.random.default_rng(3)
    for _ in range(20):
        update = (rng.normal(size=100) * length).astype(np.float32)
        for bound in (1e-3, 1.0, 7.3):
            assert np.linalg.norm(clip(update, bound).astype(np.float64)) <= bound


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused(bad):
    with pytest.raises(RefusedError, match="finite") as refused:
        clip(np.array([0.0, bad], np.float32), 1.0)
    assert refused.value.code == "finite"


def test_noise_has_the_scale_that_was_asked_for():
    """Bounds of 6 standard errors: a false alarm once in 10^8 runs."""
    drawn = noise(100_001, 2.5)

    assert drawn.shape == (100_001,)
    assert abs(drawn.mean()) < 6 * 2.5 / math.sqrt(len(drawn))
    assert drawn.std() == pytest.approx(2.5, rel=6 / math.sqrt(2 * len(drawn)))


def test_noise_is_normal():
    """Shares beyond 1, 2 and 3 deviations; bounds of 6 standard errors each."""
    drawn = np.abs(noise(100_000, 1.0))
    for deviations in (1, 2, 3):
        share = math.erfc(deviations / math.sqrt(2))
        error = math.sqrt(share * (1 - share) / len(drawn))
        assert np.mean(drawn > deviations) == pytest.approx(share, abs=6 * error)


def test_two_runs_with_one_seed_have_different_noise():
    drawn = []
    for _ in range(2):
        np.random.seed(5)  # noqa: NPY002  # whatever a run has seeded
        drawn.append(noise(100, 1.0))

    assert not np.any(drawn[0] == drawn[1])


def test_noise_does_not_touch_the_global_generators():
    before = np.random.get_state()[1].copy()  # noqa: NPY002  # it must not change
    noise(10, 1.0)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_subsampling_draws_each_client_by_itself():
    """Of 10,000 clients at 0.3: 3,000 within 6 deviations, and no two rounds the same."""
    everybody = [f"c{i}" for i in range(10_000)]

    first, second = subsample(everybody, 0.3), subsample(everybody, 0.3)

    deviation = math.sqrt(10_000 * 0.3 * 0.7)
    assert abs(len(first) - 3_000) < 6 * deviation
    assert abs(len(set(first) & set(second)) - 900) < 6 * math.sqrt(10_000 * 0.09 * 0.91)
    assert set(first) <= set(everybody)


def test_a_rate_of_one_draws_everybody_in_order():
    assert subsample(["b", "a", "c"], 1.0) == ["b", "a", "c"]


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 10), (0.5, 5)])
def test_a_mean_is_over_the_clients_expected_and_has_noise_of_z_c_over_q_n(rate, expected):
    """z 2, C 3, N 10: a deviation of 6 over the clients expected; 6 standard errors."""
    book, total = ledger(noise_multiplier=2.0, sample_rate=rate), np.full(40_000, 100.0)

    mean = noisy_mean(total, 3.0 * book.noise_multiplier, book.sample_rate * book.clients)

    deviation = 6 / expected
    assert abs(mean.mean() - 100 / expected) < 6 * deviation / math.sqrt(mean.size)
    assert mean.std() == pytest.approx(deviation, rel=6 / math.sqrt(2 * mean.size))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("clip_norm", 0.0),
        ("clip_norm", -1.0),
        ("clip_norm", math.inf),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -0.1),
        ("noise_scale", 0.0),
        ("delta", 0.0),
        ("delta", 0.1),  # 1 / clients
        ("delta", 0.5),
        ("sample_rate", 0.0),
        ("sample_rate", 1.1),
        ("target_epsilon", 0.0),
        ("target_epsilon", math.inf),
        ("clip_norm", math.nan),
        ("noise_multiplier", math.nan),
        ("delta", math.nan),
        ("sample_rate", math.nan),
        ("target_epsilon", math.nan),
    ],
)
def test_numbers_that_promise_nothing_are_refused(name, number):
    with pytest.raises(ConfigError, match=name):
        refuse_delta(number, 10) if name == "delta" else refuse_numbers(**{name: number})


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_clipping_refuses_a_bound_that_bounds_nothing(bound):
    with pytest.raises(ConfigError, match="clip_norm"):
        clip(np.ones(2), bound)


def test_every_aggregation_is_either_bounded_or_refused_with_its_reason():
    assert {method.value for method in Aggregation} == BOUNDED | UNBOUNDED.keys()
    assert not BOUNDED & UNBOUNDED.keys()


@pytest.mark.parametrize("method", [*UNBOUNDED, "something else"])
def test_rules_in_which_a_client_has_unbounded_influence_are_refused(method):
    with pytest.raises(ConfigError, match=method):
        refuse_aggregation(method)


@pytest.mark.parametrize("method", sorted(BOUNDED))
def test_sums_and_means_of_equal_weights_are_not_refused(method):
    refuse_aggregation(method)


def test_weights_other_than_one_are_refused():
    refuse_weight(1)
    with pytest.raises(RefusedError, match=r"2\.0") as refused:
        refuse_weight(2.0)
    assert refused.value.code == "weight"
