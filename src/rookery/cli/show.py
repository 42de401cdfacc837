"""Show one training run: its results, machine, faults, and the settings that are not defaults."""

import argparse
from pathlib import Path

from rookery.terminal import arguments, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from rookery.config.load import differences, load
    from rookery.report.charts.run_report import faults, machine, results
    from rookery.report.statistics.run_records import read_folder

    found = read_folder(Path(args.run))
    usual = load(None, changes={"algo.name": found.config.algo.name})
    changed = {d.key: d.after for d in differences(usual, found.config)}
    changed = {"algo.name": found.config.algo.name} | changed
    answer = {
        "run": found.name,
        "results": results(found),
        "machine": machine(found),
        "faults": faults(found),
        "settings": changed,
    }
    lines = [
        f"{found.name}:",
        *output.table(results(found).items()),
        "machine:",
        *output.table(machine(found).items()),
        *(f"fault: {fault}" for fault in faults(found)),
        "settings that are not the defaults:",
        *output.table((key, str(value)) for key, value in changed.items()),
    ]
    output.answer(args, answer, lines)
    return 0
