"""`rookery serve`: the parameters of a scenario, served until somebody or something ends it.

    run_dir/
        config.yaml     the scenario, as clients are told of it
        server/         checkpoint and journal of the parameter server
        ledger.json     what clients' privacy has cost so far
        keys.json       clients' keys
        checkpoints/    the policy now and then, for `rookery evaluate`

Whoever starts it again with the same folder goes on where it was, whatever ended it.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rookery.algorithms import Algorithm, build_algorithm, row_spec
from rookery.checkpoints import run_folder
from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import Saver
from rookery.config.load import RUN_FILE, differences, load_run
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError, LostError
from rookery.event import Counters
from rookery.learner.learner import Learner, trained
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import arrays_of, fingerprint
from rookery.runtime.signals import Interrupts
from rookery.server.advertised_settings import KEY, Notice, Sharing, portable, settings_of
from rookery.server.aggregate import ROBUST
from rookery.server.federated import MU, FederatedParameterServer, ServerRule
from rookery.server.parameter_server import Parameters, ParameterServer, Receipt
from rookery.server.privacy.privacy_budget import LOCK, Ledger
from rookery.server.serve_report import progress, say, welcome
from rookery.types import Array, EnvSpec

STORE, LEDGER, KEYS = "server", "ledger.json", "keys.json"
ROUND_S = 30.0  # from a round's first update to its end, unless it is said
LOOK_S = 0.1  # between two looks at what has happened
REPORT_S = 10.0  # between two lines about it
KEEP_S = 60.0  # between two policies for `rookery evaluate`
LINGER_S = 10.0  # for clients to hear that it is over
KEPT = 2  # policies


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What is promised to clients. See `server/privacy/noise.py` for the units."""

    target_epsilon: float
    delta: float
    noise: float
    clip: float
    sample_rate: float
    clients: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be served, and how."""

    config: Config
    run_dir: Path
    host: str = "localhost"
    port: int = 8888
    sharing: Sharing = Sharing.GRADIENTS
    aggregation: str | None = None  # None: average; federated ones by the number of rows
    update_frequency: int = 1  # gradients in an update, where nobody waits
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
    status_token: str | None = None
    memory_bytes: int = 1 << 30  # of updates in an open round or on their way
    quiet: bool = False

    @property
    def keys_file(self) -> Path:
        return self.keys or self.run_dir / KEYS

    @property
    def round_s(self) -> float:
        """How long a round takes at most."""
        return ROUND_S if self.deadline_s is None else self.deadline_s


class ServerOutcome(NamedTuple):
    """How it ended."""

    answer: dict[str, Any]
    exit_code: int


class ServedPolicy:
    """The networks of a scenario, as they are served and as they are saved."""

    def __init__(self, config: Config):
        envs = make(config.env, 1)
        try:
            self.spec: EnvSpec = envs.spec
        finally:
            envs.close()
        self.algorithm: Algorithm = build_algorithm(config, self.spec)
        Learner(  # for the parts that a learner adds to the networks
            self.algorithm, config.learner, config.env, pick_device("cpu"), seed=config.run.seed
        )
        self._trained = trained(self.algorithm)
        self.spec = row_spec(self.spec, self.algorithm)

    def parameters(self) -> dict[str, Array]:
        """Returns what is trained, by name."""
        return {n: p.detach().numpy().copy() for n, p in self._trained.items()}

    def content(self, served: Parameters) -> Content:
        """Returns a checkpoint of the policy with these parameters."""
        import torch

        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(torch.from_numpy(served.arrays[name].copy()))
        self.algorithm.update_targets(0)
        return Content(
            env_steps=served.version,  # what its folder is named by
            version=served.version,
            exact=True,
            final=True,
            about={
                "counters": asdict(Counters(0, served.version, 0)),
                "spec": asdict(self.spec),
                "score": None,
            },
            weights={n: a.copy() for n, a in arrays_of(self.algorithm.acting).items()},
        )


class Served:
    """A parameter server as clients see it: it says what is trained, and when that is over."""

    def __init__(self, server: ParameterServer, notice: Notice, ledger: Ledger | None):
        self.server, self.notice, self.ledger = server, notice, ledger
        server.last_version = notice.until

    @property
    def version(self) -> int:
        return self.server.version

    @property
    def one_voice(self) -> bool:
        return self.server.one_voice

    @property
    def over(self) -> str | None:
        """Returns why there will be no other version, or None."""
        if self.notice.until is not None and self.version >= self.notice.until:
            return "limit"
        if self.ledger is not None and self.ledger.would_be() > self.ledger.target_epsilon:
            return "budget"
        return None

    @property
    def pending_bytes(self) -> int:
        return self.server.pending_bytes

    @property
    def round_bytes(self) -> int:
        return self.server.round_bytes

    def get_parameters(self, newer_than: int = -1) -> Any:
        return self.server.get_parameters(newer_than)

    def register_worker(self, worker: str) -> int:
        return self.server.register_worker(worker)

    def unregister_worker(self, worker: str) -> None:
        self.server.unregister_worker(worker)

    def push_gradients(
        self,
        worker: str,
        grads: dict[str, Any],
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt:
        return self.server.push_gradients(worker, grads, weight, version=version, push_id=push_id)

    def get_server_stats(self) -> dict[str, Any]:
        return self.server.get_server_stats() | self._told()

    def get_client_stats(self) -> dict[str, Any]:
        return self.server.get_client_stats() | self._told()

    def _told(self) -> dict[str, Any]:
        return {KEY: self.notice.told(), "over": self.over or ""}


def serve(plan: Plan) -> ServerOutcome:
    """Serves until a limit, a budget or a signal ends it; returns how."""
    from rookery.server.http.limits import Limits
    from rookery.server.http.service import Service

    with (
        Interrupts() as interrupts,
        contextlib.ExitStack() as stack,
        contextlib.ExitStack() as undo,
    ):
        refuse(plan)
        config = _claim(plan, stack, undo)
        policy = ServedPolicy(config)
        ledger = _ledger(plan)
        server = SERVERS[plan.sharing](plan, config, policy.parameters(), ledger)
        stack.callback(server.close)
        mu = server.mu if isinstance(server, FederatedParameterServer) else 0.0
        served = Served(server, _notice(plan, config, mu), ledger)
        service = Service(
            served,
            plan.host,
            plan.port,
            keys=plan.keys_file,
            certificate=plan.certificate,
            private_key=plan.private_key,
            status_token=plan.status_token,
            limits=Limits(memory_bytes=plan.memory_bytes),
        )
        url = service.start()
        stack.callback(service.stop)
        undo.pop_all()  # from here on clients may have brought something
        run_folder.write_config(plan.run_dir, config)
        pardon(server, plan.pardoned)
        saver = Saver(plan.run_dir, keep=KEPT)
        stack.callback(saver.close)
        watch = Watch(plan, served, policy, saver, interrupts, alive=lambda: service.alive)
        welcome(plan, url, served)
        interrupts.begin()
        why = watch.until_over()
        return ServerOutcome(watch.answer(url, why), interrupts.exit_code)


class Clash(NamedTuple):
    """Flags that do not go together."""

    holds: Callable[[Plan], bool]
    message: str


CLASHES = (
    Clash(
        lambda plan: plan.mu is not None and plan.server_rule != ServerRule.FEDPROX,
        "--mu is how strongly FedProx holds clients near what they were served, and the server "
        "rule is another; say --server-rule fedprox, or leave --mu out",
    ),
    Clash(
        lambda plan: plan.sharing is Sharing.GRADIENTS and plan.server_rule != ServerRule.FEDAVG,
        "--server-rule is for rounds of training, and clients send gradients; say --mode "
        "federated, or leave --server-rule out",
    ),
    Clash(
        lambda plan: plan.max_norm is not None and plan.privacy is not None,
        "--max-norm refuses updates above a norm, and with differential privacy --clip scales them "
        "down to one; leave --max-norm out",
    ),
)


def refuse(plan: Plan) -> None:
    """Refuses settings that do not go together."""
    for clash in CLASHES:
        if clash.holds(plan):
            raise ConfigError(clash.message)


def _claim(plan: Plan, stack: contextlib.ExitStack, undo: contextlib.ExitStack) -> Config:
    """Makes or finds the folder, and keeps every other server out of it.

    `undo` takes away what was made here: with a request that is refused, nothing is left.
    """
    config = portable(plan.config)
    missing = [path for path in (plan.run_dir, *plan.run_dir.parents) if not path.exists()]
    try:
        plan.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{plan.run_dir} cannot be made: {error}; name another folder") from error
    stack.enter_context(run_folder.Lock(plan.run_dir))
    if not any((plan.run_dir / name).exists() for name in (RUN_FILE, STORE, LEDGER)):
        undo.callback(_clear, plan.run_dir, missing)
    if not (plan.run_dir / RUN_FILE).exists():
        run_folder.describe(plan.run_dir, config)
        return config
    for change in differences(load_run(plan.run_dir), config):
        say(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    return config


def _clear(run_dir: Path, made: Sequence[Path]) -> None:
    """Empties a folder that nobody was served from; keys of clients stay."""
    shutil.rmtree(run_dir / STORE, ignore_errors=True)
    run_folder.forget(run_dir)
    for name in (LEDGER, LEDGER + LOCK, run_folder.LOCK):
        (run_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # keys are in it, or somebody else's files
        for path in made:
            path.rmdir()


def _notice(plan: Plan, config: Config, mu: float) -> Notice:
    settings = settings_of(config)
    rest = (plan.round_steps, plan.round_s, plan.until, mu)
    return Notice(plan.sharing, settings, *rest)


def _ledger(plan: Plan) -> Ledger | None:
    if (given := plan.privacy) is None:
        return None
    if plan.sharing is not Sharing.FEDERATED:
        raise ConfigError(
            "a privacy budget was given for gradients, of which a client sends thousands; say "
            "--mode federated, or leave --target-epsilon out"
        )
    return Ledger(
        given.target_epsilon,
        given.delta,
        noise_multiplier=given.noise,
        sample_rate=given.sample_rate,
        clients=given.clients,
        path=plan.run_dir / LEDGER,
    )


def _of_gradients(
    plan: Plan, config: Config, arrays: dict[str, Array], ledger: Ledger | None
) -> ParameterServer:
    aggregation = plan.aggregation or "average"
    rounds = plan.quorum is not None or plan.deadline_s is not None or aggregation in ROBUST
    return ParameterServer(
        arrays,
        aggregation,
        plan.update_frequency,
        checkpoint_path=plan.run_dir / STORE,
        optimizer=config.learner.optimizer.value,
        lr=config.learner.lr,
        optimizer_kwargs=config.learner.optimizer_kwargs,
        synchronous=rounds,
        quorum=plan.quorum,
        deadline_s=plan.round_s,
        staleness=plan.staleness,
        byzantine=plan.byzantine,
        max_norm=plan.max_norm,
    )


def _of_rounds(
    plan: Plan, config: Config, arrays: dict[str, Array], ledger: Ledger | None
) -> ParameterServer:
    private = plan.privacy
    return FederatedParameterServer(
        arrays,
        plan.aggregation or ("federated" if private is None else "average"),
        save_frequency=10,
        checkpoint_path=plan.run_dir / STORE,
        min_workers_for_update=plan.quorum or 2,
        differential_privacy=private is not None,
        clip_norm=1.0 if private is None else private.clip,
        ledger=ledger,
        server_rule=plan.server_rule,
        mu=MU if plan.mu is None else plan.mu,
        quorum=plan.quorum,
        deadline_s=plan.round_s,
        byzantine=plan.byzantine,
        max_norm=plan.max_norm,
    )


Making = Callable[[Plan, Config, dict[str, Array], Ledger | None], ParameterServer]
SERVERS: dict[Sharing, Making] = {
    Sharing.GRADIENTS: _of_gradients,
    Sharing.FEDERATED: _of_rounds,
}


class Watch:
    """Looks after a server that others use: deadlines, reports, saved policies, the end."""

    def __init__(
        self,
        plan: Plan,
        served: Served,
        policy: ServedPolicy,
        saver: Saver,
        interrupts: Interrupts,
        *,
        alive: Callable[[], bool],
    ):
        """`alive` says whether clients are still answered."""
        self.plan, self.served, self.policy = plan, served, policy
        self.saver, self.interrupts, self._alive = saver, interrupts, alive
        self._reported = self._kept = time.monotonic()
        self._said = self._saved = served.version

    def until_over(self) -> str:
        """Waits for the end; returns its reason. Clients are given time to hear of it."""
        while self.interrupts.reason is None:
            if (why := self.served.over) is not None:
                say(f"over ({why}) at version {self.served.version}")
                self._linger()
                return str(self.interrupts.reason or why)
            self._look()
            time.sleep(LOOK_S)
        return str(self.interrupts.reason)

    def _look(self) -> None:
        """Asking for the version also ends a round whose deadline has passed."""
        if not self._alive():
            raise LostError(
                "nobody answers clients any more: the service ended by itself; what was "
                "acknowledged is on the disk, and the same command goes on with it"
            )
        now, version = time.monotonic(), self.served.version
        if now - self._reported >= REPORT_S and version != self._said:
            if not self.plan.quiet:
                rate = (version - self._said) / (now - self._reported)
                say(f"{progress(self.served)}, {rate:.1f} versions/s")
            self._reported, self._said = now, version
        if now - self._kept >= KEEP_S and version != self._saved:
            self._keep()
        for complaint in self.saver.take_failures():
            say(complaint)

    def _linger(self) -> None:
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until and self.interrupts.reason is None:
            if not self.served.get_server_stats()["workers"]:
                return
            time.sleep(LOOK_S)

    def _keep(self) -> Content:
        served = self.served.get_parameters()
        content = self.policy.content(served)
        self.saver.save(content, oldest=(), done=lambda folder: None)
        self._kept, self._saved = time.monotonic(), served.version
        return content

    def answer(self, url: str, why: str) -> dict[str, Any]:
        """Saves what there is, and returns what it came to."""
        content = self._keep()
        self.served.server.save_checkpoint()
        self.saver.flush(timeout_s=60.0)
        stats = self.served.get_server_stats()
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
    """Believes clients again whose updates were not finite."""
    guilty = server.get_server_stats()["quarantined"] if names else []
    for name in names:
        server.pardon_worker(name)
        say(f"{name} is {'pardoned' if name in guilty else 'not in quarantine'}")
