"""The console where there is no terminal: plain lines, ASCII, one every few seconds."""

from collections.abc import Callable
from typing import TextIO

from rookery.event import Evaluated, Event, Logged, Started, Stopped, Warned
from rookery.report.console.run_view import View
from rookery.report.number_format import clock, score, short

SHOWN: dict[str, Callable[[float], str]] = {
    "rollout/exploration_rate": lambda x: f"eps {x:.2f}",
    "time/fps": lambda x: f"{short(x)} env/s",
    "time/learner_steps_per_s": lambda x: f"{short(x)} learn/s",
    "replay/fill": lambda x: f"fill {x:.0%}",
}


class Plain:
    """Writes a line when one is due, and one for each thing that should not be missed."""

    def __init__(self, view: View, stream: TextIO, now: Callable[[], float]):
        self._view, self._stream, self._now = view, stream, now
        self._due = -float("inf")

    def write(self, event: Event) -> None:
        self._view.observe(event)
        if isinstance(event, Logged):
            self._status_when_due()
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

    def _status_when_due(self) -> None:
        now = self._now()
        if now >= self._due:
            self._due = now + self._view.config.report.plain_period_s
            self._print(status(self._view))

    def _print(self, *texts: str) -> None:
        for text in texts:
            line = " ".join(text.split("\n"))
            self._stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
        self._stream.flush()


def status(view: View) -> str:
    """Says in one line how a run is doing; what is not known yet is left out."""
    parts = [f"env_steps {view.counters.env_steps}/{view.config.run.env_steps}"]
    parts += _judged(view)
    parts += [show(view.metrics[name]) for name, show in SHOWN.items() if name in view.metrics]
    return "  ".join([*parts, f"({view.limit})"] if view.limit else parts)


def stopped(event: Stopped) -> str:
    """Says why and with what a run ended."""
    parts = [
        f"stopped ({event.reason}) after {event.counters.env_steps} env steps, "
        f"{event.counters.learner_steps} learner steps, {event.counters.episodes} episodes "
        f"in {clock(event.wall_s)}"
    ]
    if event.best_score is not None:
        parts.append(f"best score {score(event.best_score)}")
    return "; ".join([*parts, "solved"] if event.solved else parts)


def _judged(view: View) -> list[str]:
    parts = []
    if "rollout/ep_rew_mean" in view.metrics:
        parts.append(f"return {score(view.metrics['rollout/ep_rew_mean'])}")
    if view.best is not None:
        target = view.config.eval.target
        goal = "" if target is None else f", target {target:g}"
        parts.append(f"score {score(view.scores[-1])} (best {score(view.best)}{goal})")
    return parts


def _started(event: Started) -> str:
    about = "  ".join(
        f"{name} {value}" for name, value in event.about.items() if name != "estimate"
    )  # the launcher has said it before anything was taken
    how = f"resumed at env_steps {event.counters.env_steps}" if event.resumed else "started"
    return f"{how}  {about}  in {event.run_dir}"
