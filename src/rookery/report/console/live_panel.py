"""The console on a terminal: a panel that stays in place, messages above it."""

from collections.abc import Callable

from rich import live
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rookery.event import Event, Reason, Stopped, Warned
from rookery.report.console.plain_lines import stopped
from rookery.report.console.run_view import View
from rookery.report.number_format import age, clock, count, or_dash, score, short, spark

RATE = 4.0  # drawings per second
WIDEST = 120  # columns; wider only moves the numbers apart
NARROW = 78  # columns; below, the figures stand in two pairs of columns instead of four
BAD = (Reason.FAILED, Reason.INTERRUPTED, Reason.TERMINATED)

FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("return", "rollout/ep_rew_mean", score),
    ("env steps/s", "time/fps", short),
    ("replay fill", "replay/fill", "{:.0%}".format),
    ("CPU", "system/cpu_percent", "{:.0f}%".format),
    ("epsilon", "rollout/exploration_rate", "{:.3f}".format),
    ("learner steps/s", "time/learner_steps_per_s", short),
    ("samples/insert", "replay/samples_per_insert", "{:.1f}".format),
    ("memory", "system/memory_mb", lambda x: f"{short(x * 1e6)}B"),
    ("episodes", "episodes", lambda x: count(int(x))),
    ("policy lag", "actors/policy_lag", "{:.0f}".format),
    ("checkpoint age", "checkpoint_age_s", age),
    ("faults", "faults", str),
)  # title, name in `View.figures`, how it is shown; read downwards: play, speed, replay, machine


class _Display(live.Live):
    """Display that stores an error of drawing, which happens in a thread of rich's."""

    failure: Exception | None = None

    def refresh(self) -> None:
        try:
            super().refresh()
        except Exception as failure:  # a terminal may go away in many ways; none ends a run
            self.failure = failure


class Live:
    """Sink that draws the panel four times a second, in its own thread."""

    def __init__(self, view: View, console: Console, rate: float = RATE):
        self._view, self._console = view, console
        self._display = _Display(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=rate,
            vertical_overflow="crop",
        )
        self._display.start(refresh=True)

    def write(self, event: Event) -> None:
        if self._display.failure is not None:
            raise self._display.failure
        self._view.observe(event)
        if isinstance(event, Warned):
            text = f"warning ({event.kind}): {event.message}"
            self._console.print(Text(text, style="yellow"))
        elif isinstance(event, Stopped):
            self.close()
            style = "bold red" if event.reason in BAD else "bold green"
            self._console.print(Text(stopped(event), style=style))

    def close(self) -> None:
        """Leaves the last panel on the screen and shows the cursor again."""
        self._display.stop()

    def _draw(self) -> RenderableType:
        return panel(self._view, min(WIDEST, self._console.width))


def panel(view: View, width: int) -> Panel:
    """Returns the panel of a run: nine rows, or twelve on a narrow terminal."""
    narrow = width < NARROW
    rows = Group(
        _bar(view, narrow),
        "",
        _scores(view, width),
        Text(view.limit, style="dim", no_wrap=True, overflow="ellipsis"),
        _figures(view, 2 if narrow else 4),
    )
    return Panel(
        rows,
        title=_title(view, width - 6),
        title_align="left",
        subtitle=_crop(view.run_dir, width - 10),
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


def _title(view: View, width: int) -> Text:
    about = {"scenario": view.config.name, "seed": view.config.run.seed, **view.about}
    title = Text.assemble(
        ("rookery ", "not dim bold cyan"), (str(about.pop("scenario")), "not dim bold")
    )
    for name, value in about.items():
        part = f" · {name} {value}"
        if len(title) + len(part) <= width:
            title.append(part, style="not dim")
    return title


def _crop(text: str, width: int) -> Text:
    """Cuts a path at its start, since its end tells runs apart."""
    return Text(text if len(text) <= width else "…" + text[-width + 1 :], style="not dim")


def _bar(view: View, narrow: bool) -> Table:
    share, total = view.progress, view.config.run.env_steps
    texts = [f"{share:4.0%}", f"{count(view.counters.env_steps)} / {count(total)} env steps"]
    texts = [*(texts[:1] if narrow else texts), _clocks(view)]
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    for _ in texts:
        grid.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green")
    grid.add_row(bar, *texts)
    return grid


def _clocks(view: View) -> str:
    if view.stopped is not None:
        return clock(view.wall_s)
    left = "-:--" if view.eta_s is None else clock(view.eta_s)
    bound = "≤ " if view.config.eval.target is not None else ""
    return f"{clock(view.wall_s)}  ETA {bound}{left}"


def _scores(view: View, width: int) -> Text:
    target, last = view.config.eval.target, view.scores[-1] if view.scores else None
    reached = target is not None and last is not None and last >= target
    text = Text.assemble(
        ("score ", "dim"), (or_dash(last, score), "bold green" if reached else "bold")
    )
    text.append("   best ", "dim").append(or_dash(view.best, score))
    if target is not None:
        text.append("   target ", "dim").append(f"{target:g}")
    text.append("   ").append(spark(view.scores, width - 7 - len(text)), "cyan")
    text.no_wrap, text.overflow = True, "crop"
    return text


def _figures(view: View, pairs: int) -> Table:
    """Returns a table of metrics, with `pairs` of name and value in each row."""
    grid = Table.grid(padding=(0, 1), expand=True)
    for pair in range(pairs):
        if pair:
            grid.add_column(ratio=1)
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True, min_width=5)
    known = view.figures
    cells = [(title, or_dash(known.get(name), show)) for title, name, show in FIGURES]
    for at in range(0, len(cells), pairs):
        first, *rest = cells[at : at + pairs]
        grid.add_row(*first, *(text for cell in rest for text in ("", *cell)))
    return grid
