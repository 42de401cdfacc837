"""Learns together with others, over a server that `rookery serve` has started."""

import argparse
from pathlib import Path

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

CODECS = {"none": "none", "fp16": "fp16", "topk": "top_k"}
EXAMPLES = """\
examples:
  rookery join http://localhost:8888 --client alice --key-file alice.key
  rookery join https://trainer.example:8888 --client bob --key-file bob.key --ca server.pem
  rookery join http://localhost:8888 --client carol --key-file carol.key --env-kwargs gravity=3.7
  rookery join http://localhost:8888 --client dave --key-file dave.key --compress fp16 --rounds 50

The server says which scenario is trained and what it wants: gradients, or what a round of training
has changed. What the environment shows stays here. While the server is away, its clients wait.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("url", metavar="URL", help="of the server, as it prints it")
    _add_identity(parser.add_argument_group("who joins"))
    _add_settings(parser.add_argument_group("what is played"))
    _add_rest(parser.add_argument_group("how long, and how"))


def _add_identity(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--client", required=True, metavar="NAME", help="as the server knows it")
    group.add_argument(
        "--key-file", required=True, metavar="FILE", help="with this client's key, mode 0600"
    )
    group.add_argument("--ca", metavar="FILE", help="who signed the server's certificate (PEM)")
    group.add_argument("--insecure", action="store_true", help="plain HTTP to another host")


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--scenario", metavar="SCENARIO", help="your own, and not the server's word")
    group.add_argument(
        "--env-kwargs",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="arguments of this client's environment",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="any setting of this client; may be given often",
    )
    group.add_argument("--seed", type=int, metavar="N", help="default: from the client's name")


def _add_rest(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--steps", type=arguments.count, metavar="N", help="env steps to play")
    group.add_argument(
        "--rounds", type=arguments.count, metavar="N", help="updates that the server has taken"
    )
    group.add_argument(
        "--compress", choices=list(CODECS), default="none", help="updates on their way"
    )
    group.add_argument(
        "--keep",
        type=arguments.between(1e-6, 1),
        default=0.01,
        metavar="R",
        help="share of the entries that topk sends; default 0.01",
    )
    group.add_argument(
        "--at-least",
        type=arguments.count,
        metavar="N",
        help="send nothing but masked updates, to secure sums of N clients or more",
    )
    group.add_argument(
        "--patience",
        type=arguments.between(0.1, 1e6),
        default=120.0,
        metavar="S",
        help="seconds that the server may be away; default 120",
    )
    group.add_argument("--json", action="store_true", help="one JSON object as the last line")
    group.add_argument("--quiet", action="store_true", help="no lines about progress")


def run(args: argparse.Namespace) -> int:
    key = read_key(Path(args.key_file))
    with signals.abrupt():
        from rookery.components.join import Asked, join

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
            at_least=args.at_least,
            ca=Path(args.ca) if args.ca else None,
            insecure=args.insecure,
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
            f"{answer['client']}: {scored}, {answer['accepted']} updates taken, version "
            f"{answer['version']} after {answer['env_steps']:,} env steps ({answer['reason']})"
        )
    return outcome.exit_code


def read_key(path: Path) -> str:
    """Reads a client's key from a file that nobody else may read."""
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--key-file {path} cannot be read: {error}; `rookery serve --add-client NAME` writes "
            "one on the server's host"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"others may read the key in {path}; chmod 600 {path}")
    if not key or len(key.split()) != 1:
        raise ConfigError(f"{path} holds no key; it has one word, and nothing else")
    return key
