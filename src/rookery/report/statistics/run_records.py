"""Runs to be compared, as their folders tell: who they are, and their scores over env steps.

    runs, unread = load([Path("runs")], Metric.EVALUATION)
    runs[0].group, runs[0].task, runs[0].steps, runs[0].scores

A run may still be going on: what stands in its folder counts. Half a line at the end of its record,
and a line that is no entry of ours, are left out; `damaged` counts the latter.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.config.load import RUN_FILE, load_run
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.event import Reason
from rookery.report.trackers import jsonl, whole_lines
from rookery.types import Floats

EXACT = 2**53  # env steps beyond are no number of ours


class Metric(StrEnum):
    """Which score is compared."""

    EVALUATION = "eval/mean_reward"
    ROLLOUT = "rollout/ep_rew_mean"


class RunRecord(NamedTuple):
    """One run of one task; `steps` go up and `scores` are finite."""

    folder: Path
    group: str  # report.tag, or the scenario's name where there is none
    task: str  # env.id
    seed: int
    target: float | None
    budget: int  # env steps it may take
    period: int  # env steps between two scores
    env: str  # what else makes the environment what it is, as text to compare
    steps: Floats  # [K] env steps
    scores: Floats  # [K]
    last_step: int
    reason: str | None  # why it stopped; none while it goes on, or where it was killed
    damaged: int  # lines that could not be read
    missing: int  # scores that are no finite number

    @property
    def final(self) -> float:
        return float(self.scores[-1])

    @property
    def best(self) -> float:
        return float(self.scores.max())

    @property
    def solved(self) -> bool:
        """Stopped because it had reached its target: it would have gone on otherwise."""
        return self.reason == Reason.TARGET


class Loaded(NamedTuple):
    """What was found."""

    runs: list[RunRecord]
    unread: list[str]  # what could not be read, and why


def load(given: Sequence[Path], metric: Metric) -> Loaded:
    """Reads the runs in the given folders, each once, in the order given.

    A folder is that of a run, or has runs inside, one or two levels down. A run that was named and
    cannot be read is refused; one that was come across is left out.
    """
    runs: dict[Path, RunRecord] = {}
    unread: list[str] = []
    for path in given:
        for folder in find(path):
            if folder.resolve() in runs:
                continue
            try:
                runs[folder.resolve()] = read(folder, metric)
            except ConfigError as error:
                if folder == path:
                    raise
                unread.append(f"left out: {error}")
    return Loaded(list(runs.values()), unread)


def find(path: Path) -> list[Path]:
    """Returns the run folders that are meant by one."""
    if not path.is_dir():
        raise ConfigError(
            f"there is no folder {str(path)!r}; give folders that `rookery train` named, "
            "or a folder that has them inside"
        )
    if (path / RUN_FILE).is_file():
        return [path]
    files = {*path.glob(f"*/{RUN_FILE}"), *path.glob(f"*/*/{RUN_FILE}")}
    if files:
        return sorted(file.parent for file in files)
    raise ConfigError(
        f"{str(path)!r} holds no run: there is no {RUN_FILE} in it, nor one or two folders down; "
        "give folders that `rookery train` named, or a folder that has them inside"
    )


def read(folder: Path, metric: Metric) -> RunRecord:
    """Reads a run; one without a single score has empty `scores`."""
    config = load_run(folder)
    texts = _texts(folder)
    entries = [entry for entry in map(jsonl.parse, texts) if entry is not None and _sound(entry)]
    points, missing = _points(entries, metric)
    steps = np.array(sorted(points), dtype=np.float64)
    return RunRecord(
        folder=folder,
        group=_printable(config.report.tag or config.name),
        task=_printable(config.env.id),
        seed=config.run.seed,
        target=config.eval.target,
        budget=config.run.env_steps,
        period=PERIODS[metric](config),
        env=_environment(config),
        steps=steps,
        scores=np.array([points[int(step)] for step in steps], dtype=np.float64),
        last_step=max((entry["env_steps"] for entry in entries), default=0),
        reason=_reason(entries),
        damaged=len(texts) - len(entries),
        missing=missing,
    )


def _texts(folder: Path) -> list[str]:
    try:
        return whole_lines.read(folder / jsonl.NAME)
    except OSError as error:
        raise ConfigError(
            f"{str(folder / jsonl.NAME)!r} cannot be read: {error.strerror}; "
            "make it readable, or leave that run out"
        ) from error


def _sound(entry: dict[str, Any]) -> bool:
    return 0 <= int(entry["env_steps"]) < EXACT


def _points(entries: Iterable[Any], metric: Metric) -> tuple[dict[int, float], int]:
    """Returns env steps → score, and how many scores are no number. The later of two counts."""
    points: dict[int, float] = {}
    missing = 0
    for entry in entries:
        for value in SCORES[metric](entry):
            score = _finite(value)
            if score is None:
                missing += 1
            else:
                points[entry["env_steps"]] = score
    return points, missing


def _finite(value: Any) -> float | None:
    """NaN was written as null; a word or a number without end is not ours."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and not math.isnan(value) else None


def _evaluation(entry: dict[str, Any]) -> list[Any]:
    return [entry.get("score")] if entry.get("event") == "evaluated" else []


def _rollout(entry: dict[str, Any]) -> list[Any]:
    metrics = entry.get("metrics")
    if not isinstance(metrics, dict) or Metric.ROLLOUT not in metrics:
        return []
    return [metrics[Metric.ROLLOUT]]


SCORES: dict[Metric, Callable[[dict[str, Any]], list[Any]]] = {
    Metric.EVALUATION: _evaluation,
    Metric.ROLLOUT: _rollout,
}  # entry → its score, none where it has none to give

PERIODS: dict[Metric, Callable[[Config], int]] = {
    Metric.EVALUATION: lambda config: config.eval.period,
    Metric.ROLLOUT: lambda config: config.report.log_period,
}


def _reason(entries: Sequence[Any]) -> str | None:
    """A run that was resumed has entries after its `stopped`."""
    last = entries[-1] if entries else {}
    reason = last.get("reason") if last.get("event") == "stopped" else None
    return reason if isinstance(reason, str) else None


def _printable(name: str) -> str:
    """Folders may come from elsewhere: what steers a terminal is not let through."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


def _environment(config: Config) -> str:
    env = config.env
    return repr((sorted(env.kwargs.items()), env.wrappers, env.max_episode_steps))
