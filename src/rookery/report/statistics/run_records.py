"""Reads run folders: settings, logged entries, and scores over env steps.

    runs, unread = load([Path("runs")], Metric.EVALUATION)
    runs[0].group, runs[0].task, runs[0].steps, runs[0].scores

A run may still be going on: what stands in its folder counts. Half a line at the end of its record,
and a line that is no entry of ours, are left out; `damaged` counts the latter.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from rookery.config.load import RUN_FILE, load_run
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.event import Reason
from rookery.report.number_format import printable
from rookery.report.trackers import jsonl, whole_lines
from rookery.types import Floats

EXACT = 2**53  # env steps beyond are no number of ours
Entry: TypeAlias = dict[str, Any]  # of metrics.jsonl
R = TypeVar("R")  # what is read of a run


class Metric(StrEnum):
    """Metrics by which runs can be compared."""

    EVALUATION = "eval/mean_reward"
    ROLLOUT = "rollout/ep_rew_mean"


class RunFolder(NamedTuple):
    """A run folder, as far as it can be read; the run may still be going on."""

    folder: Path
    config: Config
    entries: list[Entry]
    damaged: int  # lines of metrics.jsonl that are no entries

    @property
    def name(self) -> str:
        return str(self.folder) if self.folder.name else self.folder.resolve().name

    @property
    def last(self) -> Entry:
        """The newest entry, or an empty one; it is no `stopped` if the run was resumed later."""
        return self.entries[-1] if self.entries else {}

    @property
    def stopped(self) -> bool:
        return self.last.get("event") == "stopped"

    @property
    def warnings(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.get("event") == "warned"]


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
        """Whether the run stopped early because it had reached its target."""
        return self.reason == Reason.TARGET


class Loaded(NamedTuple, Generic[R]):
    """Runs that were read, and messages about those that could not be read."""

    runs: list[R]
    unread: list[str]  # what could not be read, and why


def load(given: Sequence[Path], metric: Metric) -> Loaded[RunRecord]:
    """Reads the scores of the runs in the given folders."""
    return load_each(given, lambda folder: read(folder, metric))


def load_each(given: Sequence[Path], read: Callable[[Path], R]) -> Loaded[R]:
    """Reads the runs in the given folders, each once, in the order given.

    A folder is that of a run, or has runs inside, one or two levels down. A run that was named and
    cannot be read is refused; one that was come across is left out.
    """
    runs: dict[Path, R] = {}
    unread: list[str] = []
    for path in given:
        for folder in find(path):
            if folder.resolve() in runs:
                continue
            try:
                runs[folder.resolve()] = read(folder)
            except ConfigError as error:
                if folder == path:
                    raise
                unread.append(f"left out: {error}")
    return Loaded(list(runs.values()), unread)


def find(path: Path) -> list[Path]:
    """Returns the folder if it is a run folder, otherwise those one or two levels below."""
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
    """Reads the scores of a run; one without a single score has empty `scores`."""
    run = read_folder(folder)
    config, env = run.config, run.config.env
    points, missing = series(run.entries, metric)
    reason = run.last.get("reason") if run.stopped else None
    return RunRecord(
        folder=folder,
        group=printable(config.report.tag or config.name),
        task=printable(env.id),
        seed=config.run.seed,
        target=config.eval.target,
        budget=config.run.env_steps,
        period=config.eval.period if metric is Metric.EVALUATION else config.report.log_period,
        env=repr((sorted(env.kwargs.items()), env.wrappers, env.max_episode_steps)),
        steps=np.array(list(points), dtype=np.float64),
        scores=np.array(list(points.values()), dtype=np.float64),
        last_step=max((entry["env_steps"] for entry in run.entries), default=0),
        reason=reason if isinstance(reason, str) else None,
        damaged=run.damaged,
        missing=missing,
    )


def read_folder(folder: Path) -> RunFolder:
    """Reads settings and metrics.jsonl of a run, or raises `ConfigError`."""
    config = load_run(folder)
    try:
        texts = whole_lines.read(folder / jsonl.NAME)
    except OSError as error:
        raise ConfigError(
            f"{str(folder / jsonl.NAME)!r} cannot be read: {error.strerror}; "
            "make it readable, or leave that run out"
        ) from error
    parsed = [entry for entry in map(jsonl.parse, texts) if entry is not None]
    entries = [entry for entry in parsed if 0 <= entry["env_steps"] < EXACT]
    return RunFolder(folder, config, entries, len(texts) - len(entries))


def series(entries: Iterable[Entry], name: str) -> tuple[dict[int, float], int]:
    """Returns a metric by env steps, in order, and how many of its values are no finite number.

    Of two values at the same env steps the later counts.
    """
    points: dict[int, float] = {}
    missing = 0
    for entry in entries:
        values = entry.get("metrics")
        if name == Metric.EVALUATION and entry.get("event") == "evaluated":
            values = {name: entry.get("score")}
        if not isinstance(values, dict) or name not in values:
            continue
        number = finite(values[name])
        if number is None:
            missing += 1
        else:
            points[entry["env_steps"]] = number
    return dict(sorted(points.items())), missing


def finite(value: object) -> float | None:
    """Returns a value of metrics.jsonl as a float, None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and not math.isnan(value) else None
