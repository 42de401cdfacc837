"""Learning curves of several runs, at common env steps (marks), and env steps to a threshold.

Runs are evaluated at slightly different steps, since an evaluation becomes due within a chunk. So
the marks begin where the last run has its first score and continue by the longest period, and
between two of its scores a run's score is interpolated linearly. A run that stopped because it was
solved carries its last score forward; any other run is known for half a period after its last
score, and the curve of its group ends there: what is left of a group is not the group.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from rookery.report.statistics.bootstrap import Draws, Estimate, estimate, iqms, medians, pooled
from rookery.report.statistics.run_records import RunRecord
from rookery.types import Floats

MOST = 100  # marks; longer runs are looked at every second or third period, and so on
NEVER = 2.0**60  # env steps


class Curve(NamedTuple):
    """The interquartile mean at each mark, up to where every run of the group is known."""

    env_steps: list[int]
    iqm: list[Estimate]
    carried: list[int]  # runs that stand at their last score because they were solved

    @property
    def points(self) -> dict[int, Estimate]:
        """The interquartile means by env steps."""
        return dict(zip(self.env_steps, self.iqm, strict=True))


def marks(runs: Sequence[RunRecord]) -> Floats:
    """Returns [K] env steps (marks) at which the scores of all these runs are compared."""
    first, last = max(run.steps[0] for run in runs), max(run.steps[-1] for run in runs)
    period = max(run.period for run in runs)
    stride = period * max(1, ceil((last - first) / period / MOST))
    return np.arange(first, max(first + 1, last + period / 2), stride)


def scores_at(run: RunRecord, at: Floats) -> Floats:
    """Returns [K] scores of one run at the marks, NaN where its score is unknown."""
    scores: Floats = np.interp(at, run.steps, run.scores)
    end = np.inf if run.solved else run.steps[-1] + run.period / 2
    scores[(at < run.steps[0]) | (at > end)] = np.nan
    return scores


def curve(strata: Sequence[Sequence[RunRecord]], at: Floats, draws: Draws) -> Curve:
    """Returns the learning curve of a group; `strata` are its runs by task."""
    scores = [np.stack([scores_at(run, at) for run in runs]) for runs in strata]  # [n, K] each
    known = int(np.isfinite(np.concatenate(scores)).all(axis=0).sum())
    over = np.array([run.steps[-1] for runs in strata for run in runs if run.solved])
    return Curve(
        env_steps=[int(step) for step in at[:known]],
        iqm=[estimate([x[:, k] for x in scores], draws, pooled(iqms)) for k in range(known)],
        carried=[int((over < step).sum()) for step in at[:known]],
    )


class Bounds(NamedTuple):
    """Whether value, low and high end of an estimate are only lower bounds."""

    value: bool
    low: bool
    high: bool


class StepsToThreshold(NamedTuple):
    """Median env steps to a threshold; a run that never reached it counts with its last step."""

    threshold: float | None  # none: each run's own
    reached: int
    runs: int
    env_steps: Estimate
    at_least: Bounds


def reach(
    runs: Sequence[RunRecord], threshold: float | None, draws: Draws
) -> StepsToThreshold | None:
    """Returns env steps to a threshold on one task, or to each run's own target if all have one."""
    goals = [run.target if threshold is None else threshold for run in runs]
    known = [goal for goal in goals if goal is not None]
    if len(known) < len(runs):
        return None
    took = np.array([_first(run, goal) for run, goal in zip(runs, known, strict=True)])
    ended = np.array([run.last_step for run in runs], dtype=np.float64)
    found = estimate([np.minimum(took, ended)], draws, pooled(medians))
    never = estimate([took], draws, pooled(medians))
    return StepsToThreshold(
        threshold=known[0] if len(set(known)) == 1 else None,
        reached=int((took < NEVER).sum()),
        runs=len(runs),
        env_steps=found,
        # Where it matters how long a run without success would have taken, it is a bound.
        at_least=Bounds(*(a != b for a, b in zip(found, never, strict=True))),
    )


def _first(run: RunRecord, goal: float) -> float:
    """Returns the env steps of the first score that is high enough."""
    there: Floats = run.steps[run.scores >= goal]
    return float(there[0]) if len(there) else NEVER
