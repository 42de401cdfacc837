"""Train as a client of a parameter server that `rookery serve` has started (federated learning).

The client downloads the network's parameters from the server, trains in its own environment and
sends updates. The server combines the updates of several clients into the next version of the
parameters. It also tells its clients the scenario (named training configuration) and the kind of
update:

  gradients  the client sends the gradient of each batch; the server takes the optimizer step
  federated  in each round the client trains for a number of env steps, then sends the change of
             its weights, and waits for the next version of the parameters

Observations stay on this host. A server with differential privacy clips the updates, adds noise,
and ends the training when its privacy budget (epsilon) is used up.
"""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

Add = Callable[..., argparse.Action]  # add_argument of a parser, or of a group of its flags
KEY_CURE = "`rookery serve keys add NAME` writes one on the server's host"
CODECS = {"none": "none", "fp16": "fp16", "topk": "top_k"}
EXAMPLES = """\
examples:
  rookery join http://localhost:8888 --client alice --key-file alice.key
  rookery join https://trainer.example:8888 --client bob --key-file bob.key --ca server.pem
  rookery join https://trainer.example:8888 --client erin --tls-cert erin.pem --tls-key erin-key.pem
  rookery join http://localhost:8888 --client carol --key-file carol.key --env-kwargs gravity=3.7
  rookery join http://localhost:8888 --client dave --key-file dave.key --compress fp16 --rounds 50

While the server cannot be reached, the client waits and tries again, up to --patience seconds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "url", metavar="URL", help="URL of the parameter server, as `rookery serve` prints it"
    )
    _add_identity(parser.add_argument_group("identity").add_argument)
    _add_settings(parser.add_argument_group("what to train").add_argument)
    rest = parser.add_argument_group("when to stop, and communication")
    _add_rest(rest.add_argument)
    arguments.add_json(rest)


def _add_identity(add: Add) -> None:
    add("--client", required=True, metavar="NAME").help = (
        "name of this client, as in `rookery serve keys add NAME`, or the common name of its "
        "certificate (required)"
    )
    add("--key-file", type=arguments.path, metavar="FILE").help = (
        "file with this client's secret key, which `rookery serve keys add` wrote; mode 0600 "
        "(default: no key; then give --tls-cert)"
    )
    add(
        "--tls-cert", dest="certificate", type=arguments.path, metavar="FILE"
    ).help = (
        "PEM file with this client's certificate, for a server with --client-ca (default: none)"
    )
    add(
        "--tls-key", dest="private_key", type=arguments.path, metavar="FILE"
    ).help = "PEM file with the private key of --tls-cert (default: it is in that file)"
    add("--ca", type=arguments.path, metavar="FILE").help = (
        "PEM file with the CA certificate that signed the server's certificate "
        "(default: the system's)"
    )


def _add_settings(add: Add) -> None:
    add("--scenario", metavar="SCENARIO").help = (
        "scenario (named training configuration) or YAML file of this client; must have the "
        "server's network (default: the server's)"
    )
    add(
        "--env-kwargs", nargs="+", default=[], metavar="KEY=VALUE"
    ).help = "keyword arguments of this client's environment (default: the scenario's)"
    add(
        "--set", action="append", default=[], dest="settings", metavar="KEY=VALUE"
    ).help = "setting to change for this client only; repeatable (default: none)"
    add(
        "--seed", type=arguments.whole, metavar="N"
    ).help = "seed of this client (default: derived from its name)"


def _add_rest(add: Add) -> None:
    add(
        "--steps", type=arguments.count, metavar="N"
    ).help = "stop after this many env steps of this client (default: no limit)"
    add(
        "--rounds", type=arguments.count, metavar="N"
    ).help = (
        "stop when the server has accepted this many updates of this client (default: no limit)"
    )
    add("--compress", choices=list(CODECS), default="none").help = (
        "compression of the updates that this client sends: fp16 (half precision), topk (only the "
        "largest entries, see --keep) or none (default none)"
    )
    add(
        "--keep", type=arguments.between(1e-6, 1), default=0.01, metavar="R"
    ).help = "fraction of an update's entries that --compress topk sends (default 0.01)"
    patience = arguments.between(0.1, 1e6)
    add(
        "--patience", dest="patience_s", type=patience, default=120.0, metavar="S"
    ).help = "seconds to wait for an unreachable server before failing (default 120)"
    add("--quiet", action="store_true").help = "hide the progress of this client (default: show it)"


def run(args: argparse.Namespace) -> int:
    key = _key(args)
    with abrupt_exit.abrupt():
        from rookery.server.run_client import Asked, join

    given: dict[str, Any] = {field.name: getattr(args, field.name, None) for field in fields(Asked)}
    overrides = (*(f"env.kwargs.{pair}" for pair in args.env_kwargs), *args.settings)
    given |= {"key": key, "overrides": overrides, "codec": CODECS[args.compress]}
    outcome = join(Asked(**given))
    answer = outcome.answer
    if args.json:
        output.say_json(answer)
    else:
        score = answer["mean_return"]
        scored = "no episode ended" if score is None else f"mean return {score:.2f}"
        output.say(
            f"{answer['client']}: {scored}, {answer['accepted']} updates accepted, version "
            f"{answer['version']} after {answer['env_steps']:,} env steps ({answer['reason']})"
        )
    return outcome.exit_code


def _key(args: argparse.Namespace) -> str | None:
    """Returns the client's key; None if its certificate is to prove its name."""
    if args.private_key and not args.certificate:
        raise ConfigError("--tls-key was given without --tls-cert; give the certificate too")
    if args.key_file:
        return read_key(args.key_file, "--key-file", cure=KEY_CURE)
    if not args.certificate:
        raise ConfigError(
            "neither a key nor a certificate of this client was given; give --key-file, which "
            "`rookery serve keys add NAME` writes, or --tls-cert and --tls-key"
        )
    return None


def read_key(path: Path, flag: str, *, cure: str) -> str:
    """Reads a secret key or token, one word, from a file.

    Raises `ConfigError` if the file cannot be read, holds no key, or other users can read it.
    """
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error}; {cure}") from error
    if mode & 0o077:
        raise ConfigError(f"other users can read {flag} {path}; chmod 600 {path}")
    if not key or len(key.split()) != 1:
        raise ConfigError(f"{flag} {path} holds no key; such a file has a single word")
    return key
