"""The console of a run: a live panel on a terminal, elsewhere plain lines of ASCII."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rookery.config import Config
from rookery.event import Evaluated, Event, Logged, Started, Stopped, Warned
from rookery.report.console.run_view import View
from rookery.report.number_format import clock, score, short

if TYPE_CHECKING:
    from rookery.report.console.live_panel import Live

SHOWN: dict[str, Callable[[float], str]] = {
    "rollout/exploration_rate": lambda x: f"eps {x:.2f}",
    "time/fps": lambda x: f"{short(x)} env/s",
    "time/learner_steps_per_s": lambda x: f"{short(x)} learn/s",
    "replay/fill": lambda x: f"fill {x:.0%}",
}


class Plain:
    """Sink that prints a status line every few seconds, and warnings and best scores at once."""

    def __init__(self, view: View, stream: TextIO, now: Callable[[], float]):
        self._view, self._stream, self._now = view, stream, now
        self._due = -float("inf")

    def write(self, event: Event) -> None:
        self._view.observe(event)
        if isinstance(event, Logged) and self._now() >= self._due:
            self._due = self._now() + self._view.config.report.plain_period_s
            self._print(status(self._view))
        elif isinstance(event, Started):
            self._print(_started(event))
        elif isinstance(event, Warned):
            self._print(f"warning ({event.kind}): {event.message}")
        elif isinstance(event, Evaluated) and event.best:
            self._print(f"best score {score(event.score)} at env_steps {event.counters.env_steps}")
        elif isinstance(event, Stopped):
            self._print(status(self._view), stopped(event))

    def close(self) -> None:
        self._stream.flush()

    def _print(self, *texts: str) -> None:
        write_lines(self._stream, [" ".join(text.split("\n")) for text in texts])


def write_lines(stream: TextIO, lines: Sequence[str]) -> None:
    """Writes lines in ASCII, which every stream can encode."""
    for line in lines:
        stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
    stream.flush()


def status(view: View) -> str:
    """Returns the status of a run in one line; unknown values are left out."""
    parts = [f"env_steps {view.counters.env_steps}/{view.config.run.env_steps}"]
    if "rollout/ep_rew_mean" in view.metrics:
        parts.append(f"return {score(view.metrics['rollout/ep_rew_mean'])}")
    if view.best is not None:
        target = view.config.eval.target
        goal = "" if target is None else f", target {target:g}"
        parts.append(f"score {score(view.scores[-1])} (best {score(view.best)}{goal})")
    parts += [show(view.metrics[name]) for name, show in SHOWN.items() if name in view.metrics]
    return "  ".join([*parts, f"({view.limit})"] if view.limit else parts)


def stopped(event: Stopped) -> str:
    """Returns a line about the end of a run: its reason, duration and best score."""
    parts = [
        f"stopped ({event.reason}) after {event.counters.env_steps} env steps, "
        f"{event.counters.learner_steps} learner steps, {event.counters.episodes} episodes "
        f"in {clock(event.wall_s)}"
    ]
    if event.best_score is not None:
        parts.append(f"best score {score(event.best_score)}")
    return "; ".join([*parts, "solved"] if event.solved else parts)


def _started(event: Started) -> str:
    about = "  ".join(
        f"{name} {value}" for name, value in event.about.items() if name != "estimate"
    )  # the launcher has printed the estimate before the run began
    how = f"resumed at env_steps {event.counters.env_steps}" if event.resumed else "started"
    return f"{how}  {about}  in {event.run_dir}"


def is_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a stream is a terminal with UTF-8, on which the panel can be drawn."""
    capable = environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and capable and utf8 and not environ.get("CI")


def open_console(
    config: Config,
    stream: TextIO,
    *,
    terminal: bool,
    scores: Sequence[float] = (),
    now: Callable[[], float] = time.monotonic,
) -> "Live | Plain":
    """Opens the console sink; `scores` are those of evaluations in earlier sessions.

    Colours follow NO_COLOR and TERM.
    """
    view = View(config, now, scores)
    if not terminal:
        return Plain(view, stream, now)
    from rich.console import Console

    from rookery.report.console.live_panel import Live

    return Live(view, Console(file=stream, force_terminal=True, highlight=False))
