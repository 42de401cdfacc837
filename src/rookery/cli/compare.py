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
    from rookery.report.charts.page import Table
    from rookery.report.statistics.comparison import Comparison, Question

FEWEST, MOST = 100, 100_000  # bootstrap samples
EXAMPLES = """\
RUN is a run folder, or a folder with runs one or two levels down. Runs are grouped by their tag
(`rookery train --tag`), or by their scenario (named training configuration) if they have none.
Unfinished runs count up to their last step and are flagged.

examples:
  rookery compare runs
  rookery compare runs --tag local --tag shared --out compared.html
  rookery compare runs/a runs/b --threshold 475 --json
"""


FLAGS = """
--tag TAG  compare only the group of runs with this tag; repeatable (default: all groups)
--baseline TAG  tag of the group that the other groups are compared with (default: the group called
  baseline, otherwise the first group)
--threshold [ENV=]SCORE  score for which to report how many env steps each run took to reach it;
  ENV=SCORE sets it for one environment; repeatable (default: the target score of each run,
  eval.target)
--metric NAME  score to compare: eval/mean_reward (evaluation episodes) or rollout/ep_rew_mean
  (training episodes) (default eval/mean_reward)
--reps N  number of bootstrap samples for the confidence intervals (default 2000)
--seed SEED  seed of the bootstrap samples (default 0)
--out FILE  HTML page to write, with tables and learning curves (default: none)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_runs(parser)
    arguments.add_flags(parser, FLAGS, threshold=threshold)
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
    if args.out is not None:
        from rookery.report.charts.comparison_page import comparison_page

        output.write(args.out, "--out", [comparison_page(found, question).html()])
    if args.json:
        settings = {"reps": question.reps, "seed": question.seed, "level": LEVEL}
        html = {"html": args.out and str(args.out)}
        output.say_json(comparison.as_dict(found) | settings | html)
    else:
        _show(found, args.out)
    return 0


def _question(args: argparse.Namespace) -> "Question":
    from rookery.config.checks import one_of
    from rookery.report.statistics.comparison import Question
    from rookery.report.statistics.run_records import Metric

    if not FEWEST <= args.reps <= MOST:
        raise ConfigError(
            f"--reps must be from {FEWEST} to {MOST:,}, got {args.reps}; leave it out for 2000"
        )
    one_of(*Metric).check("--metric", args.metric)
    return Question(
        metric=Metric(args.metric),
        thresholds=dict(args.threshold),
        reps=args.reps,
        seed=args.seed,
        tags=args.tag,
        baseline=args.baseline,
    )


def _show(found: "Comparison", html: Path | None) -> None:
    from rookery.report.statistics.comparison_tables import tables

    for table in tables(found):
        _print(table)
    notes = [f"  {note}" for note in found.notes]
    output.say(*(["before you believe it:", *notes] if notes else []))
    if html is not None:
        output.say(f"  wrote {html}")


def _print(table: "Table") -> None:
    """Prints a table of the comparison, with borders on a terminal, as plain text elsewhere."""
    if not sys.stdout.isatty():
        output.say(table.title, *output.table(table.rows), "")
        return
    from rich import table as rich_table
    from rich.console import Console
    from rich.text import Text

    head, *rows = table.rows
    drawn = rich_table.Table(title=Text(table.title), title_justify="left")
    for cell in head:
        drawn.add_column(Text(cell))
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)
