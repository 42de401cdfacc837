"""List scenarios and algorithms, or every setting with its type, default and meaning.

A scenario is a named training configuration: `rookery train SCENARIO`.
"""

import argparse
import json

from rookery.terminal import arguments, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings",
        action="store_true",
        help="list every setting that --set can change (default: list scenarios and algorithms)",
    )
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.settings:
        _settings(as_json=args.json)
    else:
        _names(as_json=args.json)
    return 0


def _names(*, as_json: bool) -> None:
    from rookery.config.algorithms import known
    from rookery.config.load import scenarios

    about = {name: scenario.about for name, scenario in scenarios().items()}
    algorithms = {name: entry.about for name, entry in known().items()}
    if as_json:
        output.say_json({"scenarios": about, "algorithms": algorithms})
        return
    output.say("scenarios (rookery train NAME):", *output.table(about.items()))
    output.say("algorithms (--set algo=NAME):", *output.table(algorithms.items()))


def _settings(*, as_json: bool) -> None:
    from rookery.config.describe import settings

    found = settings()
    if as_json:
        output.say_json({"settings": [setting._asdict() for setting in found]})
        return
    rows = [(s.key, s.type, json.dumps(s.default), f"# {s.comment}") for s in found]
    output.say(*output.table(rows, indent=""))
