"""Add, list, remove and replace the secret keys of the clients of a parameter server."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError
from rookery.terminal import arguments, output

ACTIONS = {
    "add": "make the key of a new client, and print how that client joins",
    "list": "show the clients that have a key",
    "revoke": "remove the key of a client, which a running server then refuses",
    "rotate": "replace the key of a client, which ends that client if it runs",
}
ROTATE = "--rotate  replace the key of a client that has one (default: refuse such a name)"
FLAGS = """
--scenario SCENARIO  scenario of the server, for the default of --run-dir (default: none)
--run-dir DIR  folder of the server's files (default: runs/SCENARIO-server)
--keys FILE  file with the keys of all clients (default: RUN_DIR/keys.json)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, about in ACTIONS.items():
        own = actions.add_parser(name, help=about, description=about)
        own.set_defaults(rotate=name == "rotate")
        if name != "list":
            own.add_argument("client", metavar="NAME", help="name of the client (required)")
        if name == "add":
            arguments.add_flags(own, ROTATE)
        arguments.add_flags(own, FLAGS)
        arguments.add_json(own)


def run(args: argparse.Namespace) -> int:
    output.answer(args, *ANSWERS[args.action](args, keys_file(args)))
    return 0


def keys_file(args: argparse.Namespace) -> Path:
    """Returns the file with the keys of the server that is meant."""
    if args.keys is not None:
        return Path(args.keys)
    if args.run_dir is not None:
        return Path(args.run_dir) / "keys.json"
    if args.scenario is None:
        raise ConfigError(
            "it was not said which server's keys are meant; give --scenario, --run-dir or --keys"
        )
    from rookery.config.load import load

    return Path("runs") / f"{load(args.scenario).name}-server" / "keys.json"


def _make(args: argparse.Namespace, file: Path) -> tuple[dict[str, Any], list[str]]:
    """Makes a key, and a file with it to be copied to its client."""
    from rookery.server.http.client_keys import Keys
    from rookery.server.http.wire_format import checked_name
    from rookery.server.serve_report import join_line, key_file, read_place

    client = checked_name(args.client)
    own = key_file(file, client)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        key = Keys(file).rotate(client) if args.rotate else Keys(file).issue(client)
        own.unlink(missing_ok=True)  # the client's previous key
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
            text.write(key + "\n")
    except OSError as error:
        raise ConfigError(
            f"the key of {client} cannot be written next to {file}: {error}; name another --keys"
        ) from error
    place = read_place(args.run_dir or file.parent)
    line = join_line(place, file, client)
    answer = {"client": client, "keys": str(file), "key_file": str(own), "join": line}
    lines = [f"copy {own} to {client} securely; {client} joins with", f"  {line}"]
    if place.url == "URL":
        lines.append("where URL is what `rookery serve` prints when it starts")
    return answer, lines


def _list(args: argparse.Namespace, file: Path) -> tuple[dict[str, Any], list[str]]:
    from rookery.server.http.client_keys import Keys

    clients = sorted(Keys(file))
    answer = {"clients": clients, "keys": str(file)}
    return answer, clients or [f"no client has a key in {file}"]


def _revoke(args: argparse.Namespace, file: Path) -> tuple[dict[str, Any], list[str]]:
    from rookery.server.http.client_keys import Keys
    from rookery.server.serve_report import key_file

    Keys(file).revoke(args.client)
    with contextlib.suppress(OSError):
        key_file(file, args.client).unlink()
    answer = {"client": args.client, "keys": str(file)}
    return answer, [f"{args.client} has no key any more; a running server refuses it"]


ANSWERS = {"add": _make, "rotate": _make, "list": _list, "revoke": _revoke}
