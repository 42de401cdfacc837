"""Compares groups of runs: scores, spread, speed and who beats whom, with intervals."""

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.report.comparison import Comparison, Question
    from rookery.report.runs import Metric
    from rookery.report.tables import Section

FEWEST, MOST = 100, 100_000  # bootstrap draws
EXAMPLES = """\
RUN is a run folder, or a folder with runs one or two levels down. Runs are grouped by their tag
(`rookery train --tag`), those without one by their scenario.

examples:
  rookery compare runs
  rookery compare runs --tag local --tag shared --html compared.html
  rookery compare runs/a runs/b --threshold 475 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", nargs="+", type=Path, metavar="RUN", help="runs, or folders of runs")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="only this group; can be repeated"
    )
    parser.add_argument("--baseline", metavar="TAG", help="the group to beat: the first")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=threshold,
        metavar="[ENV=]SCORE",
        help="score to be reached: eval.target of each run; ENV= where there are several tasks",
    )
    parser.add_argument(
        "--metric",
        default="eval/mean_reward",
        metavar="NAME",
        help="eval/mean_reward (default) or rollout/ep_rew_mean",
    )
    parser.add_argument(
        "--reps", type=arguments.count, default=2_000, metavar="N", help="bootstrap draws: 2000"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws: 0")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also a page with curves")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def threshold(text: str) -> tuple[str, float]:
    """Reads `475` or `CartPole-v1=475`."""
    env, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"needs SCORE or ENV=SCORE, got {text!r}")
    return env, value


def run(args: argparse.Namespace) -> int:
    with signals.abrupt():
        from rookery.report import comparison, runs
        from rookery.report.stats import LEVEL

    question = _question(args)
    loaded = runs.load(args.run, question.metric)
    found = comparison.compare(loaded.runs, question)
    found = found._replace(notes=[*loaded.unread, *found.notes])
    if args.html is not None:
        from rookery.report.sheet import sheet

        output.write(args.html, "--html", [sheet(found, question)])
    if args.json:
        settings = {"reps": question.reps, "seed": question.seed, "level": LEVEL}
        html = {"html": args.html and str(args.html)}
        output.say_json(comparison.as_dict(found) | settings | html)
    else:
        _show(found, args.html)
    return 0


def _question(args: argparse.Namespace) -> "Question":
    from rookery.report.comparison import Question

    if not FEWEST <= args.reps <= MOST:
        raise ConfigError(
            f"--reps must be from {FEWEST} to {MOST:,}, got {args.reps}; leave it out for 2000"
        )
    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}; leave it out for 0")
    return Question(
        metric=_metric(args.metric),
        thresholds=dict(args.threshold),
        reps=args.reps,
        seed=args.seed,
        tags=args.tag,
        baseline=args.baseline,
    )


def _metric(given: str) -> "Metric":
    from rookery.config.parse import nearest
    from rookery.report.runs import Metric

    allowed = [str(name) for name in Metric]
    if given not in allowed:
        near = nearest(given, allowed) or allowed[0]
        raise ConfigError(
            f"--metric must be one of {', '.join(allowed)}, got {given!r}; did you mean {near!r}?"
        )
    return Metric(given)


def _show(found: "Comparison", html: Path | None) -> None:
    from rookery.report.tables import sections

    for section in sections(found):
        _table(section)
    notes = [f"  {note}" for note in found.notes]
    output.say(*(["before you believe it:", *notes] if notes else []))
    if html is not None:
        output.say(f"  wrote {html}")


def _table(section: "Section") -> None:
    """Prints a table: with lines on a terminal, plain for everything else."""
    if not sys.stdout.isatty():
        output.say(section.title, *output.table(section.rows), "")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    head, *rows = section.rows
    table = Table(title=Text(section.title), title_justify="left")
    for cell in head:
        table.add_column(Text(cell))
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
