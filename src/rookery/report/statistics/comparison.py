"""Compares groups of runs: final scores, spread, steps to a threshold, P(X > Y), curves.

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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rookery.config.checks import nearest
from rookery.errors import ConfigError
from rookery.report.number_format import counted, score
from rookery.report.statistics import bootstrap
from rookery.report.statistics.bootstrap import Estimate, averaged, pooled
from rookery.report.statistics.caveats import by, caveats
from rookery.report.statistics.learning_curve import Curve, StepsToThreshold, curve, marks, reach
from rookery.report.statistics.run_records import Metric, RunRecord
from rookery.types import Floats

ALL = "all tasks"
BASELINE = "baseline"  # a group of this name is the one that the others are compared with
SCORE = [pooled(each) for each in (bootstrap.iqms, bootstrap.medians, bootstrap.means)]
SPREAD = [averaged(each) for each in (bootstrap.deviations, bootstrap.ranges)]


class Question(NamedTuple):
    """Options of a comparison: metric, thresholds, bootstrap, groups."""

    metric: Metric = Metric.EVALUATION
    thresholds: Mapping[str, float] = {}  # task → score; "" where there is one task
    reps: int = 2_000  # bootstrap draws
    seed: int = 0
    tags: Sequence[str] = ()  # groups to keep, in this order; none: all
    baseline: str | None = None  # none: the group called baseline, otherwise the first


class Score(NamedTuple):
    """Aggregated scores of a group's runs."""

    iqm: Estimate
    median: Estimate
    mean: Estimate


class Spread(NamedTuple):
    """Dispersion of a group's final scores over its runs."""

    std: Estimate
    iqr: Estimate


class Cell(NamedTuple):
    """Results of one group on one task, or over all tasks."""

    group: str
    runs: int
    final: Score  # the last score of each run
    best: Score  # the highest score of each run
    spread: Spread | None  # none where a task has one run
    reach: StepsToThreshold | None  # none without a threshold, and over all tasks
    improvement: Estimate | None  # P(X > Y) over the baseline; none for itself
    curve: Curve


class TaskTable(NamedTuple):
    """Results of all groups on one task."""

    task: str
    threshold: float | None  # none: there is none, or runs have their own
    cells: list[Cell]


class ScoreScale(NamedTuple):
    """Scores of a task that become 0 and 1 when they are normalised."""

    lowest: float
    target: float


class Overall(NamedTuple):
    """Results of all groups over the tasks they share, in normalised scores."""

    scales: dict[str, ScoreScale]
    cells: list[Cell]


class Comparison(NamedTuple):
    """Results of a comparison of groups of runs."""

    metric: Metric
    baseline: str
    groups: list[str]
    tasks: list[TaskTable]
    overall: Overall | None
    improvement: dict[str, Estimate]  # P(X > Y) over the tasks shared with the baseline
    notes: list[str]


def compare(runs: Sequence[RunRecord], question: Question) -> Comparison:
    """Compares groups of runs; raises `ConfigError` if no run has a score."""
    chosen = _chosen(runs, question.tags)
    scored = [run for run in chosen if len(run.scores)]
    if not scored:
        other = next(name for name in Metric if name is not question.metric)
        raise ConfigError(
            f"there is no {question.metric} yet in {counted(len(chosen), 'run')}; wait for the "
            f"first, add runs, or try --metric {other}"
        )
    study = Study(scored, question)
    overall, refusal = _overall(study)
    return Comparison(
        metric=question.metric,
        baseline=study.baseline,
        groups=study.groups,
        tasks=[study.table(task) for task in study.tasks],
        overall=overall,
        improvement=study.improvements(),
        notes=[*caveats(chosen), *refusal],
    )


class Study:
    """The runs that are compared, by group and task."""

    def __init__(self, runs: Sequence[RunRecord], question: Question):
        self.question = question
        self.groups = [group for group, _ in by(runs, lambda run: run.group)]
        self.tasks = [task for task, _ in by(runs, lambda run: run.task)]
        self.baseline = _baseline(self.groups, question.baseline)
        self._thresholds = _thresholds(self.tasks, question.thresholds)
        self._runs = dict(by(runs, lambda run: (run.group, run.task)))

    def of(self, group: str, task: str) -> list[RunRecord]:
        return self._runs.get((group, task), [])

    @property
    def shared(self) -> list[str]:
        """The tasks that every group has runs of."""
        return [t for t in self.tasks if all(self.of(group, t) for group in self.groups)]

    def table(self, task: str) -> TaskTable:
        cells = self._cells({g: {task: self.of(g, task)} for g in self.groups if self.of(g, task)})
        known = {cell.reach.threshold if cell.reach else None for cell in cells}
        return TaskTable(task, known.pop() if len(known) == 1 else None, cells)

    def overall(self) -> Overall:
        """Compares normalised scores over shared tasks; raises `ConfigError` without a scale."""
        scales = {task: self._scale(task) for task in self.shared}
        scaled = {
            group: {task: _scaled(self.of(group, task), scales[task]) for task in scales}
            for group in self.groups
        }
        return Overall(scales, self._cells(scaled))

    def _scale(self, task: str) -> ScoreScale:
        """Returns the scores of a task that are normalised to 0 and 1, or raises `ConfigError`."""
        runs = [run for group in self.groups for run in self.of(group, task)]
        targets = {self._thresholds.get(task, run.target) for run in runs}
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
        """Returns P(X > Y) of every other group over the baseline."""
        every = {group: self._improvement(group, self.tasks) for group in self.groups}
        return {group: found for group, found in every.items() if found}

    def _improvement(self, group: str, tasks: Iterable[str]) -> Estimate | None:
        """Returns P(X > Y) of a group over the baseline, averaged over the tasks of both."""
        both = [t for t in tasks if self.of(group, t) and self.of(self.baseline, t)]
        if group == self.baseline or not both:
            return None
        ours, theirs = (
            [_finals(self.of(one, task)) for task in both] for one in (group, self.baseline)
        )
        return bootstrap.improvement(ours, theirs, self.question.reps, self._rng())

    def _cells(self, groups: Mapping[str, Mapping[str, list[RunRecord]]]) -> list[Cell]:
        """Returns the results of groups, given as runs by task; their curves have common marks."""
        at = marks([run for tasks in groups.values() for runs in tasks.values() for run in runs])
        return [self._cell(group, tasks, at) for group, tasks in groups.items()]

    def _cell(self, group: str, strata: Mapping[str, list[RunRecord]], at: Floats) -> Cell:
        finals = [_finals(runs) for runs in strata.values()]
        bests = [np.array([run.best for run in runs]) for runs in strata.values()]
        draws = bootstrap.redraw(finals, self.question.reps, self._rng())
        final, best = (
            Score(*(bootstrap.estimate(scores, draws, each) for each in SCORE))
            for scores in (finals, bests)
        )
        spread = None
        if min(map(len, finals)) > 1:
            spread = Spread(*(bootstrap.estimate(finals, draws, each) for each in SPREAD))
        task, *others = strata
        return Cell(
            group=group,
            runs=sum(map(len, finals)),
            final=final,
            best=best,
            spread=spread,
            reach=None if others else reach(strata[task], self._thresholds.get(task), draws),
            improvement=self._improvement(group, strata),
            curve=curve(list(strata.values()), at, draws),
        )

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.question.seed)


def as_dict(found: Any) -> Any:
    """Converts a `Comparison` to dicts and lists for JSON."""
    if hasattr(found, "_asdict"):
        return as_dict(found._asdict())
    if isinstance(found, Mapping):
        return {str(key): as_dict(value) for key, value in found.items()}
    return [as_dict(item) for item in found] if isinstance(found, list) else found


def _finals(runs: Sequence[RunRecord]) -> Floats:
    return np.array([run.final for run in runs])


def _scaled(runs: Sequence[RunRecord], scale: ScoreScale) -> list[RunRecord]:
    span = scale.target - scale.lowest
    return [run._replace(scores=(run.scores - scale.lowest) / span) for run in runs]


def _overall(study: Study) -> tuple[Overall | None, list[str]]:
    """Returns results over all tasks if there are any, and sentences about what is missing."""
    if len(study.tasks) < 2:
        return None, []
    if len(study.shared) < 2:
        return None, [f"no figures over {ALL}: the groups share fewer than two tasks"]
    try:
        overall = study.overall()
    except ConfigError as error:
        return None, [f"no scores over {ALL}: {error}"]
    left = [task for task in study.tasks if task not in study.shared]
    uneven = [g for g in study.groups if len({len(study.of(g, t)) for t in study.shared}) > 1]
    return overall, [
        *(f"{task}: not in the figures over {ALL}: a group has no run of it" for task in left),
        *(f"{group}: tasks with more runs weigh more in the scores over {ALL}" for group in uneven),
    ]


def _chosen(runs: Sequence[RunRecord], tags: Sequence[str]) -> list[RunRecord]:
    groups = dict(by(runs, lambda run: run.group))
    for tag in tags:
        if tag not in groups:
            raise _no_group("--tag", tag, list(groups))
    return [run for tag in dict.fromkeys(tags) for run in groups[tag]] if tags else list(runs)


def _baseline(groups: list[str], given: str | None) -> str:
    if given is None:
        return BASELINE if BASELINE in groups else groups[0]
    if given not in groups:
        raise _no_group("--baseline", given, groups)
    return given


def _no_group(flag: str, given: str, groups: list[str]) -> ConfigError:
    near = nearest(given, groups)
    hint = f"did you mean {near!r}? " if near else "leave it out for all. "
    return ConfigError(f"{flag} {given!r} is no group; {hint}There are: {', '.join(groups)}")


def _thresholds(tasks: list[str], given: Mapping[str, float]) -> dict[str, float]:
    """Returns thresholds by task; a threshold without a task is that of the only task."""
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
