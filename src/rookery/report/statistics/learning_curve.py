"""Scores of several runs over env steps, at marks they have in common.

Runs are judged at slightly different steps, since a mark is noticed at the end of a chunk. So the
marks begin where the last run has its first score and go on by the longest period, and between two
of its scores a run's score is interpolated linearly. A run that stopped because it was solved
carries its last score forward; any other run is known for half a period after its last score, and
the curve of its group ends there: what is left of a group is not the group.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from rookery.report.statistics.bootstrap import Draws, Estimate, estimate, iqms, pooled
from rookery.report.statistics.run_records import RunRecord
from rookery.types import Floats

MOST = 100  # marks; longer runs are looked at every second or third period, and so on


class Curve(NamedTuple):
    """The interquartile mean at each mark, up to where every run of the group is known."""

    env_steps: list[int]
    iqm: list[Estimate]
    carried: list[int]  # runs that stand at their last score because they were solved


def marks(runs: Sequence[RunRecord]) -> Floats:
    """Returns [K] env steps at which all these runs are looked at."""
    first, last = max(run.steps[0] for run in runs), max(run.steps[-1] for run in runs)
    period = max(run.period for run in runs)
    stride = period * max(1, ceil((last - first) / period / MOST))
    return np.arange(first, max(first + 1, last + period / 2), stride)


def scores_at(run: RunRecord, at: Floats) -> Floats:
    """Returns [K] scores of one run at the marks, NaN where it is not known."""
    scores: Floats = np.interp(at, run.steps, run.scores)
    end = np.inf if run.solved else run.steps[-1] + run.period / 2
    scores[(at < run.steps[0]) | (at > end)] = np.nan
    return scores


def curve(strata: Sequence[Sequence[RunRecord]], at: Floats, draws: Draws) -> Curve:
    """Follows a group; `strata` are its runs, task by task."""
    scores = [np.stack([scores_at(run, at) for run in runs]) for runs in strata]  # [n, K] each
    known = int(np.isfinite(np.concatenate(scores)).all(axis=0).sum())
    over = np.array([run.steps[-1] for runs in strata for run in runs if run.solved])
    return Curve(
        env_steps=[int(step) for step in at[:known]],
        iqm=[estimate([x[:, k] for x in scores], draws, pooled(iqms)) for k in range(known)],
        carried=[int((over < step).sum()) for step in at[:known]],
    )
