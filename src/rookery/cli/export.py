"""Writes a trained agent's policy to one file, and checks that the file acts as the agent does."""

import argparse
from pathlib import Path
from typing import Any

from rookery.cli import arguments, output, signals

EXAMPLES = """\
examples:
  rookery export runs/a
  rookery export runs/a --format onnx --out policy.onnx --checkpoint last
"""
FORMATS = ("safetensors", "onnx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the folder that `rookery train` named")
    parser.add_argument("--out", metavar="FILE", help="default RUN/policy.safetensors")
    parser.add_argument("--format", choices=FORMATS, help="default: what the file's name ends in")
    parser.add_argument(
        "--checkpoint",
        type=arguments.checkpoint,
        default="best",
        metavar="WHICH",
        help="best (default), last, or the env steps of a checkpoint",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(args.run) / "policy", args.out, args.format, FORMATS)
    _refuse_no_run(args.run)
    with signals.abrupt():
        from rookery.loops.export import export

    answer = export(Path(args.run), out, format=format, checkpoint=args.checkpoint)
    if args.json:
        output.say_json(answer)
    else:
        output.say(*summary(answer))
    return 0


def summary(answer: dict[str, Any]) -> list[str]:
    """Says in two lines what was written and how it was checked."""
    ties = f", {answer['ties']} of them ties that fell otherwise" if answer["ties"] else ""
    return [
        f"{answer['file']}: {output.size(answer['bytes'])} of {answer['format']}",
        f"  the same actions for {answer['checked']} observations{ties}; "
        f"largest difference {answer['largest_difference']:.1g}",
    ]


def _refuse_no_run(run_dir: str) -> None:
    from rookery.config.load import load_run

    load_run(run_dir)
