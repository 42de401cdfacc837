"""Remove files that crashed or killed runs have left; files of running runs are kept.

These are half-written checkpoints in run folders, and replay buffers in shared memory.
"""

import argparse
from pathlib import Path

from rookery.terminal import abrupt_exit, arguments, output

FLAGS = """
--dry-run  list the files that would be removed, and remove nothing (default: remove them)
--runs DIR  folder that contains the folders of training runs (default: runs)
--pool DIR  pool of shared replay buffers to clean too, a folder that sharing.pool or
  create_distributed_registry(path=...) named; repeatable (default: only pools without such a path)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_flags(parser, FLAGS, runs=arguments.existing_folder)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        from rookery.checkpoints.run_folder import sweep

    removed = sweep(args.runs or Path("runs"), dry_run=args.dry_run, pools=args.pool)
    done = "would remove" if args.dry_run else "removed"
    total = output.size(sum(item.bytes for item in removed))
    lines = [f"{done} {item.path} ({output.size(item.bytes)}): {item.why}" for item in removed]
    lines.append(f"{done} {len(removed)} things, {total}" if removed else "nothing to clean")
    answer = {"dry_run": args.dry_run, "removed": [item._asdict() for item in removed]}
    output.answer(args, answer, lines)
    return 0
