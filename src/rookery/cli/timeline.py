"""Draw a chart of what each process of a run (actors, learner, evaluation) did over time."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.report.charts.timeline_lanes import History

EXAMPLES = """\
RUN/timeline.html opens in a browser. RUN/trace.json opens in https://ui.perfetto.dev, which shows
every recorded activity; the file does not leave your machine.

examples:
  rookery timeline runs/a
  rookery timeline runs/a --from 12 --to 14.5 --flow flow.html
"""
FLAGS = """
--out FILE  HTML chart to write (default: RUN/timeline.html)
--trace FILE  trace file to write, for the viewer Perfetto (default: RUN/trace.json)
--flow FILE  HTML page to write, with only the processes and the data rates between them
  (default: none)
--from S  start of the drawn time, in seconds since the run's first recorded activity (default: 0
  if --to is given, otherwise the start of the busiest three seconds)
--to S  end of the drawn time, in seconds since the run's first recorded activity (default: the
  run's end if --from is given, otherwise the end of the busiest three seconds)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_flags(parser, FLAGS, **{"from": float, "to": float})
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        from rookery.report.charts import timeline_lanes

    folder = Path(args.run)
    arguments.require_run(folder)
    history = timeline_lanes.load(folder)
    _refuse_nothing_traced(history, folder)
    answer = {
        "run_dir": str(folder),
        "processes": [lane.process for lane in history.lanes],
        "seconds": round(history.seconds, 6),
        **_draw(args, folder, history),
    }
    output.answer(args, answer, summary(answer, history))
    return 0


def _draw(args: argparse.Namespace, folder: Path, history: "History") -> dict[str, str | None]:
    from rookery.report.charts import perfetto
    from rookery.report.charts.flow_chart import flow_chart
    from rookery.report.charts.page import Page
    from rookery.report.charts.timeline_page import timeline_page

    name = folder.resolve().name
    window = _window(args, history)
    whole = (0.0, history.seconds)
    chosen = _asked_window(args) != (None, None)
    html, trace = args.out or folder / "timeline.html", args.trace or folder / "trace.json"
    output.write(html, "--out", [timeline_page(name, history, *window).html()])
    output.write(trace, "--trace", perfetto.lines(history, *(window if chosen else whole)))
    if args.flow is not None:
        flow = Page(f"{name}: data flow", [flow_chart(history)])
        output.write(args.flow, "--flow", [flow.html()])
    return {"html": str(html), "trace": str(trace), "flow": args.flow and str(args.flow)}


def _asked_window(args: argparse.Namespace) -> tuple[float | None, float | None]:
    """Returns --from and --to; `from` is a keyword of Python."""
    return vars(args)["from"], args.to


def _window(args: argparse.Namespace, history: "History") -> tuple[float, float]:
    """Returns start and end of the time to draw, in seconds since the run's first activity.

    Raises `ConfigError` if the interval is empty or outside the run.
    """
    from rookery.report.charts.timeline_lanes import WINDOW_S, busiest

    first, last = _asked_window(args)
    if first is None and last is None:
        return busiest(history, 0.0, history.seconds, WINDOW_S)
    began = 0.0 if first is None else first
    ended = history.seconds if last is None else min(last, history.seconds)
    if not 0 <= began < ended:
        raise ConfigError(
            f"--from {first} --to {last} is not within the run; give seconds from 0 to "
            f"{history.seconds:.3f}, the first below the second"
        )
    return began, ended


def summary(answer: dict[str, Any], history: "History") -> list[str]:
    """Returns lines of text: the run's bottleneck, and the files that were written."""
    from rookery.report.metrics.bottleneck import bottleneck

    files = [answer[key] for key in ("html", "trace", "flow") if answer[key]]
    return [
        f"{len(history.lanes)} processes over {history.seconds:.1f} s, "
        f"{bottleneck(history.shares).sentence}",
        *(f"  wrote {path}" for path in files),
    ]


def _refuse_nothing_traced(history: "History", folder: Path) -> None:
    if not history.lanes or history.seconds <= 0:
        raise ConfigError(
            f"{str(folder)!r} has no timeline, since nothing was traced; run it again with "
            "`--set report.timeline=true` (the default), for at least a few seconds"
        )
