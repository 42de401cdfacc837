"""`rookery serve`: serves the parameters of a scenario until a limit, a budget or a signal.

    run_dir/
        config.yaml     the scenario, as clients are told of it
        server/         checkpoint and journal of the parameter server
        ledger.json     what clients' privacy has cost so far
        keys.json       clients' keys
        address.json    where clients find it
        checkpoints/    the policy now and then, for `rookery evaluate`

The same command with the same folder goes on where it was, whatever ended it.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rookery.algorithms import build_algorithm, row_spec
from rookery.checkpoints import run_folder
from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import Saver
from rookery.config.load import RUN_FILE, differences, load_run
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError, LostError
from rookery.event import Counters
from rookery.learner.gradients import GradientLearner
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.runtime.signals import Interrupts
from rookery.server.advertised_settings import KEY, Notice, Sharing, portable, settings_of
from rookery.server.aggregate import ROBUST
from rookery.server.federated import MU, FederatedParameterServer, ServerRule
from rookery.server.http.limits import Limits
from rookery.server.parameter_server import Parameters, ParameterServer
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.serve_report import CommandOutcome, progress, reachable, welcome
from rookery.terminal import output
from rookery.types import Array

STORE, LEDGER, KEYS = "server", "ledger.json", "keys.json"
SERVICE = ("certificate", "private_key", "client_ca", "status_token", "limits")  # of a plan
RULES = ("quorum", "staleness", "byzantine", "max_norm")  # of a plan
ROUND_S = 30.0  # from a round's first update to its end, unless it is said
LOOK_S = 0.1  # between two looks at what has happened
REPORT_S = 10.0  # between two lines about it
KEEP_S = 60.0  # between two policies for `rookery evaluate`
LINGER_S = 10.0  # for clients to hear that it is over
KEPT = 2  # policies


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The settings of differential privacy; `server/privacy/noise.py` has their units."""

    target_epsilon: float
    delta: float
    noise: float
    clip: float
    sample_rate: float
    clients: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of `rookery serve`."""

    config: Config
    run_dir: Path
    host: str = "localhost"
    port: int = 8888
    sharing: Sharing = Sharing.GRADIENTS
    aggregation: str | None = None  # None: average; federated ones by the number of rows
    update_frequency: int = 1  # gradients in an update, outside of rounds
    quorum: int | None = None  # clients that end a round; under privacy, that rounds begin with
    deadline_s: float | None = None  # of a round; None: ROUND_S
    staleness: str = "discount"
    byzantine: int = 0  # liars that a robust aggregation reckons with
    max_norm: float | None = None  # L2 norm of an update; None: any
    server_rule: str = "fedavg"
    mu: float | None = None  # of fedprox; None: the server's own
    round_steps: int = 2_000  # env steps of a client in a federated round
    until: int | None = None  # version
    privacy: Privacy | None = None
    pardoned: tuple[str, ...] = ()  # clients whose quarantine ends with this start
    keys: Path | None = None  # None: in the run's folder
    certificate: Path | None = None
    private_key: Path | None = None
    client_ca: Path | None = None  # signs the certificates of clients; None: they need none
    status_token: str | None = None
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    quiet: bool = False

    @property
    def known_keys(self) -> Path | None:
        """The file of clients' keys; None: a certificate is all that a client needs."""
        return self.keys if self.client_ca else self.keys or self.run_dir / KEYS

    @property
    def round_s(self) -> float:
        """Maximum seconds of a round, from its first update."""
        return ROUND_S if self.deadline_s is None else self.deadline_s


class ServedPolicy:
    """The networks of a scenario, as they are served and as they are saved."""

    def __init__(self, config: Config):
        with contextlib.closing(make(config.env, 1)) as envs:
            algorithm = build_algorithm(config, envs.spec)
        device, seed = pick_device("cpu"), config.run.seed
        self.learner = GradientLearner(algorithm, config.learner, config.env, device, seed=seed)
        self.spec = row_spec(envs.spec, algorithm)

    def content(self, served: Parameters) -> Content:
        """Returns a checkpoint of the policy with these parameters."""
        self.learner.load(served.arrays, 0)
        acting, version = arrays_of(self.learner.algorithm.acting), served.version
        counters, spec = asdict(Counters(0, version, 0)), asdict(self.spec)
        about = {"counters": counters, "spec": spec, "score": None}
        weights = {name: array.copy() for name, array in acting.items()}
        # its folder is named by the version, in the place of env steps
        return Content(version, version, exact=True, final=True, about=about, weights=weights)


def serve(plan: Plan) -> CommandOutcome:
    """Serves parameters until a limit, a budget or a signal; returns the result."""
    from rookery.server.http.service import Service

    with (
        Interrupts() as interrupts,
        contextlib.ExitStack() as stack,
        contextlib.ExitStack() as undo,
    ):
        refuse(plan)
        config = _claim(plan, stack, undo)
        policy = ServedPolicy(config)
        server = SERVERS[plan.sharing](plan, config, policy.learner.parameters())
        stack.callback(server.close)
        server.last_version = plan.until
        notice = _notice(plan, config, server)
        service = Service(
            server,
            plan.host,
            plan.port,
            keys=plan.known_keys,
            announced=lambda: {KEY: notice.told()},
            **_given(plan, SERVICE),
        )
        url = reachable(service.start())
        stack.callback(service.stop)
        undo.pop_all()  # from here on clients may have brought something
        run_folder.write_config(plan.run_dir, config)
        pardon(server, plan.pardoned)
        saver = Saver(plan.run_dir, keep=KEPT)
        stack.callback(saver.close)
        watch = Watch(plan, server, policy, saver, interrupts, alive=lambda: service.alive)
        welcome(plan, url, server)
        interrupts.begin()
        why = watch.until_over()
        return CommandOutcome(watch.answer(url, why), interrupts.exit_code)


def refuse(plan: Plan) -> None:
    """Raises ConfigError for settings that do not go together."""
    gradients, private = plan.sharing is Sharing.GRADIENTS, plan.privacy is not None
    rule = plan.server_rule
    clashes = {
        "--mu is the coefficient of FedProx, and the server rule is another; say --server-rule "
        "fedprox, or leave --mu out": plan.mu is not None and rule != ServerRule.FEDPROX,
        "--server-rule is for rounds of training, and clients send gradients; say --mode "
        "federated, or leave --server-rule out": gradients and rule != ServerRule.FEDAVG,
        "--max-norm refuses updates above a norm, and with differential privacy --clip scales them "
        "down to one; leave --max-norm out": private and plan.max_norm is not None,
        "a privacy budget was given for gradients, of which a client sends thousands; say --mode "
        "federated, or leave --target-epsilon out": gradients and private,
    }
    for message, clash in clashes.items():
        if clash:
            raise ConfigError(message)


def _claim(plan: Plan, stack: contextlib.ExitStack, undo: contextlib.ExitStack) -> Config:
    """Makes or finds the run folder, and locks it.

    `undo` takes away what was made here: with a request that is refused, nothing is left.
    """
    config = portable(plan.config)
    here = replace(config.run, run_dir=str(plan.run_dir))
    folder = run_folder.make(replace(config, run=here))
    stack.enter_context(run_folder.locked(plan.run_dir))
    undo.callback(folder.undo)
    if not (plan.run_dir / RUN_FILE).exists():
        run_folder.describe(plan.run_dir, config)
        return config
    for change in differences(load_run(plan.run_dir), config):
        output.notice(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    return config


def _notice(plan: Plan, config: Config, server: ParameterServer) -> Notice:
    mu = server.mu if isinstance(server, FederatedParameterServer) else 0.0
    settings = settings_of(config)
    return Notice(plan.sharing, settings, plan.round_steps, plan.round_s, plan.until, mu)


def _given(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in names}


def _ledger(plan: Plan) -> Ledger | None:
    if plan.privacy is None:
        return None
    given = asdict(plan.privacy)
    del given["clip"]
    return Ledger(noise_multiplier=given.pop("noise"), path=plan.run_dir / LEDGER, **given)


def _gradient_server(plan: Plan, config: Config, arrays: dict[str, Array]) -> ParameterServer:
    aggregation, learner = plan.aggregation or "average", config.learner
    return ParameterServer(
        arrays,
        aggregation,
        plan.update_frequency,
        checkpoint_path=plan.run_dir / STORE,
        optimizer=learner.optimizer.value,
        lr=learner.lr,
        optimizer_kwargs=learner.optimizer_kwargs,
        synchronous=bool(plan.quorum or plan.deadline_s) or aggregation in ROBUST,
        deadline_s=plan.round_s,
        **_given(plan, RULES),
    )


def _federated_server(plan: Plan, config: Config, arrays: dict[str, Array]) -> ParameterServer:
    private = plan.privacy
    return FederatedParameterServer(
        arrays,
        plan.aggregation or ("federated" if private is None else "average"),
        save_frequency=10,
        checkpoint_path=plan.run_dir / STORE,
        min_workers_for_update=plan.quorum or 2,
        differential_privacy=private is not None,
        clip_norm=1.0 if private is None else private.clip,
        ledger=_ledger(plan),
        server_rule=plan.server_rule,
        mu=MU if plan.mu is None else plan.mu,
        deadline_s=plan.round_s,
        **_given(plan, RULES),
    )


SERVERS: dict[Sharing, Callable[[Plan, Config, dict[str, Array]], ParameterServer]] = {
    Sharing.GRADIENTS: _gradient_server,
    Sharing.FEDERATED: _federated_server,
}


@dataclass
class Watch:
    """The main loop of `rookery serve`: closes rounds, reports, saves policies, ends."""

    plan: Plan
    server: ParameterServer
    policy: ServedPolicy
    saver: Saver
    interrupts: Interrupts
    alive: Callable[[], bool]  # are clients still answered?

    def __post_init__(self) -> None:
        self._reported = self._kept = time.monotonic()
        self._said = self._saved = self.server.version

    def until_over(self) -> str:
        """Waits for the end of training, and until clients know of it; returns its reason."""
        while self.interrupts.reason is None:
            if (why := self.server.over) is not None:
                output.notice(f"over ({why}) at version {self.server.version}")
                self._linger()
                return str(self.interrupts.reason or why)
            self._look()
            time.sleep(LOOK_S)
        return str(self.interrupts.reason)

    def _look(self) -> None:
        """Reports and saves when due; reading the version also closes a round at its deadline."""
        if not self.alive():
            raise LostError(
                "clients are not answered any more: the service ended by itself; what was "
                "acknowledged is on the disk, and the same command goes on with it"
            )
        now, version = time.monotonic(), self.server.version
        if now - self._reported >= REPORT_S and version != self._said:
            if not self.plan.quiet:
                rate = (version - self._said) / (now - self._reported)
                output.notice(f"{progress(self.server)}, {rate:.1f} versions/s")
            self._reported, self._said = now, version
        if now - self._kept >= KEEP_S and version != self._saved:
            self._keep()
        for complaint in self.saver.take_failures():
            output.notice(complaint)

    def _linger(self) -> None:
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until and self.interrupts.reason is None:
            if not self.server.get_server_stats()["workers"]:
                return
            time.sleep(LOOK_S)

    def _keep(self) -> Content:
        served = self.server.newest
        content = self.policy.content(served)
        self.saver.save(content, oldest=(), done=lambda folder: None)
        self._kept, self._saved = time.monotonic(), served.version
        return content

    def answer(self, url: str, why: str) -> dict[str, Any]:
        """Saves everything, and returns the result as `rookery serve --json` prints it."""
        content = self._keep()
        self.server.save_checkpoint()
        self.saver.flush(timeout_s=60.0)
        stats = self.server.get_server_stats()
        return {
            "run_dir": str(self.plan.run_dir),
            "url": url,
            "mode": self.plan.sharing.value,
            "version": stats["version"],
            "counts": stats["counts"],
            "epsilon": stats.get("epsilon"),
            "reason": why,
            "weights_sha256": fingerprint(content.weights),
        }


def pardon(server: ParameterServer, names: Sequence[str]) -> None:
    """Ends the quarantine of clients, and reports which were in it."""
    guilty = server.get_server_stats()["quarantined"] if names else []
    for name in names:
        server.pardon_worker(name)
        output.notice(f"{name} is {'pardoned' if name in guilty else 'not in quarantine'}")
