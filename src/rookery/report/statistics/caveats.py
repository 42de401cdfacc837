"""Caveats of a comparison: sentences about what may mislead its reader."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from rookery.event import Reason
from rookery.report.number_format import count, counted, score
from rookery.report.statistics.run_records import RunRecord

FEW = 5  # runs; intervals from fewer are too narrow
CUT_SHORT = (None, Reason.INTERRUPTED, Reason.TERMINATED, Reason.FAILED)  # None: no end known
MOST = 3  # folders that are named in one sentence
K = TypeVar("K", bound=Hashable)

Runs: TypeAlias = Sequence[RunRecord]


def caveats(runs: Runs) -> list[str]:
    """Returns one sentence for each thing that may mislead."""
    scored = [run for run in runs if len(run.scores)]
    cells = by(scored, lambda run: f"{run.group} on {run.task}")
    found = list(_left_out(runs))
    for group, members in by(scored, lambda run: run.group):
        found += _of_group(group, members)
    if few := ", ".join(f"{len(cell)} of {name}" for name, cell in cells if len(cell) < FEW):
        found.append(
            f"few runs ({few}): bootstrap intervals from fewer than {FEW} are too narrow, and one "
            "run has none"
        )
    for task, members in by(scored, lambda run: run.task):
        found += _of_task(task, members)
    for name, cell in cells:
        twice = sorted(seed for seed, same in by(cell, lambda run: run.seed) if len(same) > 1)
        if twice:
            found.append(
                f"{name}: more than one run with seed {', '.join(map(str, twice))}; they may not "
                "be independent"
            )
    return found


def by(runs: Runs, key: Callable[[RunRecord], K]) -> list[tuple[K, list[RunRecord]]]:
    """Returns the runs with the same key together, in the order of the first of them."""
    found: dict[K, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.items())


def _left_out(runs: Runs) -> Iterator[str]:
    """Says which runs, lines and scores are not in the comparison."""
    if empty := [run for run in runs if not len(run.scores)]:
        yield f"{counted(len(empty), 'run')} without any score: left out ({_folders(empty)})"
    if broken := [run for run in runs if run.damaged]:
        total = sum(run.damaged for run in broken)
        yield f"unreadable lines of records, left out: {total} ({_folders(broken)})"
    if broken := [run for run in runs if run.missing]:
        total = sum(run.missing for run in broken)
        yield f"scores that are no finite number, left out: {total} ({_folders(broken)})"


def _of_group(group: str, runs: Runs) -> Iterator[str]:
    if going := [run for run in runs if run.reason in CUT_SHORT]:
        steps = [f"{count(run.last_step)} of {count(run.budget)}" for run in going]
        yield (
            f"{group}: {counted(len(going), 'run')} not over, cut short or failed, counted as far "
            f"as they came (env steps {_some(steps)})"
        )
    if solved := sum(run.solved for run in runs):
        yield (
            f"{group}: {solved} of {counted(len(runs), 'run')} stopped because solved: the score "
            "that reached the target is their final one, and is carried forward in the curves"
        )


def _of_task(task: str, runs: Runs) -> Iterator[str]:
    targets = sorted({run.target for run in runs if run.target is not None})
    if len(targets) > 1:
        yield (
            f"{task}: runs have different targets ({', '.join(map(score, targets))}); each is "
            "measured by its own unless --threshold is given"
        )
    if len({run.env for run in runs}) > 1:
        yield (
            f"{task}: runs differ in env.kwargs, env.wrappers or env.max_episode_steps, so their "
            "scores may not mean the same"
        )
    budgets = sorted({run.budget for run in runs})
    if len(budgets) > 1:
        yield (
            f"{task}: runs had different budgets ({count(budgets[0])} to {count(budgets[-1])} env "
            "steps), so final scores are not of equal training"
        )


def _folders(runs: Runs) -> str:
    return _some([str(run.folder) for run in runs])


def _some(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - MOST} more"] if len(texts) > MOST else []
    return ", ".join([*texts[:MOST], *more])
