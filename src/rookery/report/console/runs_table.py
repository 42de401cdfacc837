"""Several runs side by side: one row for each, on a terminal or as plain lines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rookery.report.number_format import count, score

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PLAIN_S = 5.0  # between two looks where there is no terminal
FOREIGN = "sharing/foreign_share"  # rows of other runs among all that were learned from
TITLES = ("run", "seed", "env steps", "score", "best", "foreign rows", "state")


class State(StrEnum):
    """Where a run is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    SOLVED = "solved"
    STOPPED = "stopped"
    FAILED = "failed"


STYLES: dict[State, str] = {
    State.STARTING: "dim",
    State.RUNNING: "",
    State.DONE: "green",
    State.SOLVED: "bold green",
    State.STOPPED: "yellow",
    State.FAILED: "bold red",
}


@dataclass
class Standing:
    """How far one run is, from its own record."""

    name: str
    seed: int
    goal: int  # env steps
    shares: bool
    env_steps: int = 0
    score: float | None = None
    best: float | None = None
    foreign: float | None = None  # share of the rows learned from
    state: State = State.STARTING

    def observe(self, entry: dict[str, Any]) -> None:
        """Takes in one entry of metrics.jsonl."""
        self.env_steps = max(self.env_steps, entry["env_steps"])
        if self.state is State.STARTING:
            self.state = State.RUNNING
        if entry["event"] == "evaluated":
            self.score = entry["score"]
            self.best = self.score if self.best is None else max(self.best, entry["score"])
        elif entry["event"] == "logged":
            self.foreign = entry["metrics"].get(FOREIGN, self.foreign)

    def cells(self) -> tuple[str, ...]:
        """Returns one text for each of TITLES."""
        return (
            self.name,
            str(self.seed),
            f"{count(self.env_steps)} / {count(self.goal)}",
            "-" if self.score is None else score(self.score),
            "-" if self.best is None else score(self.best),
            _foreign(self),
            self.state,
        )


def line(standing: Standing, width: int = 0) -> str:
    """Says one run in one line of plain text; `width` is that of the widest name."""
    name, _, steps, now, best, foreign, state = standing.cells()
    return (
        f"{name:{width}}  env_steps {steps.replace(' ', '')}  score {now} (best {best})  "
        f"foreign {foreign}  {state}"
    )


def table(standings: Sequence[Standing]) -> "Table":
    """Draws all runs for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for title in TITLES:
        drawn.add_column(title, justify="left" if title in ("run", "state") else "right")
    for standing in standings:
        *cells, state = standing.cells()
        drawn.add_row(*cells, Text(state, style=STYLES[standing.state]))
    return drawn


class Board:
    """Shows the standings: a table that stays in place, or lines every few seconds."""

    def __init__(
        self,
        standings: Sequence[Standing],
        stream: TextIO | None,
        *,
        terminal: bool,
        now: Callable[[], float] = time.monotonic,
    ):
        self._standings, self._stream, self._now = standings, stream, now
        self._width = max((len(one.name) for one in standings), default=0)
        self._due = now() + PLAIN_S
        self._live = _open(stream) if terminal and stream is not None else None

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the last standings where they can be read."""
        if self._live is not None:
            self._live.update(table(self._standings), refresh=True)
            self._live.stop()
        else:
            self._print()

    def show(self) -> None:
        """Shows how things are, where it is time to."""
        if self._live is not None:
            self._live.update(table(self._standings), refresh=True)
        elif self._now() >= self._due:
            self._due = self._now() + PLAIN_S
            self._print()

    def say(self, *lines: str) -> None:
        """Puts lines above the table, where they stay."""
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(*map(Text, lines), sep="\n")
        else:
            self._write(lines)

    def _print(self) -> None:
        self._write([line(one, self._width) for one in self._standings])

    def _write(self, lines: Sequence[str]) -> None:
        if self._stream is None:
            return
        for text in lines:
            self._stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        self._stream.flush()


def _open(stream: TextIO) -> "Live":
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, force_terminal=True, highlight=False)
    return Live(console=console, auto_refresh=False)


def _foreign(standing: Standing) -> str:
    if not standing.shares:
        return "alone"
    return "-" if standing.foreign is None else f"{standing.foreign:.1%}"
