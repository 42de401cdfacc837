"""Start a parameter server: several clients train one network together (federated learning).

The server holds the parameters of the network of a scenario (a named training configuration, see
`rookery list`). It runs until --rounds, the privacy budget or a signal ends it.

  client  a `rookery join` process, usually on another host: it downloads the parameters, trains in
          its own environment and sends updates; its observations stay on its host
  update  what a client sends: the gradient of one batch (--mode gradients), or the change of the
          weights in --round-steps env steps of local training (--mode federated)
  round   one synchronous step of the server: it collects one update from each of several clients,
          combines them (--aggregation) and publishes the next version of the parameters; federated
          mode always has rounds, gradients mode only with --quorum, --deadline or a robust
          --aggregation, otherwise the server applies gradients as they arrive
  budget  with differential privacy, the limit --target-epsilon for epsilon, a bound on what the
          published parameters reveal about one client's participation; every round increases
          epsilon, and the server stops before a round that would exceed the budget
"""

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.errors import ConfigError
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.server.run_server import Plan, Privacy

EXAMPLES = """\
examples:
  rookery serve --scenario cartpole --add-client alice     makes a key, prints how alice joins
  rookery serve --scenario cartpole                        on this host: http://localhost:8888
  rookery serve --scenario cartpole --bind 0.0.0.0:8888 --tls-cert server.pem --tls-key server.key
  rookery serve --scenario cartpole --mode federated --round-steps 4000 --rounds 100
  rookery serve --scenario cartpole --aggregation median --quorum 5 --deadline 20
  rookery serve --scenario cartpole --mode federated --target-epsilon 8 --delta 1e-4 --noise 1 \\
    --clip 1 --sample-rate 0.1 --clients 1000

The same command continues where it stopped, after Ctrl+C, kill -9 or a reboot.
"""
AGGREGATIONS = ("average", "sum", "weighted", "federated", "median", "trimmed_mean", "krum")
PRIVATE = ("delta", "noise", "clip", "sample_rate", "clients")  # required by --target-epsilon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    _add_what(parser.add_argument_group("what to train"))
    _add_where(parser.add_argument_group("HTTP server and clients"))
    _add_how(parser.add_argument_group("updates and their aggregation"))
    _add_federated(parser.add_argument_group("federated mode"))
    _add_privacy(parser.add_argument_group("differential privacy (all of these flags, or none)"))
    _add_rest(parser.add_argument_group("when to stop, and where results go"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scenario",
        metavar="SCENARIO",
        help="scenario (named training configuration, see `rookery list`) or YAML file with "
        "settings (default: that of the earlier server in --run-dir)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="setting of the scenario to change, such as learner.lr=0.001; repeatable "
        "(default: none)",
    )
    group.add_argument(
        "--seed",
        type=arguments.whole,
        metavar="N",
        help="seed of the network's initial parameters (default: the scenario's)",
    )


def _add_where(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--bind",
        default="localhost:8888",
        metavar="HOST:PORT",
        help="address on which the server listens for clients (default localhost:8888)",
    )
    group.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="TLS certificate of the server, a PEM file (default: no TLS)",
    )
    group.add_argument(
        "--tls-key",
        metavar="FILE",
        help="private key of the server's TLS certificate, a PEM file (default: no TLS)",
    )
    group.add_argument(
        "--keys",
        metavar="FILE",
        help="file with the secret keys of all clients (default RUN_DIR/keys.json)",
    )
    group.add_argument(
        "--add-client",
        metavar="NAME",
        help="make a secret key for a new client of the parameter server, print the command with "
        "which that client joins, and exit "
        "(default: start the server)",
    )
    group.add_argument(
        "--rotate",
        action="store_true",
        help="with --add-client, replace the key of a client that has one, which ends that client "
        "if it runs (default: refuse a name that has a key)",
    )
    group.add_argument(
        "--pardon",
        action="append",
        default=[],
        metavar="NAME",
        help="end the quarantine of a client, whose updates are refused because several in a row "
        "had NaN or infinity or would have made the parameters infinite; repeatable (default: "
        "none)",
    )
    group.add_argument(
        "--status-token-file",
        metavar="FILE",
        help="file with the token that HTTP requests for /status and /metrics of the server must "
        "have (default: no token; only requests from this host are answered)",
    )
    group.add_argument(
        "--memory",
        type=arguments.between(0.001, 1e6),
        default=1.0,
        metavar="GIB",
        help="GiB of memory for updates that arrive or wait for the end of their round; clients "
        "wait while there is no more (default 1)",
    )


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mode",
        choices=("gradients", "federated"),
        default="gradients",
        help="updates that clients send: gradients (one per batch), or federated (the change of "
        "the weights in a round of local training) (default gradients)",
    )
    group.add_argument(
        "--aggregation",
        choices=AGGREGATIONS,
        help="rule that combines the updates of several clients: average, sum, weighted, federated "
        "(like weighted: an average weighted by the env steps of each client in the round), or a "
        "robust rule, which tolerates malicious clients: median, trimmed_mean, krum (default: "
        "average; in federated mode without differential privacy: federated)",
    )
    group.add_argument(
        "--every",
        type=arguments.count,
        default=1,
        metavar="N",
        help="number of gradients that the server combines for one change of the parameters, in "
        "gradients mode without rounds (default 1)",
    )
    group.add_argument(
        "--quorum",
        type=arguments.count,
        metavar="N",
        help="number of clients whose updates end a round before its deadline; with "
        "--target-epsilon, number of clients that must have joined before rounds begin (default: "
        "all that have joined; with --target-epsilon half of --clients)",
    )
    group.add_argument(
        "--deadline",
        type=arguments.between(0.01, 1e6),
        metavar="S",
        help="maximum seconds from the first update of a round to the end of the round, which then "
        "uses the updates that have arrived, or is skipped if they are too few (default 30)",
    )
    group.add_argument(
        "--staleness",
        choices=("drop", "discount", "keep"),
        default="discount",
        help="treatment of a gradient that was computed with an older version of the parameters, "
        "in gradients mode without rounds: drop (ignore it if it is more than 16 versions old), "
        "discount (the same, and divide it by 1 + its age in versions) or keep (use it unchanged) "
        "(default discount)",
    )
    _add_robustness(group)


def _add_robustness(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--byzantine",
        type=arguments.whole,
        default=0,
        metavar="F",
        help="number of Byzantine (faulty or malicious) clients that a robust --aggregation must "
        "tolerate; a round then needs at least 2F + 1 clients, with krum 2F + 3 (default 0)",
    )
    group.add_argument(
        "--max-norm",
        type=arguments.between(1e-30, 1e30),
        metavar="N",
        help="largest L2 norm of an update; the server refuses larger ones and names their client "
        "(default: any norm that leaves parameters and optimizer finite)",
    )


def _add_federated(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server-rule",
        choices=("fedavg", "fedprox", "fedadam"),
        default="fedavg",
        help="rule by which the server applies the combined weight change of a federated round: "
        "fedavg (adds it), fedprox (adds it; clients train with a proximal term that keeps them "
        "near the server's parameters) or fedadam (takes an Adam step) (default fedavg)",
    )
    group.add_argument(
        "--mu",
        type=arguments.between(0, 1e6),
        metavar="M",
        help="coefficient of the proximal term of --server-rule fedprox (default 0.01)",
    )
    group.add_argument(
        "--round-steps",
        type=arguments.count,
        default=2_000,
        metavar="N",
        help="env steps that each client trains in a federated round before it sends its update "
        "(default 2000)",
    )


def _add_privacy(group: argparse._ArgumentGroup) -> None:
    flags = {
        "--target-epsilon": (
            "E",
            "privacy budget: largest epsilon that all rounds together may reach; the server stops "
            "before a round that would exceed it",
        ),
        "--delta": ("D", "delta of (epsilon, delta)-differential privacy, below 1 / --clients"),
        "--noise": (
            "Z",
            "noise multiplier: the Gaussian noise that the server adds to the sum of the updates "
            "of a round has standard deviation Z x --clip",
        ),
        "--clip": (
            "C",
            "maximum L2 norm of a client's update; larger updates are scaled down to it",
        ),
        "--sample-rate": ("Q", "probability with which each client takes part in a round"),
    }
    for flag, (metavar, about) in flags.items():
        group.add_argument(flag, type=float, metavar=metavar, help=f"{about} (default: no privacy)")
    group.add_argument(
        "--clients",
        type=arguments.whole,
        metavar="N",
        help="number of clients for which the privacy budget is computed; no more can join "
        "(default: no privacy)",
    )


def _add_rest(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rounds",
        "--updates",
        type=arguments.count,
        dest="until",
        metavar="N",
        help="stop at this version of the parameters: one version per round, or per change without "
        "rounds, counted over restarts of the server (default: no limit)",
    )
    group.add_argument(
        "--run-dir",
        type=arguments.folder,
        metavar="DIR",
        help="folder of the server's files (default runs/SCENARIO-server)",
    )
    arguments.add_json(group)
    group.add_argument(
        "--quiet", action="store_true", help="hide the progress of the server (default: show it)"
    )


def run(args: argparse.Namespace) -> int:
    config = _config(args)
    with abrupt_exit.abrupt():
        from rookery.server.run_server import serve

    plan = plan_of(args, config)
    if args.add_client:
        return add_client(plan, args.add_client, rotate=args.rotate, json=args.json)
    if args.rotate:
        raise ConfigError("--rotate was given without a client; name it with --add-client NAME")
    outcome = serve(plan)
    answer = outcome.answer
    if args.json:
        output.say_json(answer)
    else:
        output.say(
            f"{answer['run_dir']}: version {answer['version']} ({answer['reason']})",
            f"  rookery evaluate {answer['run_dir']}",
        )
    return outcome.exit_code


def _config(args: argparse.Namespace) -> "Config":
    """Returns the settings of --scenario or, without it, of the earlier server in --run-dir.

    Raises `ConfigError` if there is neither.
    """
    from rookery.config.load import RUN_FILE, load, load_run

    changes: dict[str, Any] = {} if args.seed is None else {"run.seed": args.seed}
    if args.scenario is not None:
        return load(args.scenario, overrides=args.overrides, changes=changes)
    if args.run_dir is not None and (Path(args.run_dir) / RUN_FILE).is_file():
        return load_run(args.run_dir, overrides=args.overrides, changes=changes)
    raise ConfigError(
        "no scenario was given; give --scenario (`rookery list` shows them), or the --run-dir of "
        "an earlier server"
    )


def plan_of(args: argparse.Namespace, config: "Config") -> "Plan":
    """Checks the arguments of `rookery serve`; returns the settings of the parameter server."""
    from rookery.server.advertised_settings import Sharing, refuse
    from rookery.server.run_server import Plan

    refuse(config)
    host, port = address(args.bind)
    return Plan(
        config=config,
        run_dir=Path(args.run_dir or Path("runs") / f"{config.name}-server"),
        host=host,
        port=port,
        sharing=Sharing(args.mode),
        aggregation=args.aggregation,
        update_frequency=args.every,
        quorum=args.quorum,
        deadline_s=args.deadline,
        staleness=args.staleness,
        byzantine=args.byzantine,
        max_norm=args.max_norm,
        server_rule=args.server_rule,
        mu=args.mu,
        round_steps=args.round_steps,
        until=args.until,
        privacy=_privacy(args),
        pardoned=tuple(args.pardon),
        keys=_path(args.keys),
        certificate=_path(args.tls_cert),
        private_key=_path(args.tls_key),
        status_token=_token(args.status_token_file),
        memory_bytes=int(args.memory * (1 << 30)),
        quiet=args.quiet,
    )


def address(bind: str) -> tuple[str, int]:
    """Parses the address HOST:PORT on which a server listens; returns host and port."""
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"--bind is {bind!r}; write HOST:PORT, such as localhost:8888, with port 0 for any"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _privacy(args: argparse.Namespace) -> "Privacy | None":
    from rookery.server.run_server import Privacy

    given = {name: getattr(args, name) for name in PRIVATE}
    missing = [name for name, value in given.items() if value is None]
    if args.target_epsilon is None:
        if len(missing) < len(PRIVATE):
            raise ConfigError(
                "differential privacy needs --target-epsilon; add it, or leave "
                f"{', '.join(_flag(n) for n in PRIVATE if n not in missing)} out"
            )
        return None
    if missing:
        raise ConfigError(
            f"--target-epsilon needs {', '.join(map(_flag, PRIVATE))}; add "
            f"{', '.join(map(_flag, missing))}"
        )
    return Privacy(target_epsilon=args.target_epsilon, **given)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def _token(given: str | None) -> str | None:
    if given is None:
        return None
    from rookery.cli.join import read_key

    return read_key(Path(given))


def add_client(plan: "Plan", client: str, *, rotate: bool, json: bool) -> int:
    """Makes the secret key of a parameter server's client; prints the command by which it joins.

    A client that has a key is refused unless `rotate` replaces it. Writes the key to the server's
    key file, and to a file to copy to the client. Returns the exit code 0.
    """
    from rookery.server.http.client_keys import Keys
    from rookery.server.http.wire_format import checked_name
    from rookery.server.serve_report import join_line, key_file

    checked_name(client)
    keys, own = plan.keys_file, key_file(plan.keys_file, client)
    try:
        keys.parent.mkdir(parents=True, exist_ok=True)
        key = Keys(keys).rotate(client) if rotate else Keys(keys).issue(client)
        with contextlib.suppress(FileNotFoundError):
            own.unlink()  # the file of the client's previous key
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
    except OSError as error:
        raise ConfigError(
            f"the key of {client} cannot be written next to {keys}: {error}; name another --keys"
        ) from error
    scheme = "https" if plan.certificate else "http"
    line = join_line(plan, f"{scheme}://{plan.host}:{plan.port}", client)
    if json:
        output.say_json({"client": client, "keys": str(keys), "key_file": str(own), "join": line})
    else:
        output.say(f"copy {own} to {client} securely; {client} joins with", f"  {line}")
    return 0
