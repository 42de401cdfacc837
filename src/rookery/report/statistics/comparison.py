"""Groups of runs side by side: final scores, spread, steps to a threshold, P(X > Y), curves.

    loaded = runs.load([Path("runs")], Metric.EVALUATION)
    found = compare(loaded.runs, Question(baseline="local"))
    found.tasks[0].cells[1].final.iqm          # of the second group on the first task

Every interval is a percentile bootstrap at 95 % which draws runs within each task. A group's draws
follow from the seed alone, so its intervals do not change with what it is compared to.

Scores of several tasks have no common unit. They are put on one scale, 0 the lowest score that any
of the runs had on the task at any time, 1 the task's target, and only where every task that all
groups share has one target; otherwise each task stands alone. P(X > Y) compares runs of the same
task and needs no scale. Steps to a threshold are never added up over tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.config.parse import nearest
from rookery.errors import ConfigError
from rookery.report.number_format import score
from rookery.report.statistics import bootstrap
from rookery.report.statistics.bootstrap import Draws, Estimate, Strata, averaged, estimate, pooled
from rookery.report.statistics.caveats import caveats
from rookery.report.statistics.learning_curve import Curve, curve, marks
from rookery.report.statistics.run_records import Metric, RunRecord
from rookery.report.statistics.steps_to_threshold import StepsToThreshold, reach
from rookery.types import Floats

ALL = "all tasks"


class Question(NamedTuple):
    """What is to be found out."""

    metric: Metric = Metric.EVALUATION
    thresholds: Mapping[str, float] = {}  # task → score; "" where there is one task
    reps: int = 2_000  # bootstrap draws
    seed: int = 0
    tags: Sequence[str] = ()  # groups to keep, in this order; none: all
    baseline: str | None = None  # none: the first group


class Score(NamedTuple):
    """What a group's runs came to."""

    iqm: Estimate
    median: Estimate
    mean: Estimate


class Spread(NamedTuple):
    """How far a group's final scores lie apart."""

    std: Estimate
    iqr: Estimate


class Cell(NamedTuple):
    """One group on one task, or over all of them."""

    group: str
    runs: int
    final: Score  # the last score of each run
    best: Score  # the highest score of each run
    spread: Spread | None  # none where a task has one run
    reach: StepsToThreshold | None  # none without a threshold, and over all tasks
    improvement: Estimate | None  # P(X > Y) over the baseline; none for itself
    curve: Curve


class Table(NamedTuple):
    """All groups on one task."""

    task: str
    threshold: float | None  # none: there is none, or runs have their own
    cells: list[Cell]


class ScoreScale(NamedTuple):
    """What becomes 0 and 1."""

    lowest: float
    target: float


class Overall(NamedTuple):
    """All groups over the tasks they share, in normalised scores."""

    scales: dict[str, ScoreScale]
    cells: list[Cell]


class Comparison(NamedTuple):
    """The answer."""

    metric: Metric
    baseline: str
    groups: list[str]
    tasks: list[Table]
    overall: Overall | None
    improvement: dict[str, Estimate]  # P(X > Y) over the tasks shared with the baseline
    notes: list[str]


def compare(runs: Sequence[RunRecord], question: Question) -> Comparison:
    """Compares the groups; refuses where there is nothing to compare."""
    chosen = _chosen(runs, question.tags)
    scored = [run for run in chosen if len(run.scores)]
    _refuse_nothing(scored, chosen, question.metric)
    study = Study(scored, question)
    tasks = [study.table(task) for task in study.tasks]
    overall, refusal = _overall(study)
    return Comparison(
        metric=question.metric,
        baseline=study.baseline,
        groups=study.groups,
        tasks=tasks,
        overall=overall,
        improvement=study.improvements(),
        notes=[*caveats(chosen), *refusal],
    )


class Study:
    """The runs of a question, by group and task."""

    def __init__(self, runs: Sequence[RunRecord], question: Question):
        self.question, self.runs = question, runs
        self.groups = list(dict.fromkeys(run.group for run in runs))
        self.tasks = list(dict.fromkeys(run.task for run in runs))
        self.baseline = _baseline(self.groups, question.baseline)
        self._thresholds = _thresholds(self.tasks, question.thresholds)

    def of(self, group: str, task: str) -> list[RunRecord]:
        return [run for run in self.runs if run.group == group and run.task == task]

    @property
    def shared(self) -> list[str]:
        """The tasks that every group has runs of."""
        return [t for t in self.tasks if all(self.of(group, t) for group in self.groups)]

    def table(self, task: str) -> Table:
        at = marks([run for run in self.runs if run.task == task])
        here = [group for group in self.groups if self.of(group, task)]
        cells = [self._cell(group, {task: self.of(group, task)}, at) for group in here]
        known = {cell.reach.threshold if cell.reach else None for cell in cells}
        return Table(task, known.pop() if len(known) == 1 else None, cells)

    def overall(self, scales: Mapping[str, ScoreScale]) -> Overall:
        strata = {
            group: {task: _scaled(self.of(group, task), scales[task]) for task in scales}
            for group in self.groups
        }
        at = marks([run for tasks in strata.values() for runs in tasks.values() for run in runs])
        return Overall(dict(scales), [self._cell(g, tasks, at) for g, tasks in strata.items()])

    def scale(self, task: str) -> ScoreScale:
        """Finds what is 0 and what is 1 on a task, or refuses."""
        runs = [run for run in self.runs if run.task == task]
        given = self._thresholds.get(task)
        targets = {run.target for run in runs} if given is None else {given}
        lowest, target = float(min(run.scores.min() for run in runs)), targets.pop()
        if target is None or targets:
            raise ConfigError(
                f"{task} has no target that all its runs share, and scores of different tasks "
                f"need one each to be averaged; give --threshold {task}=SCORE"
            )
        if not lowest < target:
            raise ConfigError(
                f"the target of {task}, {score(target)}, is not above the lowest score of its "
                f"runs, {score(lowest)}; give a higher one with --threshold {task}=SCORE"
            )
        return ScoreScale(lowest, target)

    def improvements(self) -> dict[str, Estimate]:
        """Returns P(X > Y) of each group over the baseline, averaged over the tasks of both."""
        found = {}
        for group in self.groups:
            both = [t for t in self.tasks if self.of(group, t) and self.of(self.baseline, t)]
            if group != self.baseline and both:
                found[group] = self._improvement(group, both)
        return found

    def _improvement(self, group: str, tasks: Sequence[str]) -> Estimate:
        ours = [_finals(self.of(group, task)) for task in tasks]
        theirs = [_finals(self.of(self.baseline, task)) for task in tasks]
        return bootstrap.improvement(ours, theirs, self.question.reps, self._rng())

    def _cell(self, group: str, strata: Mapping[str, Sequence[RunRecord]], at: Floats) -> Cell:
        finals = [_finals(runs) for runs in strata.values()]
        draws = bootstrap.redraw(finals, self.question.reps, self._rng())
        compared = group != self.baseline and all(self.of(self.baseline, task) for task in strata)
        return Cell(
            group=group,
            runs=sum(map(len, finals)),
            final=_score(finals, draws),
            best=_score([_bests(runs) for runs in strata.values()], draws),
            spread=_spread(finals, draws),
            reach=self._reach(strata, draws),
            improvement=self._improvement(group, list(strata)) if compared else None,
            curve=curve(list(strata.values()), at, draws),
        )

    def _reach(
        self, strata: Mapping[str, Sequence[RunRecord]], draws: Draws
    ) -> StepsToThreshold | None:
        if len(strata) > 1:
            return None
        [(task, runs)] = strata.items()
        return reach(runs, self._thresholds.get(task), draws)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.question.seed)


def as_dict(found: Any) -> Any:
    """Turns the answer into dicts and lists, names as above."""
    if hasattr(found, "_asdict"):
        return {name: as_dict(value) for name, value in found._asdict().items()}
    if isinstance(found, Mapping):
        return {str(key): as_dict(value) for key, value in found.items()}
    return [as_dict(item) for item in found] if isinstance(found, list) else found


def _score(strata: Strata, draws: Draws) -> Score:
    each = (bootstrap.iqms, bootstrap.medians, bootstrap.means)
    return Score(*(estimate(strata, draws, pooled(statistic)) for statistic in each))


def _spread(strata: Strata, draws: Draws) -> Spread | None:
    if min(map(len, strata)) < 2:
        return None
    each = (bootstrap.deviations, bootstrap.ranges)
    return Spread(*(estimate(strata, draws, averaged(statistic)) for statistic in each))


def _finals(runs: Sequence[RunRecord]) -> Floats:
    return np.array([run.final for run in runs])


def _bests(runs: Sequence[RunRecord]) -> Floats:
    return np.array([run.best for run in runs])


def _scaled(runs: Sequence[RunRecord], scale: ScoreScale) -> list[RunRecord]:
    span = scale.target - scale.lowest
    return [run._replace(scores=(run.scores - scale.lowest) / span) for run in runs]


def _overall(study: Study) -> tuple[Overall | None, list[str]]:
    """Returns figures over all tasks, or why there are none."""
    if len(study.tasks) < 2:
        return None, []
    if len(study.shared) < 2:
        return None, [f"no figures over {ALL}: the groups share fewer than two tasks"]
    try:
        scales = {task: study.scale(task) for task in study.shared}
    except ConfigError as error:
        return None, [f"no scores over {ALL}: {error}"]
    return study.overall(scales), _weights(study)


def _weights(study: Study) -> list[str]:
    left = [task for task in study.tasks if task not in study.shared]
    uneven = [g for g in study.groups if len({len(study.of(g, t)) for t in study.shared}) > 1]
    return [
        *(f"{task}: not in the figures over {ALL}: a group has no run of it" for task in left),
        *(f"{group}: tasks with more runs weigh more in the scores over {ALL}" for group in uneven),
    ]


def _chosen(runs: Sequence[RunRecord], tags: Sequence[str]) -> list[RunRecord]:
    if not tags:
        return list(runs)
    groups = list(dict.fromkeys(run.group for run in runs))
    for tag in tags:
        if tag not in groups:
            raise _no_group("--tag", tag, groups)
    return [run for tag in dict.fromkeys(tags) for run in runs if run.group == tag]


def _baseline(groups: list[str], given: str | None) -> str:
    if given is not None and given not in groups:
        raise _no_group("--baseline", given, groups)
    return groups[0] if given is None else given


def _no_group(flag: str, given: str, groups: list[str]) -> ConfigError:
    near = nearest(given, groups)
    hint = f"did you mean {near!r}? " if near else "leave it out for all. "
    return ConfigError(f"{flag} {given!r} is no group; {hint}There are: {', '.join(groups)}")


def _thresholds(tasks: list[str], given: Mapping[str, float]) -> dict[str, float]:
    """Resolves "" to the only task."""
    for task in given:
        if task and task not in tasks:
            near = nearest(task, tasks) or tasks[0]
            raise ConfigError(
                f"--threshold names {task!r}, which no run played; tasks are {', '.join(tasks)}: "
                f"write --threshold {near}=SCORE"
            )
    if "" in given and len(tasks) > 1:
        raise ConfigError(
            f"--threshold {given['']:g} is one score for {len(tasks)} tasks ({', '.join(tasks)}); "
            f"write one for each: --threshold {tasks[0]}=SCORE"
        )
    return {task or tasks[0]: value for task, value in given.items()}


def _refuse_nothing(
    scored: Sequence[RunRecord], chosen: Sequence[RunRecord], metric: Metric
) -> None:
    if not scored:
        other = next(name for name in Metric if name is not metric)
        raise ConfigError(
            f"none of {len(chosen)} runs has any {metric} yet; wait for the first, "
            f"add runs, or try --metric {other}"
        )
