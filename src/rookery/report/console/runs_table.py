"""Several runs side by side: one row for each, on a terminal or as plain lines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from rookery.report.console.plain_lines import write_lines
from rookery.report.number_format import count, or_dash, score

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PLAIN_S = 5.0  # between two looks where there is no terminal
FOREIGN = "sharing/foreign_share"  # rows of other runs among all that were learned from
TITLES = ("run", "seed", "env steps", "score", "best", "foreign rows", "state")


class State(StrEnum):
    """State of a run."""

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
    """Progress of one run, from its metrics.jsonl."""

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
        """Updates the progress with one entry of metrics.jsonl."""
        self.env_steps = max(self.env_steps, entry["env_steps"])
        if self.state is State.STARTING:
            self.state = State.RUNNING
        if entry["event"] == "evaluated":
            self.score = entry["score"]
            self.best = self.score if self.best is None else max(self.best, entry["score"])
        elif entry["event"] == "logged":
            self.foreign = entry["metrics"].get(FOREIGN, self.foreign)

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of the run's row, one for each of TITLES."""
        return (
            self.name,
            str(self.seed),
            f"{count(self.env_steps)} / {count(self.goal)}",
            or_dash(self.score, score),
            or_dash(self.best, score),
            or_dash(self.foreign, "{:.1%}".format) if self.shares else "alone",
            self.state,
        )


def line(standing: Standing, width: int = 0) -> str:
    """Returns the progress of one run as a line of text; `width` is that of the widest name."""
    name, _, steps, now, best, foreign, state = standing.cells()
    return (
        f"{name:{width}}  env_steps {steps.replace(' ', '')}  score {now} (best {best})  "
        f"foreign {foreign}  {state}"
    )


def table(standings: Sequence[Standing]) -> "Table":
    """Returns a table of all runs for a terminal."""
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
    """Shows the progress of several runs: a live table on a terminal, lines elsewhere."""

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
        self._live: Live | None = None
        if terminal and stream is not None:
            from rich import console, live

            screen = console.Console(file=stream, force_terminal=True, highlight=False)
            self._live = live.Live(console=screen, auto_refresh=False)
            self._live.start()

    def show(self, *, last: bool = False) -> None:
        """Updates the table, or prints lines if some seconds have passed or with `last`."""
        if self._live is not None:
            self._live.update(table(self._standings), refresh=True)
        elif last or self._now() >= self._due:
            self._due = self._now() + PLAIN_S
            self.say(*(line(one, self._width) for one in self._standings))

    def say(self, *lines: str) -> None:
        """Prints lines above the table."""
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(*map(Text, lines), sep="\n")
        elif self._stream is not None:
            write_lines(self._stream, lines)

    def close(self) -> None:
        """Shows the final progress of all runs, and ends the live table."""
        self.show(last=True)
        if self._live is not None:
            self._live.stop()
