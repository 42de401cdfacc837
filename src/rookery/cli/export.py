"""Write a trained agent's policy to one safetensors or ONNX file, and check that file.

The file is kept only if its policy chooses the same actions as the agent.
"""

import argparse
from pathlib import Path
from typing import Any

from rookery.terminal import abrupt_exit, arguments, output

EXAMPLES = """\
examples:
  rookery export runs/a
  rookery export runs/a --format onnx --out policy.onnx --checkpoint last
"""
FORMATS = ("safetensors", "onnx")
FLAGS = """
--out FILE  policy file to write (default: RUN/policy.safetensors)
--format {safetensors,onnx}  format of the file (default: by the extension of --out)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_flags(parser, FLAGS, out=str)
    arguments.add_checkpoint(parser)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    out, format = arguments.target(Path(args.run) / "policy", args.out, args.format, FORMATS)
    arguments.require_run(args.run)
    with abrupt_exit.abrupt():
        from rookery.export.export_policy import export

    answer = export(Path(args.run), out, format=format, checkpoint=args.checkpoint)
    output.answer(args, answer, summary(answer))
    return 0


def summary(answer: dict[str, Any]) -> list[str]:
    """Returns two lines of text: the exported file, and the check of its actions."""
    ties = f", except for {answer['ties']} ties" if answer["ties"] else ""
    return [
        f"{answer['file']}: {output.size(answer['bytes'])} of {answer['format']}",
        f"  the same actions for {answer['checked']} observations{ties}; "
        f"largest difference {answer['largest_difference']:.1g}",
    ]
