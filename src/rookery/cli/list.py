"""List scenarios and algorithms, or every setting with its type, default and meaning.

A scenario is a named training configuration: `rookery train SCENARIO`.
"""

import argparse
import json

from rookery.errors import ConfigError
from rookery.terminal import arguments, output

EXAMPLES = """\
examples:
  rookery list
  rookery list --settings --algo sac
"""
ALGO = """
--algo NAME  with --settings, the algorithm: only settings that matter to it, the most important
  first, with its defaults (default: all settings)
"""
FLAGS = """
--settings  list every setting that --set can change (default: list scenarios and algorithms)
--schema  print the JSON Schema of scenario files, with which editors complete and check them
  (default: list scenarios and algorithms)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_flags(parser.add_mutually_exclusive_group(), FLAGS)
    arguments.add_flags(parser, ALGO)
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.algo and not args.settings:
        raise ConfigError("--algo needs --settings; write rookery list --settings --algo NAME")
    if args.schema:
        from rookery.config.describe import json_schema

        output.say(json.dumps(json_schema(), indent=None if args.json else 2))
    elif args.settings:
        from rookery.config.describe import settings, settings_for

        found = settings_for(args.algo) if args.algo else settings()
        rows = [(s.key, s.type, json.dumps(s.default), f"# {s.comment}") for s in found]
        answer = {"settings": [setting._asdict() for setting in found]}
        output.answer(args, answer, output.table(rows, indent=""))
    else:
        _names(args)
    return 0


def _names(args: argparse.Namespace) -> None:
    from rookery.config.algorithms import known
    from rookery.config.load import load, scenarios

    about = {name: load(name).about for name in scenarios()}
    algorithms = {name: entry.about for name, entry in known().items()}
    lines = [
        "scenarios (rookery train NAME):",
        *output.table(about.items()),
        "algorithms (rookery train NAME --env ID):",
        *output.table(algorithms.items()),
    ]
    output.answer(args, {"scenarios": about, "algorithms": algorithms}, lines)
