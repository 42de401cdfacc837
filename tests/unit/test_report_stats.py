"""Statistics against their definitions."""

import numpy as np
import pytest

from rookery.errors import ConfigError
from rookery.report.stats import bootstrap_ci, iqm


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11, 100])
def test_iqm_is_the_mean_of_what_stays_after_a_quarter_goes_at_each_end(n):
    x = np.random.default_rng(n).normal(size=n)

    kept = sorted(x.tolist())[n // 4 : n - n // 4]

    assert iqm(x) == pytest.approx(sum(kept) / len(kept))


def test_iqm_ignores_one_lucky_run():
    assert iqm(np.array([1.0, 1.0, 1.0, 1.0, 1000.0])) == 1.0


def test_the_interval_equals_quantiles_of_resampled_statistics():
    x = np.arange(10.0)

    found = bootstrap_ci(x, np.mean, 200, np.random.default_rng(3), level=0.9)

    rng = np.random.default_rng(3)
    means = [x[pick].mean() for pick in rng.integers(10, size=(200, 10))]
    assert found.low == pytest.approx(np.quantile(means, 0.05))
    assert found.high == pytest.approx(np.quantile(means, 0.95))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Of 100 intervals at 90 %, fewer than 70 hold the mean with a probability near 1e-6.

    With n = 40 the percentile interval is a little short; 0.87 stands for it in that number.
    """
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(100, 40))

    spans = [bootstrap_ci(x, np.mean, 60, rng, level=0.9) for x in samples]

    assert 70 <= sum(low <= 0.0 <= high for low, high in spans) < 100


def test_the_interval_of_a_constant_is_that_constant():
    assert bootstrap_ci(np.full(5, 3.0), iqm, 50, np.random.default_rng(0)) == (3.0, 3.0)


def test_no_values_are_refused():
    with pytest.raises(ConfigError, match="at least one value"):
        iqm(np.array([]))
