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
from dataclasses import fields
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

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


IDENTITY = """
--client NAME  name of this client, as in `rookery serve keys add NAME`, or the common name of its
  certificate (required)
--key-file FILE  file with this client's secret key, which `rookery serve keys add` wrote; mode 0600
  (default: no key; then give --tls-cert)
--tls-cert FILE  PEM file with this client's certificate, for a server with --client-ca (default:
  none)
--tls-key FILE  PEM file with the private key of --tls-cert (default: it is in that file)
--ca FILE  PEM file with the CA certificate that signed the server's certificate (default: the
  system's)
"""
SETTINGS = """
--scenario SCENARIO  scenario (named training configuration) or YAML file of this client; must have
  the server's network (default: the server's)
--env-kwargs KEY=VALUE ...  keyword arguments of this client's environment (default: the scenario's)
--seed SEED  seed of this client (default: derived from its name)
"""
REST = """
--env-steps N  env steps of this client after which it stops (default: no limit)
--rounds N  updates of this client accepted by the server after which it stops (default: no limit)
--compress {none,fp16,topk}  compression of the updates that this client sends: fp16 (half
  precision), topk (only the largest entries, see --keep) or none (default none)
--keep R  fraction of an update's entries that --compress topk sends (default 0.01)
--patience S  seconds to wait for an unreachable server before failing (default 120)
--quiet  hide the progress of this client (default: show it)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    about = "URL of the parameter server, as `rookery serve` prints it (required)"
    parser.add_argument("url", metavar="URL", help=about)
    arguments.add_flags(parser.add_argument_group("identity"), IDENTITY)
    settings = parser.add_argument_group("what to train")
    arguments.add_flags(settings, SETTINGS)
    arguments.add_overrides(settings)
    rest = parser.add_argument_group("when to stop, and communication")
    keep, patience = arguments.between(1e-6, 1), arguments.between(0.1, 1e6)
    arguments.add_flags(rest, REST, keep=keep, patience=patience)
    arguments.add_json(rest)


def run(args: argparse.Namespace) -> int:
    key = _key(args)
    with abrupt_exit.abrupt():
        from rookery.server.run_client import Asked, join

    given: dict[str, Any] = {field.name: getattr(args, field.name, None) for field in fields(Asked)}
    given |= {
        "key": key,
        "certificate": args.tls_cert,
        "private_key": args.tls_key,
        "overrides": (*(f"env.kwargs.{pair}" for pair in args.env_kwargs or ()), *args.set),
        "steps": args.env_steps,
        "codec": CODECS[args.compress],
        "patience_s": args.patience,
    }
    outcome = join(Asked(**given))
    answer = outcome.answer
    score = answer["mean_return"]
    scored = "no episode ended" if score is None else f"mean return {score:.2f}"
    line = (
        f"{answer['client']}: {scored}, {answer['accepted']} updates accepted, version "
        f"{answer['version']} after {answer['env_steps']:,} env steps ({answer['reason']})"
    )
    output.answer(args, answer, [line])
    return outcome.exit_code


def _key(args: argparse.Namespace) -> str | None:
    """Returns the client's key; None if its certificate is to prove its name."""
    if args.tls_key and not args.tls_cert:
        raise ConfigError("--tls-key was given without --tls-cert; give the certificate too")
    if args.key_file:
        return read_key(args.key_file, "--key-file", cure=KEY_CURE)
    if not args.tls_cert:
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
