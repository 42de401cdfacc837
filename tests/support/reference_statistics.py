"""Statistics of other libraries: prints the constants of unit/report/statistics/test_bootstrap.py.

python -m venv other && other/bin/pip install rliable==1.2.0 'arch<8' 'pandas<3' scipy
other/bin/python tests/support/reference_statistics.py

rliable draws from numpy's global state, so its intervals differ from run to run in the third digit.
"""

import numpy as np

X = np.array(
    [
        [0.81, 0.12, 1.40],
        [0.35, 0.55, 1.10],
        [0.92, 0.31, 0.70],
        [0.67, 0.48, 1.25],
        [0.15, 0.77, 0.95],
        [0.74, 0.26, 1.05],
        [0.88, 0.60, 0.20],
        [0.41, 0.09, 1.31],
    ]
)  # [runs, tasks]
Y = np.array(
    [
        [0.52, 0.31, 0.60],
        [0.35, 0.22, 0.95],
        [0.11, 0.44, 0.82],
        [0.78, 0.05, 0.20],
        [0.29, 0.48, 1.02],
    ]
)  # ties with X in every task


def main() -> None:
    from importlib.metadata import version

    from rliable import library, metrics
    from scipy import stats

    def aggregates(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x), metrics.aggregate_mean(x)])

    def better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([metrics.probability_of_improvement(x, y)])

    print(*(f"{name} {version(name)}" for name in ("rliable", "arch", "scipy", "numpy")))
    print("iqm, mean", *library.get_interval_estimates({"x": X}, aggregates, reps=50_000))
    print("P(X > Y)", *library.get_interval_estimates({"x": [X, Y]}, better, reps=20_000))
    for name, values in (("X", X[:, 0]), ("Y", Y[:, 0])):
        print(name, "trim_mean", stats.trim_mean(values, 0.25), "iqr", stats.iqr(values))
    for name, statistic in (("trim_mean", _trimmed), ("std", _deviation), ("iqr", stats.iqr)):
        found = stats.bootstrap(
            (X[:, 0],), statistic, n_resamples=100_000, method="percentile", rng=0
        )
        print("bootstrap of X", name, found.confidence_interval)
    for task in range(3):
        print("mannwhitneyu", task, stats.mannwhitneyu(X[:, task], Y[:, task]).statistic)


def _trimmed(x: np.ndarray, axis: int) -> np.ndarray:
    from scipy.stats import trim_mean

    return trim_mean(x, 0.25, axis=axis)


def _deviation(x: np.ndarray, axis: int) -> np.ndarray:
    return np.std(x, axis=axis, ddof=1)


if __name__ == "__main__":
    main()
