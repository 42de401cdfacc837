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

from rookery.cli.server.join import read_key
from rookery.config.checks import nearest
from rookery.errors import ConfigError
from rookery.server.http.limits import Limits
from rookery.terminal import abrupt_exit, arguments, output

if TYPE_CHECKING:
    from rookery.config import Config
    from rookery.server.run_server import Plan, Privacy

EXAMPLES = """\
examples:
  rookery serve keys add alice --scenario cartpole   makes a key, prints how alice joins
  rookery serve cartpole                              on this host: http://localhost:8888
  rookery serve cartpole --bind 0.0.0.0:8888 --tls-cert server.pem --tls-key server.key
  rookery serve cartpole --mode federated --round-steps 4000 --rounds 100
  rookery serve cartpole --aggregation median --quorum 5 --deadline 20
  rookery serve cartpole --mode federated --target-epsilon 8 --delta 1e-4 --noise 1 \\
    --clip 1 --sample-rate 0.1 --clients 1000

The same command continues where it stopped, after Ctrl+C, kill -9 or a reboot. `rookery help serve
keys` explains the keys of clients.
"""
LIMITS: dict[str, Any] = {field.name: field.type for field in fields(Limits)}
TOKEN_CURE = "write a long random word into one"
PRIVATE = ("delta", "noise", "clip", "sample_rate", "clients")  # required by --target-epsilon


SCENARIO = (
    "scenario (named training configuration, see `rookery list`) or YAML file with settings "
    "(default: that of the earlier server in --run-dir)"
)
WHAT = """
--scenario SCENARIO  scenario, as SCENARIO (default: none)
--seed SEED  seed of the network's initial parameters (default: the scenario's)
"""
WHERE = """
--bind HOST:PORT  address on which the server listens for clients (default localhost:8888)
--tls-cert FILE  TLS certificate of the server, a PEM file (default: no TLS)
--tls-key FILE  private key of the server's TLS certificate, a PEM file (default: no TLS)
--client-ca FILE  PEM file with the CA certificate that signed the clients' certificates; only
  clients with such a certificate can connect, each under its common name, and they need a key only
  if --keys is given too (default: clients need no certificate)
--keys FILE  file with the secret keys of all clients, which `rookery serve keys` changes (default:
  RUN_DIR/keys.json)
--pardon NAME  client whose quarantine ends: its updates are refused because several in a row had
  NaN or infinity or would have made the parameters infinite; repeatable (default: none)
--status-token-file FILE  file with the token that HTTP requests for /status and /metrics of the
  server must have (default: no token; only requests from this host are answered)
--memory GIB  GiB of memory for updates that arrive or wait for the end of their round; clients
  wait while there is no more (default 1)
"""
HOW = """
--mode {gradients,federated}  updates that clients send: gradients (one per batch), or federated
  (the change of the weights in a round of local training) (default gradients)
--aggregation {average,sum,weighted,federated,median,trimmed_mean,krum}  rule that combines the
  updates of several clients: average, sum, weighted, federated (like weighted: an average weighted
  by the env steps of each client in the round), or a robust rule, which tolerates malicious
  clients: median, trimmed_mean, krum (default: average; in federated mode without differential
  privacy: federated)
--every N  number of gradients that the server combines for one change of the parameters, in
  gradients mode without rounds (default 1)
--quorum N  number of clients whose updates end a round before its deadline; with --target-epsilon,
  number of clients that must have joined before rounds begin (default: all that have joined; with
  --target-epsilon half of --clients)
--deadline S  maximum seconds from the first update of a round to the end of the round, which then
  uses the updates that have arrived, or is skipped if they are too few (default: 30)
--staleness {drop,discount,keep}  treatment of a gradient that was computed with an older version of
  the parameters, in gradients mode without rounds: drop (ignore it if it is more than 16 versions
  old), discount (the same, and divide it by 1 + its age in versions) or keep (use it unchanged)
  (default discount)
--byzantine F  number of Byzantine (faulty or malicious) clients that a robust --aggregation must
  tolerate; a round then needs at least 2F + 1 clients, with krum 2F + 3 (default 0)
--max-norm X  largest L2 norm of an update; the server refuses larger ones and names their client
  (default: any norm that leaves parameters and optimizer finite)
"""
FEDERATED = """
--server-rule {fedavg,fedprox,fedadam}  rule by which the server applies the combined weight change
  of a federated round: fedavg (adds it), fedprox (adds it; clients train with a proximal term that
  keeps them near the server's parameters) or fedadam (takes an Adam step) (default fedavg)
--mu M  coefficient of the proximal term of --server-rule fedprox (default: 0.01)
--round-steps N  env steps that each client trains in a federated round before it sends its update
  (default 2000)
"""
PRIVACY = """
--target-epsilon X  privacy budget: largest epsilon that all rounds together may reach; the server
  stops before a round that would exceed it (default: no privacy)
--delta X  delta of (epsilon, delta)-differential privacy, below 1 / --clients (default: no privacy)
--noise X  noise multiplier: the Gaussian noise that the server adds to the sum of the updates of a
  round has standard deviation X x --clip (default: no privacy)
--clip X  maximum L2 norm of a client's update; larger updates are scaled down to it (default: no
  privacy)
--sample-rate X  probability with which each client takes part in a round (default: no privacy)
--clients N  number of clients for which the privacy budget is computed; no more can join (default:
  no privacy)
"""
REST = """
--rounds N  version of the parameters at which the server stops: one version per round, or per
  change without rounds, counted over restarts of the server (default: no limit)
--run-dir DIR  folder of the server's files (default: runs/SCENARIO-server)
--quiet  hide the progress of the server (default: show it)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    what = parser.add_argument_group("what to train")
    what.add_argument("source", nargs="?", metavar="SCENARIO", help=SCENARIO)
    arguments.add_overrides(what)
    arguments.add_flags(what, WHAT)
    where = parser.add_argument_group("HTTP server and clients")
    arguments.add_flags(where, WHERE, memory=arguments.between(0.001, 1e6))
    about = f"another limit of the server, {', '.join(LIMITS)}; repeatable (default: none)"
    arguments.add_flags(where, f"--limit NAME=VALUE  {about}")
    arguments.add_flags(
        parser.add_argument_group("updates and their aggregation"),
        HOW,
        deadline=arguments.between(0.01, 1e6),
        byzantine=arguments.whole,
        max_norm=arguments.between(1e-30, 1e30),
    )
    federated = parser.add_argument_group("federated mode")
    arguments.add_flags(federated, FEDERATED, mu=arguments.between(0, 1e6))
    privacy = parser.add_argument_group("differential privacy (all of these flags, or none)")
    arguments.add_flags(privacy, PRIVACY, clients=arguments.whole)
    rest = parser.add_argument_group("when to stop, and where results go")
    arguments.add_flags(rest, REST)
    arguments.add_json(rest)


def run(args: argparse.Namespace) -> int:
    config = _config(args)
    with abrupt_exit.abrupt():
        from rookery.server.run_server import serve

    outcome = serve(plan_of(args, config))
    answer = outcome.answer
    ended = f"{answer['run_dir']}: version {answer['version']} ({answer['reason']})"
    output.answer(args, answer, [ended, f"  rookery evaluate {answer['run_dir']}"])
    return outcome.exit_code


def _config(args: argparse.Namespace) -> "Config":
    """Returns the settings of --scenario or, without it, of the earlier server in --run-dir.

    Raises `ConfigError` if there is neither.
    """
    from rookery.config.load import RUN_FILE, load, load_run

    changes: dict[str, Any] = {} if args.seed is None else {"run.seed": args.seed}
    if (scenario := args.source or args.scenario) is not None:
        return load(scenario, overrides=args.set, changes=changes)
    if args.run_dir is not None and (args.run_dir / RUN_FILE).is_file():
        return load_run(args.run_dir, overrides=args.set, changes=changes)
    raise ConfigError(
        "no scenario was given; write rookery serve SCENARIO (`rookery list` shows them), or give "
        "the --run-dir of an earlier server"
    )


def plan_of(args: argparse.Namespace, config: "Config") -> "Plan":
    """Checks the arguments of `rookery serve`; returns the settings of the parameter server."""
    from rookery.server.advertised_settings import Sharing, refuse
    from rookery.server.run_server import Plan

    refuse(config)
    host, port = address(args.bind)
    token: Path | None = args.status_token_file
    given: dict[str, Any] = {field.name: getattr(args, field.name, None) for field in fields(Plan)}
    given |= {
        "config": config,
        "run_dir": args.run_dir or Path("runs") / f"{config.name}-server",
        "host": host,
        "port": port,
        "sharing": Sharing(args.mode),
        "update_frequency": args.every,
        "deadline_s": args.deadline,
        "until": args.rounds,
        "certificate": args.tls_cert,
        "private_key": args.tls_key,
        "privacy": _privacy(args),
        "pardoned": tuple(args.pardon),
        "status_token": token and read_key(token, "--status-token-file", cure=TOKEN_CURE),
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

    given = {"--" + name.replace("_", "-"): getattr(args, name) for name in PRIVATE}
    missing = [flag for flag, value in given.items() if value is None]
    if args.target_epsilon is None and len(missing) < len(PRIVATE):
        raise ConfigError(
            "differential privacy needs --target-epsilon; add it, or leave "
            f"{', '.join(flag for flag in given if flag not in missing)} out"
        )
    if args.target_epsilon is None:
        return None
    if missing:
        raise ConfigError(f"--target-epsilon needs {', '.join(given)}; add {', '.join(missing)}")
    own = {name: getattr(args, name) for name in PRIVATE}
    return Privacy(target_epsilon=args.target_epsilon, **own)


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
