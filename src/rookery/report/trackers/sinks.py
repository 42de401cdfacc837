"""Sends events to every sink (log file, tracker, console); a sink that fails stops no run.

check(config)                                          # before anything starts: ConfigError
sinks = make_sinks(run_dir, config, resumed_at=None, stream=sys.stdout, terminal=True)
for event in events:
    for warned in sinks.write(event): ...              # the sinks have seen it already
sinks.close()
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from rookery.config import Config
from rookery.event import Counters, Event, Warned
from rookery.report import video
from rookery.report.console.plain_lines import open_console
from rookery.report.trackers import jsonl, wandb
from rookery.report.trackers.csv import Csv
from rookery.report.trackers.jsonl import Jsonl
from rookery.report.trackers.tensorboard import TensorBoard
from rookery.report.trackers.timeline_file import Timeline
from rookery.report.trackers.wandb import Wandb

PATIENCE = 3  # failures in a row before a sink is switched off
FATE = {
    "open": "the run goes on without it",
    "write": f"the run goes on, and without it after {PATIENCE} failures in a row",
    "close": "its last lines may be missing",
}


class Sink(Protocol):
    """Interface of a sink, such as a log file; `Sinks` catches what it raises."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Sinks:
    """Sends each event to all sinks. A sink that fails is reported once, to the other sinks."""

    def __init__(self, sinks: Mapping[str, Sink], failed: Mapping[str, Exception] | None = None):
        self._sinks = sinks
        self._failed = dict(failed or {})  # could not be opened; reported with the first event
        self._failures = dict.fromkeys(sinks, 0)  # in a row
        self._reported: set[str] = set()
        self._counters = Counters()

    def write(self, event: Event) -> list[Warned]:
        """Returns warnings about sinks that failed, which the other sinks have logged already."""
        self._counters = event.counters
        warned = [self._warning(name, "open", reason) for name, reason in self._failed.items()]
        self._failed.clear()
        waiting: list[tuple[Event, str]] = [(each, "") for each in (event, *warned)]
        for each, failing in waiting:  # grows by one warning of each sink at most
            for name, sink in self._sinks.items():
                if name == failing or self._failures[name] >= PATIENCE:
                    continue
                reason = _failure(sink.write, each)
                self._failures[name] = self._failures[name] + 1 if reason else 0
                if reason and name not in self._reported:
                    self._reported.add(name)
                    warned.append(self._warning(name, "write", reason))
                    waiting.append((warned[-1], name))
        return warned

    def close(self) -> list[Warned]:
        """Closes all sinks, even after one failed; returns warnings about those that failed."""
        failed = {name: _failure(sink.close) for name, sink in self._sinks.items()}
        return [self._warning(name, "close", reason) for name, reason in failed.items() if reason]

    def _warning(self, name: str, verb: str, reason: Exception) -> Warned:
        what = f"{name} failed to {verb}: {type(reason).__name__}: {reason}"
        return Warned(self._counters, "sink", f"{what}; {FATE[verb]}")


def _failure(call: Callable[..., object], *arguments: Event) -> Exception | None:
    """Returns the error of a call, or None: a failing disk or tracker must not stop a run."""
    try:
        call(*arguments)
    except Exception as reason:
        return reason
    return None


def check(config: Config) -> None:
    """Raises `ConfigError` if a package for the configured sinks or recordings is missing."""
    if config.report.wandb:
        wandb.require()
    if config.eval.record:
        video.require("gif")


def make_sinks(
    run_dir: Path,
    config: Config,
    *,
    resumed_at: int | None,
    stream: TextIO | None,
    terminal: bool,
) -> Sinks:
    """Opens the sinks that the settings ask for, and the console if there is a stream.

    `resumed_at` is the mark `cut` was called with; None for a new run, and None when only the
    process of the sinks was started again: everything is then appended to what is there.
    """
    check(config)
    scores, last_s = _past(run_dir)
    tensorboard = partial(TensorBoard, run_dir, resumed_at=resumed_at, resumed_s=last_s)
    console = partial(open_console, config, terminal=terminal, scores=scores)
    wanted: dict[str, Callable[[], Sink] | None] = {
        "console": partial(console, stream) if stream else None,  # first: it opens at once
        "jsonl": partial(Jsonl, run_dir),
        "csv": partial(Csv, run_dir),
        "timeline": partial(Timeline, run_dir) if config.report.timeline else None,
        "tensorboard": tensorboard if config.report.tensorboard else None,
        "wandb": partial(Wandb, run_dir, config) if config.report.wandb else None,
    }
    opened: dict[str, Sink] = {}
    failed: dict[str, Exception] = {}
    for name, make in wanted.items():
        try:
            opened |= {name: make()} if make else {}
        except Exception as reason:  # as in `_failure`
            failed[name] = reason
    return Sinks(opened, failed)


def _past(run_dir: Path) -> tuple[list[float], float]:
    """Returns the scores of earlier sessions, and the wall seconds at which the last one ended."""
    try:
        entries = jsonl.read(run_dir)
    except OSError:  # the sink that cannot open the same file says so
        entries = []
    scores, walls = (
        [entry[name] for entry in entries if isinstance(entry.get(name), int | float)]
        for name in ("score", "wall_s")
    )
    return scores, max(walls, default=0.0)
