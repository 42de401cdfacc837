"""How many env steps runs take to reach a score."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rookery.report.statistics.bootstrap import Draws, Estimate, estimate, medians, pooled
from rookery.report.statistics.run_records import RunRecord
from rookery.types import Floats

NEVER = 2.0**60  # env steps


class Bounds(NamedTuple):
    """Which numbers of an estimate are only known to be at least this."""

    value: bool
    low: bool
    high: bool


class StepsToThreshold(NamedTuple):
    """The median over runs. One that never got there counts with its last step: it took longer."""

    threshold: float | None  # none: each run's own
    reached: int
    runs: int
    env_steps: Estimate
    at_least: Bounds


def reach(
    runs: Sequence[RunRecord], threshold: float | None, draws: Draws
) -> StepsToThreshold | None:
    """Measures runs of one task by a threshold, or by their own targets if they all have one."""
    goals = [run.target if threshold is None else threshold for run in runs]
    wanted = [goal for goal in goals if goal is not None]
    if len(wanted) < len(runs):
        return None
    took = np.array([_first(run, goal) for run, goal in zip(runs, wanted, strict=True)])
    ended = np.array([run.last_step for run in runs], dtype=np.float64)
    found = estimate([np.minimum(took, ended)], draws, pooled(medians))
    never = estimate([took], draws, pooled(medians))
    return StepsToThreshold(
        threshold=wanted[0] if len(set(wanted)) == 1 else None,
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
