"""Serves a scenario's parameters to clients that train them together."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli import arguments, output, signals
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.loops.serve import Plan, Privacy

EXAMPLES = """\
examples:
  rookery serve --scenario cartpole --add-client alice     a key; prints how alice joins
  rookery serve --scenario cartpole                        on this host: http://localhost:8888
  rookery serve --scenario cartpole --bind 0.0.0.0:8888 --tls-cert server.pem --tls-key server.key
  rookery serve --scenario cartpole --mode federated --round-steps 4000 --rounds 100
  rookery serve --scenario cartpole --mode federated --secure-sums --rounds 100
  rookery serve --scenario cartpole --aggregation median --quorum 5 --deadline 20
  rookery serve --scenario cartpole --mode federated --target-epsilon 8 --delta 1e-4 --noise 1 \\
    --clip 1 --sample-rate 0.1 --clients 1000

The same command again goes on where it was, after Ctrl+C, kill -9 or a reboot.
"""
AGGREGATIONS = ("average", "sum", "weighted", "federated", "median", "trimmed_mean", "krum")
PRIVATE = ("delta", "noise", "clip", "sample_rate", "clients")  # go with --target-epsilon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    _add_what(parser.add_argument_group("what is trained"))
    _add_where(parser.add_argument_group("where, and for whom"))
    _add_how(parser.add_argument_group("how updates become one"))
    _add_federated(parser.add_argument_group("of federated rounds"))
    _add_privacy(parser.add_argument_group("differential privacy (all of them, or none)"))
    _add_rest(parser.add_argument_group("until when, and what is kept"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--scenario", metavar="SCENARIO", help="a packaged one or a YAML file")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="any setting; may be given often",
    )
    group.add_argument("--seed", type=int, metavar="N", help="of the first parameters")


def _add_where(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--bind", default="localhost:8888", metavar="HOST:PORT", help="default localhost:8888"
    )
    group.add_argument("--tls-cert", metavar="FILE", help="the server's certificate (PEM)")
    group.add_argument("--tls-key", metavar="FILE", help="and its private key (PEM)")
    group.add_argument(
        "--insecure", action="store_true", help="plain HTTP beyond this host: it can be read there"
    )
    group.add_argument("--keys", metavar="FILE", help="clients' keys; default RUN_DIR/keys.json")
    group.add_argument(
        "--add-client", metavar="NAME", help="make a key, say how its owner joins, and stop"
    )
    group.add_argument(
        "--pardon",
        action="append",
        default=[],
        metavar="NAME",
        help="end the quarantine of a client that sent NaN; may be given often",
    )
    group.add_argument(
        "--status-token-file", metavar="FILE", help="who has it may read /status and /metrics"
    )


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mode",
        choices=("gradients", "federated"),
        default="gradients",
        help="what clients send: gradients (default), or what a round of training has changed",
    )
    group.add_argument("--aggregation", choices=AGGREGATIONS, help="default average or federated")
    group.add_argument(
        "--every", type=arguments.count, default=1, metavar="N", help="gradients in an update"
    )
    group.add_argument(
        "--quorum",
        type=arguments.count,
        metavar="N",
        help="clients that end a round; with a privacy budget, that must have joined before one "
        "begins (default half of --clients)",
    )
    group.add_argument(
        "--deadline",
        type=arguments.between(0.01, 1e6),
        metavar="S",
        help="seconds from a round's first update to its end; default 30",
    )
    group.add_argument(
        "--staleness",
        choices=("drop", "discount", "keep"),
        default="discount",
        help="of gradients that were computed with an older version; default discount",
    )
    group.add_argument(
        "--byzantine", type=int, default=0, metavar="F", help="liars to reckon with; default 0"
    )


def _add_federated(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server-rule",
        choices=("fedavg", "fedprox", "fedadam"),
        default="fedavg",
        help="default fedavg",
    )
    group.add_argument(
        "--mu",
        type=arguments.between(0, 1e6),
        metavar="M",
        help="how strongly fedprox holds clients near what they were served; default 0.01",
    )
    group.add_argument(
        "--secure-sums",
        action="store_true",
        help="clients mask their updates, and the server sees sums only (federated)",
    )
    group.add_argument(
        "--stay",
        type=float,
        metavar="R",
        help="share of a secure round's clients that must stay, above 0.5; default two thirds",
    )
    group.add_argument(
        "--round-steps",
        type=arguments.count,
        default=2_000,
        metavar="N",
        help="env steps of a client in a federated round; default 2000",
    )


def _add_privacy(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--target-epsilon", type=float, metavar="E", help="ends before it is passed")
    group.add_argument("--delta", type=float, metavar="D", help="below 1 / clients")
    group.add_argument("--noise", type=float, metavar="Z", help="deviation, in units of --clip")
    group.add_argument("--clip", type=float, metavar="C", help="norm of an update, at most")
    group.add_argument("--sample-rate", type=float, metavar="Q", help="of clients in each round")
    group.add_argument("--clients", type=int, metavar="N", help="how many there are")


def _add_rest(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rounds",
        "--updates",
        type=arguments.count,
        dest="until",
        metavar="N",
        help="ends at this version, counted over all restarts",
    )
    group.add_argument("--run-dir", metavar="DIR", help="default runs/SCENARIO-server")
    group.add_argument("--json", action="store_true", help="one JSON object as the last line")
    group.add_argument("--quiet", action="store_true", help="no lines about progress")


def run(args: argparse.Namespace) -> int:
    config = _config(args)
    with signals.abrupt():
        from rookery.loops.serve import serve

    plan = plan_of(args, config)
    if args.add_client:
        return add_client(plan, args.add_client, json=args.json)
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
    """Reads the scenario, or what a folder has been serving."""
    from rookery.config.load import RUN_FILE, load, load_run

    changes: dict[str, Any] = {} if args.seed is None else {"run.seed": args.seed}
    if args.scenario is not None:
        return load(args.scenario, overrides=args.overrides, changes=changes)
    if args.run_dir is not None and (Path(args.run_dir) / RUN_FILE).is_file():
        return load_run(args.run_dir, overrides=args.overrides, changes=changes)
    raise ConfigError(
        "nothing to serve was named; give --scenario (`rookery list` shows them), or the "
        "--run-dir of a server that was there before"
    )


def plan_of(args: argparse.Namespace, config: "Config") -> "Plan":
    """Returns what is to be served, checked as far as it can be."""
    from rookery.loops.notice import Sharing, refuse
    from rookery.loops.serve import Plan

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
        server_rule=args.server_rule,
        mu=args.mu,
        secure=args.secure_sums,
        stay=args.stay,
        round_steps=args.round_steps,
        until=args.until,
        privacy=_privacy(args),
        pardoned=tuple(args.pardon),
        keys=_path(args.keys),
        certificate=_path(args.tls_cert),
        private_key=_path(args.tls_key),
        status_token=_token(args.status_token_file),
        insecure=args.insecure,
        quiet=args.quiet,
    )


def address(bind: str) -> tuple[str, int]:
    """Reads HOST:PORT."""
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"--bind is {bind!r}; write HOST:PORT, such as localhost:8888, with port 0 for any"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _privacy(args: argparse.Namespace) -> "Privacy | None":
    from rookery.loops.serve import Privacy

    given = {name: getattr(args, name) for name in PRIVATE}
    missing = [name for name, value in given.items() if value is None]
    if args.target_epsilon is None:
        if len(missing) < len(PRIVATE):
            raise ConfigError(
                "differential privacy was half asked for; give --target-epsilon too, or leave "
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


def add_client(plan: "Plan", client: str, *, json: bool) -> int:
    """Makes a key for a client, in the server's file and in one to be brought to the client."""
    from rookery.loops.serve import join_line, key_file
    from rookery.server.keys import Keys
    from rookery.server.protocol import checked_name

    checked_name(client)
    keys, own = plan.keys_file, key_file(plan.keys_file, client)
    try:
        keys.parent.mkdir(parents=True, exist_ok=True)
        key = Keys(keys).issue(client)
        with contextlib.suppress(FileNotFoundError):
            own.unlink()  # of a key that is void now
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
    except OSError as error:
        raise ConfigError(
            f"the key of {client} cannot be kept beside {keys}: {error}; name another --keys"
        ) from error
    scheme = "https" if plan.certificate else "http"
    line = join_line(plan, f"{scheme}://{plan.host}:{plan.port}", client)
    if json:
        output.say_json({"client": client, "keys": str(keys), "key_file": str(own), "join": line})
    else:
        output.say(f"bring {own} to {client} by a safe way; {client} joins with", f"  {line}")
    return 0
