"""Draws what each process of a run did when."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli import output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.report.lanes import History

EXAMPLES = """\
RUN/timeline.html is for a browser, RUN/trace.json for https://ui.perfetto.dev, which shows every
span and reads the file on your machine.

examples:
  rookery timeline runs/a
  rookery timeline runs/a --from 12 --to 14.5 --flow flow.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the chart (HTML): RUN/timeline.html"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="the trace for Perfetto: RUN/trace.json"
    )
    parser.add_argument(
        "--flow", type=Path, metavar="FILE", help="also draw processes and data rates (SVG)"
    )
    parser.add_argument(
        "--from",
        dest="began",
        type=float,
        metavar="S",
        help="seconds since the run's first span; the busiest three seconds unless given",
    )
    parser.add_argument("--to", dest="ended", type=float, metavar="S", help="the same")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    with signals.abrupt():
        from rookery.report import lanes

    folder = Path(args.run)
    _refuse_no_run(folder)
    history = lanes.load(folder)
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
    from rookery.report import perfetto
    from rookery.report.flow import flow
    from rookery.report.page import page

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
    """Returns what was asked for, inside the run."""
    from rookery.report.lanes import WINDOW_S, busiest

    if args.began is None and args.ended is None:
        return busiest(history, 0.0, history.seconds, WINDOW_S)
    began = 0.0 if args.began is None else args.began
    ended = history.seconds if args.ended is None else min(args.ended, history.seconds)
    if not 0 <= began < ended:
        raise ConfigError(
            f"--from {args.began} --to {args.ended} is no part of the run; allowed are seconds "
            f"from 0 to {history.seconds:.3f}, the first below the second"
        )
    return began, ended


def summary(answer: dict[str, Any], history: "History") -> list[str]:
    """Says what limits the run and where the pictures are."""
    from rookery.report.bottleneck import bottleneck

    files = [answer[key] for key in ("html", "trace", "flow") if answer[key]]
    return [
        f"{len(history.lanes)} processes over {history.seconds:.1f} s, "
        f"{bottleneck(history.shares, 1.0).sentence}",
        *(f"  wrote {path}" for path in files),
    ]


def _refuse_no_run(folder: Path) -> None:
    from rookery.config.load import load_run

    load_run(folder)


def _refuse_nothing_traced(history: "History", folder: Path) -> None:
    if not history.lanes or history.seconds <= 0:
        raise ConfigError(
            f"{str(folder)!r} has no timeline: nothing was traced; run it again with "
            "`--set report.timeline=true` (the default), for a few seconds at least"
        )
