"""Where events go: every sink, in one fan-out that no failure gets through.

check(config)                                          # before anything starts: ConfigError
sinks = make_sinks(run_dir, config, resumed_at=None, stream=sys.stdout, terminal=True)
for event in events:
    for warned in sinks.write(event): ...              # the sinks have seen it already
sinks.close()
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from rookery.config import Config
from rookery.config.schema import ReportConfig
from rookery.event import Counters, Event, Warned
from rookery.report import gif
from rookery.report.console.open_console import open_console
from rookery.report.trackers import csv, jsonl, timeline_file, wandb
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
    """Takes events until it is closed. May raise: `Sinks` catches."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SinkSetup:
    """What sinks are made from."""

    run_dir: Path
    config: Config
    resumed_at: int | None  # env steps
    stream: TextIO | None
    terminal: bool
    past: list[dict[str, Any]]  # metrics.jsonl of earlier sessions


@dataclass
class _Slot:
    """A sink and its standing."""

    sink: Sink
    failures: int = 0  # in a row
    reported: bool = False

    @property
    def on(self) -> bool:
        return self.failures < PATIENCE


class Sinks:
    """Hands each event to every sink. A sink that fails is reported once, to all the others."""

    def __init__(self, sinks: Mapping[str, Sink], failed: Mapping[str, Exception] | None = None):
        self._slots = {name: _Slot(sink) for name, sink in sinks.items()}
        self._failed = dict(failed or {})  # could not be opened; reported with the first event
        self._counters = Counters()

    def write(self, event: Event) -> list[Warned]:
        """Returns what went wrong; the sinks that work have been told already."""
        self._counters = event.counters
        warned = [self._warning(name, "open", reason) for name, reason in self._failed.items()]
        self._failed.clear()
        return warned + self._spread([event, *warned])

    def close(self) -> list[Warned]:
        """Closes every sink; of two that fail, the second is closed all the same."""
        warned = []
        for name, slot in self._slots.items():
            try:
                slot.sink.close()
            except Exception as reason:  # a third party's code: see `_try`
                warned.append(self._warning(name, "close", reason))
        return warned

    def _spread(self, events: list[Event]) -> list[Warned]:
        warned: list[Warned] = []
        waiting: deque[tuple[Event, str]] = deque((event, "") for event in events)
        while waiting:  # ends: each sink adds one warning at most
            event, author = waiting.popleft()
            for name, slot in self._slots.items():
                reason = self._try(slot, event) if slot.on and name != author else None
                if reason is not None and not slot.reported:
                    slot.reported = True
                    warned.append(self._warning(name, "write", reason))
                    waiting.append((warned[-1], name))
        return warned

    def _try(self, slot: _Slot, event: Event) -> Exception | None:
        try:
            slot.sink.write(event)
        except Exception as reason:  # disks, terminals and trackers fail; a run must not
            slot.failures += 1
            return reason
        slot.failures = 0
        return None

    def _warning(self, name: str, verb: str, reason: Exception) -> Warned:
        what = f"{name} failed to {verb}: {type(reason).__name__}: {reason}"
        return Warned(self._counters, "sink", f"{what}; {FATE[verb]}")


def _tensorboard(setting: SinkSetup) -> Sink:
    walls = [entry["wall_s"] for entry in setting.past if entry.get("wall_s") is not None]
    return TensorBoard(
        setting.run_dir, resumed_at=setting.resumed_at, resumed_s=max(walls, default=0.0)
    )


def _console(setting: SinkSetup) -> Sink:
    assert setting.stream is not None, "chosen only where there is a stream"
    scores = [entry["score"] for entry in setting.past if entry.get("score") is not None]
    return open_console(setting.config, setting.stream, terminal=setting.terminal, scores=scores)


SINKS: dict[str, Callable[[SinkSetup], Sink]] = {
    "console": _console,  # first: the others take a second to open
    "jsonl": lambda setting: Jsonl(setting.run_dir),
    "csv": lambda setting: Csv(setting.run_dir),
    "timeline": lambda setting: Timeline(setting.run_dir),
    "tensorboard": _tensorboard,
    "wandb": lambda setting: Wandb(setting.run_dir, setting.config),
}
FILES = (jsonl.NAME, csv.NAME, timeline_file.NAME, "tb", "wandb")  # in a run folder


def check(config: Config) -> None:
    """Refuses what cannot be reported here, before anything is started; imports nothing."""
    if config.report.wandb:
        wandb.require()
    if config.eval.record:
        gif.require()


def make_sinks(
    run_dir: Path,
    config: Config,
    *,
    resumed_at: int | None,
    stream: TextIO | None,
    terminal: bool,
) -> Sinks:
    """Opens what the config asks for; the console where there is a stream.

    `resumed_at` is the mark `cut` was called with; None for a new run, and None when only the
    process of the sinks was started again: everything then goes on behind what is there.
    """
    check(config)
    setting = SinkSetup(run_dir, config, resumed_at, stream, terminal, _past(run_dir))
    opened: dict[str, Sink] = {}
    failed: dict[str, Exception] = {}
    for name in _wanted(config.report, stream):
        try:
            opened[name] = SINKS[name](setting)
        except Exception as reason:  # disks, terminals and trackers fail; a run must not
            failed[name] = reason
    return Sinks(opened, failed)


def _past(run_dir: Path) -> list[dict[str, Any]]:
    try:
        return jsonl.read(run_dir)
    except OSError:  # the sink that cannot open the same file says so
        return []


def _wanted(config: ReportConfig, stream: TextIO | None) -> list[str]:
    on = {
        "console": stream is not None,
        "timeline": config.timeline,
        "tensorboard": config.tensorboard,
        "wandb": config.wandb,
    }
    return [name for name in SINKS if on.get(name, True)]
