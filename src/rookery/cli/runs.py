"""List training runs: what was trained, how far each run came, and its scores."""

import argparse
from pathlib import Path

from rookery.terminal import arguments, output

COLUMNS = ("environment", "algorithm", "seed", "state", "best score", "last score", "env steps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "run folders, or folders with runs one or two levels down (default runs)"
    default = [Path("runs")]
    parser.add_argument(
        "folder", nargs="*", type=arguments.path, default=default, metavar="FOLDER", help=about
    )
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from rookery.report.charts.run_report import results
    from rookery.report.statistics.run_records import load_each, read_folder

    runs, unread = load_each(args.folder, read_folder)
    found = [{"run": one.name, **results(one)} for one in runs]
    rows = [[one["run"], *(one[column] for column in COLUMNS)] for one in found]
    table = output.table([["run", *COLUMNS], *rows], indent="")
    output.answer(args, {"runs": found, "unread": unread}, [*table, *unread])
    return 0
