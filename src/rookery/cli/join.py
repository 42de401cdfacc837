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
from pathlib import Path

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

CODECS = {"none": "none", "fp16": "fp16", "topk": "top_k"}
EXAMPLES = """\
examples:
  rookery join http://localhost:8888 --client alice --key-file alice.key
  rookery join https://trainer.example:8888 --client bob --key-file bob.key --ca server.pem
  rookery join http://localhost:8888 --client carol --key-file carol.key --env-kwargs gravity=3.7
  rookery join http://localhost:8888 --client dave --key-file dave.key --compress fp16 --rounds 50

While the server cannot be reached, the client waits and tries again, up to --patience seconds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "url", metavar="URL", help="URL of the parameter server, as `rookery serve` prints it"
    )
    _add_identity(parser.add_argument_group("identity"))
    _add_settings(parser.add_argument_group("what to train"))
    _add_rest(parser.add_argument_group("when to stop, and communication"))


def _add_identity(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--client",
        required=True,
        metavar="NAME",
        help="name of this client, as in `rookery serve --add-client NAME` (required)",
    )
    group.add_argument(
        "--key-file",
        required=True,
        metavar="FILE",
        help="file with this client's secret key, which `rookery serve --add-client` wrote; mode "
        "0600 (required)",
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        help="PEM file with the CA certificate that signed the server's certificate "
        "(default: the system's)",
    )


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scenario",
        metavar="SCENARIO",
        help="scenario (named training configuration) or YAML file of this client; must have the "
        "server's network (default: the server's)",
    )
    group.add_argument(
        "--env-kwargs",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="keyword arguments of this client's environment (default: the scenario's)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="setting to change for this client only; repeatable (default: none)",
    )
    group.add_argument(
        "--seed",
        type=arguments.whole,
        metavar="N",
        help="seed of this client (default: derived from its name)",
    )


def _add_rest(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--steps",
        type=arguments.count,
        metavar="N",
        help="stop after this many env steps of this client (default: no limit)",
    )
    group.add_argument(
        "--rounds",
        type=arguments.count,
        metavar="N",
        help="stop when the server has accepted this many updates of this client "
        "(default: no limit)",
    )
    group.add_argument(
        "--compress",
        choices=list(CODECS),
        default="none",
        help="compression of the updates that this client sends: fp16 (half precision), topk (only "
        "the largest entries, see --keep) or none (default none)",
    )
    group.add_argument(
        "--keep",
        type=arguments.between(1e-6, 1),
        default=0.01,
        metavar="R",
        help="fraction of an update's entries that --compress topk sends (default 0.01)",
    )
    group.add_argument(
        "--patience",
        type=arguments.between(0.1, 1e6),
        default=120.0,
        metavar="S",
        help="seconds to wait for an unreachable server before failing (default 120)",
    )
    arguments.add_json(group)
    group.add_argument(
        "--quiet", action="store_true", help="hide the progress of this client (default: show it)"
    )


def run(args: argparse.Namespace) -> int:
    key = read_key(Path(args.key_file))
    with abrupt_exit.abrupt():
        from rookery.server.run_client import Asked, join

    outcome = join(
        Asked(
            url=args.url,
            client=args.client,
            key=key,
            seed=args.seed,
            scenario=args.scenario,
            overrides=(*(f"env.kwargs.{pair}" for pair in args.env_kwargs), *args.overrides),
            steps=args.steps,
            rounds=args.rounds,
            codec=CODECS[args.compress],
            keep=args.keep,
            patience_s=args.patience,
            ca=Path(args.ca) if args.ca else None,
            quiet=args.quiet,
        )
    )
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


def read_key(path: Path) -> str:
    """Reads a secret key or token, one word, from a file.

    Raises `ConfigError` if the file cannot be read, holds no key, or other users can read it.
    """
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--key-file {path} cannot be read: {error}; `rookery serve --add-client NAME` writes "
            "one on the server's host"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"other users can read the key in {path}; chmod 600 {path}")
    if not key or len(key.split()) != 1:
        raise ConfigError(f"{path} holds no key; a key file has a single word")
    return key
