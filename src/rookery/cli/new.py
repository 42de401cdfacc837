"""Write the skeleton of an environment, an algorithm or a scenario, and its test, to this folder.

The skeleton is complete: it trains, and its test passes. Existing files are not overwritten.
"""

import argparse
import re
from importlib.resources import files
from pathlib import Path

from rookery.errors import ConfigError
from rookery.terminal import arguments, output

EXAMPLES = """\
examples:
  rookery new env maze         writes maze.py and test_maze.py
  rookery new algo my-dqn      writes my_dqn.py and test_my_dqn.py
  rookery new scenario task    writes task.yaml and test_task.py
"""
KINDS = {  # kind → file of the skeleton, command that trains with it
    "env": ("{module}.py", "rookery train --env {module}:{name}"),
    "algo": ("{module}.py", "rookery train corridor --set algo={module}:{name}"),
    "scenario": ("{module}.yaml", "rookery train {module}.yaml"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "kind of the skeleton: environment, algorithm or scenario (required)"
    parser.add_argument("kind", choices=list(KINDS), help=about)
    about = "name of the new file, with letters, digits, - and _ (required)"
    parser.add_argument("name", metavar="NAME", help=about)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z][\w-]*", args.name, re.ASCII):
        raise ConfigError(
            f"the name is {args.name!r}; use letters, digits, - and _, a letter first"
        )
    module = args.name.replace("-", "_").lower()
    words = {"module": module, "name": "".join(word.capitalize() for word in module.split("_"))}
    file, command = (text.format(**words) for text in KINDS[args.kind])
    written = {Path(file): args.kind, Path(f"test_{module}.py"): f"{args.kind}_test"}
    if taken := [str(path) for path in written if path.exists()]:
        exist = "exists" if len(taken) == 1 else "exist"
        raise ConfigError(f"{' and '.join(taken)} {exist} already; choose another NAME")
    for path, template in written.items():
        text = (files("rookery.cli") / "templates" / f"{template}.txt").read_text()
        with output.reported(path, "NAME"):
            path.write_text(text.format(**words))
    answer = {"files": [*map(str, written)], "command": command}
    output.answer(args, answer, [f"wrote {' and '.join(answer['files'])}", f"  {command}"])
    return 0
