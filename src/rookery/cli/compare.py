"""Compare groups of training runs, with bootstrap confidence intervals.

Reports final and best scores, their spread over runs, and the env steps to reach a threshold score.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.report.statistics.comparison import Comparison, Question
    from rookery.report.statistics.comparison_tables import Section
    from rookery.report.statistics.run_records import Metric

FEWEST, MOST = 100, 100_000  # bootstrap samples
EXAMPLES = """\
RUN is a run folder, or a folder with runs one or two levels down. Runs are grouped by their tag
(`rookery train --tag`), or by their scenario (named training configuration) if they have none.
Unfinished runs count up to their last step and are flagged.

examples:
  rookery compare runs
  rookery compare runs --tag local --tag shared --html compared.html
  rookery compare runs/a runs/b --threshold 475 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        nargs="+",
        type=arguments.path,
        metavar="RUN",
        help="folders of training runs, or their parents",
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="compare only the group of runs with this tag; repeatable (default: all groups)",
    )
    parser.add_argument(
        "--baseline",
        metavar="TAG",
        help="tag of the group that the other groups are compared with (default: the first group)",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=threshold,
        metavar="[ENV=]SCORE",
        help="score for which to report how many env steps each run took to reach it; ENV=SCORE "
        "sets it for one environment (default: the target score of each run, eval.target)",
    )
    parser.add_argument(
        "--metric",
        default="eval/mean_reward",
        metavar="NAME",
        help="score to compare: eval/mean_reward (evaluation episodes) or rollout/ep_rew_mean "
        "(training episodes) (default eval/mean_reward)",
    )
    parser.add_argument(
        "--reps",
        type=arguments.count,
        default=2_000,
        metavar="N",
        help="number of bootstrap samples for the confidence intervals (default 2000)",
    )
    parser.add_argument(
        "--seed",
        type=arguments.whole,
        default=0,
        metavar="S",
        help="seed of the bootstrap samples (default 0)",
    )
    parser.add_argument(
        "--html",
        type=arguments.path,
        metavar="FILE",
        help="HTML page to write, with tables and learning curves (default: none)",
    )
    arguments.add_json(parser)


def threshold(text: str) -> tuple[str, float]:
    """Parses a threshold score, `475` or `CartPole-v1=475`; returns environment and score.

    The environment is an empty string if none is given.
    """
    env, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"needs SCORE or ENV=SCORE, got {text!r}")
    return env, value


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        from rookery.report.statistics import comparison, run_records
        from rookery.report.statistics.bootstrap import LEVEL

    question = _question(args)
    loaded = run_records.load(args.run, question.metric)
    found = comparison.compare(loaded.runs, question)
    found = found._replace(notes=[*loaded.unread, *found.notes])
    if args.html is not None:
        from rookery.report.charts.comparison_page import sheet

        output.write(args.html, "--html", [sheet(found, question)])
    if args.json:
        settings = {"reps": question.reps, "seed": question.seed, "level": LEVEL}
        html = {"html": args.html and str(args.html)}
        output.say_json(comparison.as_dict(found) | settings | html)
    else:
        _show(found, args.html)
    return 0


def _question(args: argparse.Namespace) -> "Question":
    from rookery.report.statistics.comparison import Question

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
    from rookery.report.statistics.run_records import Metric

    allowed = [str(name) for name in Metric]
    if given not in allowed:
        near = nearest(given, allowed) or allowed[0]
        raise ConfigError(
            f"--metric must be one of {', '.join(allowed)}, got {given!r}; did you mean {near!r}?"
        )
    return Metric(given)


def _show(found: "Comparison", html: Path | None) -> None:
    from rookery.report.statistics.comparison_tables import sections

    for section in sections(found):
        _table(section)
    notes = [f"  {note}" for note in found.notes]
    output.say(*(["before you believe it:", *notes] if notes else []))
    if html is not None:
        output.say(f"  wrote {html}")


def _table(section: "Section") -> None:
    """Prints a table of the comparison, with borders on a terminal, as plain text elsewhere."""
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
