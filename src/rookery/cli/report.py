"""Write a report of training runs: results, curves, machine, settings and faults.

The report is one HTML file that works offline, or Markdown without the curves.
"""

import argparse
from pathlib import Path

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

EXAMPLES = """\
RUN is a run folder, or a folder with runs one or two levels down. Works on unfinished runs.

examples:
  rookery report runs/a
  rookery report runs/a runs/b --out report.html
  rookery report runs/a --markdown --out report.md
"""


FLAGS = """
--out FILE  file to write (default: report.html, or report.md, in the first RUN)
--markdown  write Markdown (default: an HTML page)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_runs(parser)
    arguments.add_flags(parser, FLAGS)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        from rookery.report.charts.run_report import run_report
        from rookery.report.number_format import counted
        from rookery.report.statistics.run_records import load_each, read_folder

    runs, unread = load_each(args.run, read_folder)
    if not runs:
        raise ConfigError(f"none of these runs can be read: {'; '.join(unread)}")
    page = run_report(runs, unread)
    out: Path = args.out or args.run[0] / ("report.md" if args.markdown else "report.html")
    output.write(out, "--out", [page.markdown() if args.markdown else page.html()])
    answer = {"runs": [run.name for run in runs], "unread": unread, "file": str(out)}
    output.answer(args, answer, [f"{out}: report of {counted(len(runs), 'run')}", *unread])
    return 0
