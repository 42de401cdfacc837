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
  rookery timeline runs/a --from 12 --to 14.5 --flow flow.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    arguments.add_run(parser)
    parser.add_argument(
        "--out",
        type=arguments.path,
        metavar="FILE",
        help="HTML chart to write (default RUN/timeline.html)",
    )
    parser.add_argument(
        "--trace",
        type=arguments.path,
        metavar="FILE",
        help="trace file to write, for the viewer Perfetto (default RUN/trace.json)",
    )
    parser.add_argument(
        "--flow",
        type=arguments.path,
        metavar="FILE",
        help="SVG diagram to write, of processes and the data rates between them (default: none)",
    )
    parser.add_argument(
        "--from",
        dest="began",
        type=float,
        metavar="S",
        help="start of the drawn time, in seconds since the run's first recorded activity "
        "(default: 0 if --to is given, otherwise the start of the busiest three seconds)",
    )
    parser.add_argument(
        "--to",
        dest="ended",
        type=float,
        metavar="S",
        help="end of the drawn time, in seconds since the run's first recorded activity "
        "(default: the run's end if --from is given, otherwise the end of the busiest three "
        "seconds)",
    )
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
    if args.json:
        output.say_json(answer)
    else:
        output.say(*summary(answer, history))
    return 0


def _draw(args: argparse.Namespace, folder: Path, history: "History") -> dict[str, str | None]:
    from rookery.report.charts import perfetto
    from rookery.report.charts.data_flow import flow
    from rookery.report.charts.timeline_page import page

    name = folder.resolve().name
    window = _window(args, history)
    whole = (0.0, history.seconds)
    chosen = args.began is not None or args.ended is not None
    html, trace = args.out or folder / "timeline.html", args.trace or folder / "trace.json"
    output.write(html, "--out", [page(name, history, *window)])
    output.write(trace, "--trace", perfetto.lines(history, *(window if chosen else whole)))
    if args.flow is not None:
        output.write(args.flow, "--flow", [flow(name, history)])
    return {"html": str(html), "trace": str(trace), "flow": args.flow and str(args.flow)}


def _window(args: argparse.Namespace, history: "History") -> tuple[float, float]:
    """Returns start and end of the time to draw, in seconds since the run's first activity.

    Raises `ConfigError` if the interval is empty or outside the run.
    """
    from rookery.report.charts.timeline_lanes import WINDOW_S, busiest

    if args.began is None and args.ended is None:
        return busiest(history, 0.0, history.seconds, WINDOW_S)
    began = 0.0 if args.began is None else args.began
    ended = history.seconds if args.ended is None else min(args.ended, history.seconds)
    if not 0 <= began < ended:
        raise ConfigError(
            f"--from {args.began} --to {args.ended} is not within the run; give seconds from 0 to "
            f"{history.seconds:.3f}, the first below the second"
        )
    return began, ended


def summary(answer: dict[str, Any], history: "History") -> list[str]:
    """Returns lines of text: the run's bottleneck, and the files that were written."""
    from rookery.report.metrics.bottleneck import bottleneck

    files = [answer[key] for key in ("html", "trace", "flow") if answer[key]]
    return [
        f"{len(history.lanes)} processes over {history.seconds:.1f} s, "
        f"{bottleneck(history.shares, 1.0).sentence}",
        *(f"  wrote {path}" for path in files),
    ]


def _refuse_nothing_traced(history: "History", folder: Path) -> None:
    if not history.lanes or history.seconds <= 0:
        raise ConfigError(
            f"{str(folder)!r} has no timeline, since nothing was traced; run it again with "
            "`--set report.timeline=true` (the default), for at least a few seconds"
        )
