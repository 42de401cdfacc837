"""Removes what dead runs have left behind, and nothing of live ones."""

import argparse
from pathlib import Path

from rookery.cli import output, signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of the runs: runs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    with signals.abrupt():
        from rookery.manage.litter import sweep

    removed = sweep(args.runs, dry_run=args.dry_run)
    if args.json:
        output.say_json({"dry_run": args.dry_run, "removed": [item._asdict() for item in removed]})
        return 0
    done = "would remove" if args.dry_run else "removed"
    total = output.size(sum(item.bytes for item in removed))
    for item in removed:
        output.say(f"{done} {item.path} ({output.size(item.bytes)}): {item.why}")
    output.say(f"{done} {len(removed)} things, {total}" if removed else "nothing to clean")
    return 0
