"""What a reader should know before believing a comparison, in sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rookery.event import Reason
from rookery.report.number_format import count, score
from rookery.report.statistics.run_records import RunRecord

FEW = 5  # runs; intervals from fewer are too narrow
CUT_SHORT = (Reason.INTERRUPTED, Reason.TERMINATED, Reason.FAILED)
K = TypeVar("K")
MOST = 3  # folders that are named in one sentence


def caveats(runs: Sequence[RunRecord]) -> list[str]:
    """Returns one sentence for each thing that may mislead."""
    return [sentence for caveat in CAVEATS for sentence in caveat(runs)]


def _without_scores(runs: Sequence[RunRecord]) -> Iterator[str]:
    empty = [run for run in runs if not len(run.scores)]
    if empty:
        yield f"{_runs(len(empty))} without any score: left out ({_folders(empty)})"


def _unfinished(runs: Sequence[RunRecord]) -> Iterator[str]:
    for group, inside in _groups(_scored(runs)):
        going = [run for run in inside if run.reason is None or run.reason in CUT_SHORT]
        if going:
            steps = ", ".join(
                f"{count(run.last_step)} of {count(run.budget)}" for run in going[:MOST]
            )
            more = ", ..." if len(going) > MOST else ""
            yield (
                f"{group}: {_runs(len(going))} not over, cut short or failed, counted as far as "
                f"they came (env steps {steps}{more})"
            )


def _carried(runs: Sequence[RunRecord]) -> Iterator[str]:
    for group, inside in _groups(_scored(runs)):
        solved = sum(run.solved for run in inside)
        if solved:
            yield (
                f"{group}: {solved} of {_runs(len(inside))} stopped because solved: the score that "
                "reached the target is their final one, and is carried forward in the curves"
            )


def _few(runs: Sequence[RunRecord]) -> Iterator[str]:
    small = [
        f"{len(inside)} of {group} on {task}"
        for (group, task), inside in _cells(_scored(runs))
        if len(inside) < FEW
    ]
    if small:
        yield (
            f"few runs ({', '.join(small)}): bootstrap intervals from fewer than {FEW} are too "
            "narrow, and one run has none"
        )


def _targets(runs: Sequence[RunRecord]) -> Iterator[str]:
    for task, inside in _tasks(_scored(runs)):
        targets = sorted({run.target for run in inside if run.target is not None})
        if len(targets) > 1:
            yield (
                f"{task}: runs have different targets ({', '.join(map(score, targets))}); each is "
                "measured by its own unless --threshold is given"
            )


def _environments(runs: Sequence[RunRecord]) -> Iterator[str]:
    for task, inside in _tasks(_scored(runs)):
        if len({run.env for run in inside}) > 1:
            yield (
                f"{task}: runs differ in env.kwargs, env.wrappers or env.max_episode_steps, "
                "so their scores may not mean the same"
            )


def _budgets(runs: Sequence[RunRecord]) -> Iterator[str]:
    for task, inside in _tasks(_scored(runs)):
        budgets = sorted({run.budget for run in inside})
        if len(budgets) > 1:
            yield (
                f"{task}: runs had different budgets ({' to '.join(map(count, _ends(budgets)))} "
                "env steps), so final scores are not of equal training"
            )


def _same_seed(runs: Sequence[RunRecord]) -> Iterator[str]:
    for (group, task), inside in _cells(_scored(runs)):
        seeds = [run.seed for run in inside]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            yield (
                f"{group} on {task}: more than one run with seed {', '.join(map(str, twice))}; "
                "they may not be independent"
            )


def _damaged(runs: Sequence[RunRecord]) -> Iterator[str]:
    broken = [run for run in runs if run.damaged]
    if broken:
        total = sum(run.damaged for run in broken)
        yield f"unreadable lines of records, left out: {total} ({_folders(broken)})"
    missing = [run for run in runs if run.missing]
    if missing:
        total = sum(run.missing for run in missing)
        yield f"scores that are no finite number, left out: {total} ({_folders(missing)})"


CAVEATS: tuple[Callable[[Sequence[RunRecord]], Iterator[str]], ...] = (
    _without_scores,
    _damaged,
    _unfinished,
    _carried,
    _few,
    _targets,
    _environments,
    _budgets,
    _same_seed,
)


def _scored(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if len(run.scores)]


def _groups(runs: Sequence[RunRecord]) -> Iterable[tuple[str, list[RunRecord]]]:
    return _by(runs, lambda run: run.group)


def _tasks(runs: Sequence[RunRecord]) -> Iterable[tuple[str, list[RunRecord]]]:
    return _by(runs, lambda run: run.task)


def _cells(runs: Sequence[RunRecord]) -> Iterable[tuple[tuple[str, str], list[RunRecord]]]:
    return _by(runs, lambda run: (run.group, run.task))


def _by(
    runs: Sequence[RunRecord], key: Callable[[RunRecord], K]
) -> Iterable[tuple[K, list[RunRecord]]]:
    found: dict[K, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found.items()


def _ends(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[-1]


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _folders(runs: Sequence[RunRecord]) -> str:
    names = [str(run.folder) for run in runs[:MOST]]
    return ", ".join([*names, f"and {len(runs) - MOST} more"] if len(runs) > MOST else names)
