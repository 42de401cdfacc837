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
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli.server import serve_keys
from rookery.cli.server.join import Add, read_key
from rookery.config.checks import nearest
from rookery.errors import ConfigError
from rookery.server.http.limits import Limits
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.server.run_server import Plan, Privacy

EXAMPLES = """\
examples:
  rookery serve keys add alice --scenario cartpole         makes a key, prints how alice joins
  rookery serve --scenario cartpole                        on this host: http://localhost:8888
  rookery serve --scenario cartpole --bind 0.0.0.0:8888 --tls-cert server.pem --tls-key server.key
  rookery serve --scenario cartpole --mode federated --round-steps 4000 --rounds 100
  rookery serve --scenario cartpole --aggregation median --quorum 5 --deadline 20
  rookery serve --scenario cartpole --mode federated --target-epsilon 8 --delta 1e-4 --noise 1 \\
    --clip 1 --sample-rate 0.1 --clients 1000

The same command continues where it stopped, after Ctrl+C, kill -9 or a reboot.
"""
LIMITS: dict[str, Any] = {field.name: field.type for field in fields(Limits)}
AGGREGATIONS = ("average", "sum", "weighted", "federated", "median", "trimmed_mean", "krum")
PRIVATE = ("delta", "noise", "clip", "sample_rate", "clients")  # required by --target-epsilon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    serve_keys.add_arguments(parser)
    _add_what(parser.add_argument_group("what to train").add_argument)
    _add_where(parser.add_argument_group("HTTP server and clients").add_argument)
    _add_how(parser.add_argument_group("updates and their aggregation").add_argument)
    _add_federated(parser.add_argument_group("federated mode").add_argument)
    privacy = "differential privacy (all of these flags, or none)"
    _add_privacy(parser.add_argument_group(privacy).add_argument)
    rest = parser.add_argument_group("when to stop, and where results go")
    _add_rest(rest.add_argument)
    arguments.add_json(rest)


def _add_what(add: Add) -> None:
    add("--scenario", metavar="SCENARIO").help = (
        "scenario (named training configuration, see `rookery list`) or YAML file with settings "
        "(default: that of the earlier server in --run-dir)"
    )
    add(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE"
    ).help = (
        "setting of the scenario to change, such as learner.lr=0.001; repeatable (default: none)"
    )
    add(
        "--seed", type=arguments.whole, metavar="N"
    ).help = "seed of the network's initial parameters (default: the scenario's)"


def _add_where(add: Add) -> None:
    add(
        "--bind", default="localhost:8888", metavar="HOST:PORT"
    ).help = "address on which the server listens for clients (default localhost:8888)"
    add(
        "--tls-cert", dest="certificate", type=arguments.path, metavar="FILE"
    ).help = "TLS certificate of the server, a PEM file (default: no TLS)"
    add(
        "--tls-key", dest="private_key", type=arguments.path, metavar="FILE"
    ).help = "private key of the server's TLS certificate, a PEM file (default: no TLS)"
    add("--client-ca", type=arguments.path, metavar="FILE").help = (
        "PEM file with the CA certificate that signed the clients' certificates; only clients with "
        "such a certificate can connect, each under its common name, and they need a key only if "
        "--keys is given too (default: clients need no certificate)"
    )
    add("--keys", type=arguments.path, metavar="FILE").help = (
        "file with the secret keys of all clients, which `rookery serve keys` changes "
        "(default RUN_DIR/keys.json)"
    )
    add("--pardon", action="append", default=[], metavar="NAME").help = (
        "end the quarantine of a client, whose updates are refused because several in a row had "
        "NaN or infinity or would have made the parameters infinite; repeatable (default: none)"
    )
    add("--status-token-file", type=arguments.path, metavar="FILE").help = (
        "file with the token that HTTP requests for /status and /metrics of the server must have "
        "(default: no token; only requests from this host are answered)"
    )
    add("--memory", type=arguments.between(0.001, 1e6), default=1.0, metavar="GIB").help = (
        "GiB of memory for updates that arrive or wait for the end of their round; clients wait "
        "while there is no more (default 1)"
    )
    add("--limit", action="append", default=[], metavar="NAME=VALUE").help = (
        f"another limit of the server: {', '.join(LIMITS)}; repeatable (default: see the "
        "documentation of the parameter server)"
    )


def _add_how(add: Add) -> None:
    add("--mode", choices=("gradients", "federated"), default="gradients").help = (
        "updates that clients send: gradients (one per batch), or federated (the change of the "
        "weights in a round of local training) (default gradients)"
    )
    add("--aggregation", choices=AGGREGATIONS).help = (
        "rule that combines the updates of several clients: average, sum, weighted, federated "
        "(like weighted: an average weighted by the env steps of each client in the round), or a "
        "robust rule, which tolerates malicious clients: median, trimmed_mean, krum (default: "
        "average; in federated mode without differential privacy: federated)"
    )
    add("--every", dest="update_frequency", type=arguments.count, default=1, metavar="N").help = (
        "number of gradients that the server combines for one change of the parameters, in "
        "gradients mode without rounds (default 1)"
    )
    add("--quorum", type=arguments.count, metavar="N").help = (
        "number of clients whose updates end a round before its deadline; with --target-epsilon, "
        "number of clients that must have joined before rounds begin (default: all that have "
        "joined; with --target-epsilon half of --clients)"
    )
    add("--deadline", dest="deadline_s", type=arguments.between(0.01, 1e6), metavar="S").help = (
        "maximum seconds from the first update of a round to the end of the round, which then uses "
        "the updates that have arrived, or is skipped if they are too few (default 30)"
    )
    add("--staleness", choices=("drop", "discount", "keep"), default="discount").help = (
        "treatment of a gradient that was computed with an older version of the parameters, in "
        "gradients mode without rounds: drop (ignore it if it is more than 16 versions old), "
        "discount (the same, and divide it by 1 + its age in versions) or keep (use it unchanged) "
        "(default discount)"
    )
    add("--byzantine", type=arguments.whole, default=0, metavar="F").help = (
        "number of Byzantine (faulty or malicious) clients that a robust --aggregation must "
        "tolerate; a round then needs at least 2F + 1 clients, with krum 2F + 3 (default 0)"
    )
    add("--max-norm", type=arguments.between(1e-30, 1e30), metavar="N").help = (
        "largest L2 norm of an update; the server refuses larger ones and names their client "
        "(default: any norm that leaves parameters and optimizer finite)"
    )


def _add_federated(add: Add) -> None:
    add("--server-rule", choices=("fedavg", "fedprox", "fedadam"), default="fedavg").help = (
        "rule by which the server applies the combined weight change of a federated round: fedavg "
        "(adds it), fedprox (adds it; clients train with a proximal term that keeps them near the "
        "server's parameters) or fedadam (takes an Adam step) (default fedavg)"
    )
    add(
        "--mu", type=arguments.between(0, 1e6), metavar="M"
    ).help = "coefficient of the proximal term of --server-rule fedprox (default 0.01)"
    add("--round-steps", type=arguments.count, default=2_000, metavar="N").help = (
        "env steps that each client trains in a federated round before it sends its update "
        "(default 2000)"
    )


def _add_privacy(add: Add) -> None:
    add("--target-epsilon", type=float, metavar="E").help = (
        "privacy budget: largest epsilon that all rounds together may reach; the server stops "
        "before a round that would exceed it (default: no privacy)"
    )
    add(
        "--delta", type=float, metavar="D"
    ).help = (
        "delta of (epsilon, delta)-differential privacy, below 1 / --clients (default: no privacy)"
    )
    add("--noise", type=float, metavar="Z").help = (
        "noise multiplier: the Gaussian noise that the server adds to the sum of the updates of a "
        "round has standard deviation Z x --clip (default: no privacy)"
    )
    add("--clip", type=float, metavar="C").help = (
        "maximum L2 norm of a client's update; larger updates are scaled down to it "
        "(default: no privacy)"
    )
    add(
        "--sample-rate", type=float, metavar="Q"
    ).help = "probability with which each client takes part in a round (default: no privacy)"
    add("--clients", type=arguments.whole, metavar="N").help = (
        "number of clients for which the privacy budget is computed; no more can join "
        "(default: no privacy)"
    )


def _add_rest(add: Add) -> None:
    add("--rounds", "--updates", dest="until", type=arguments.count, metavar="N").help = (
        "stop at this version of the parameters: one version per round, or per change without "
        "rounds, counted over restarts of the server (default: no limit)"
    )
    add(
        "--run-dir", type=arguments.folder, metavar="DIR"
    ).help = "folder of the server's files (default runs/SCENARIO-server)"
    add("--quiet", action="store_true").help = "hide the progress of the server (default: show it)"


def run(args: argparse.Namespace) -> int:
    if args.command == "keys":
        return serve_keys.run(args)
    config = _config(args)
    with abrupt_exit.abrupt():
        from rookery.server.run_server import serve

    outcome = serve(plan_of(args, config))
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
    given: dict[str, Any] = {field.name: getattr(args, field.name, None) for field in fields(Plan)}
    given |= {
        "config": config,
        "run_dir": Path(args.run_dir or Path("runs") / f"{config.name}-server"),
        "host": host,
        "port": port,
        "sharing": Sharing(args.mode),
        "privacy": _privacy(args),
        "pardoned": tuple(args.pardon),
        "status_token": _token(args.status_token_file),
        "limits": limits(args.limit, int(args.memory * (1 << 30))),
    }
    return Plan(**given)


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


def _token(file: Path | None) -> str | None:
    cure = "write a long random word into one"
    return None if file is None else read_key(file, "--status-token-file", cure=cure)


def limits(pairs: list[str], memory_bytes: int) -> Limits:
    """Parses --limit NAME=VALUE, which may be repeated; returns all limits of the server."""
    given: dict[str, Any] = {"memory_bytes": memory_bytes}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in LIMITS:
            near = nearest(name, list(LIMITS))
            hint = f"did you mean {near!r}? " if near else ""
            raise ConfigError(
                f"--limit {pair!r} names no limit; {hint}write NAME=VALUE, with a NAME of "
                f"{', '.join(LIMITS)}"
            )
        try:
            given[name] = LIMITS[name](text)
        except ValueError as error:
            raise ConfigError(
                f"--limit {pair!r} has a value that is no number; write {name}={LIMITS[name](1)}"
            ) from error
    return Limits(**given)
