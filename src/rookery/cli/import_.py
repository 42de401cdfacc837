"""Turns settings of the RL Baselines3 Zoo (a file such as sac.yml) into a scenario."""

import argparse
import sys
from pathlib import Path

from rookery.cli import output
from rookery.errors import ConfigError

EXAMPLES = """\
Nothing in FILE is run. What has no place in a scenario is told, and stands in it as a comment.

examples:
  rookery import sac.yml --env Pendulum-v1 --out pendulum.yaml
  rookery import tuned.yml --algo ppo --env CartPole-v1 --backend sb3 > cartpole.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("file", type=Path, metavar="FILE", help="of the zoo: hyperparams/sac.yml")
    parser.add_argument("--env", required=True, metavar="ID", help="which of its environments")
    parser.add_argument("--algo", metavar="NAME", help="its algorithm: the file's name")
    parser.add_argument(
        "--backend",
        choices=("rookery", "sb3"),
        default="rookery",
        help="whose algorithm is to learn: rookery",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the scenario: standard output")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    from rookery.config import zoo
    from rookery.config.schema import Backend

    backend = Backend(args.backend)
    imported = zoo.read(args.file, args.env, algorithm=args.algo, backend=backend)
    for note in imported.notes:
        print(f"rookery: warning: {note}", file=sys.stderr, flush=True)
    if args.out is not None:
        _write(args.out, imported.text())
    if args.json:
        where = None if args.out is None else str(args.out)
        output.say_json({"out": where, "settings": imported.settings, "notes": imported.notes})
    elif args.out is None:
        output.say(imported.text().rstrip("\n"))
    else:
        output.say(f"{args.out}: rookery train {args.out}")
    return 0


def _write(path: Path, text: str) -> None:
    if path.exists():
        raise ConfigError(
            f"{str(path)!r} is there already, and may hold work of yours; "
            "choose another file with --out, or remove it"
        )
    output.write(path, "--out", text.splitlines())
