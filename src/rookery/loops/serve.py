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
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rookery.algos import Algorithm, build_algorithm, written
from rookery.config.load import RUN_FILE, differences, load_run
from rookery.config.schema import Config
from rookery.envs.make import make
from rookery.errors import ConfigError, LostError, RefusedError
from rookery.event import Counters
from rookery.learner import Learner, pick_device, trained
from rookery.loops.notice import KEY, Notice, Sharing, portable, settings_of
from rookery.manage import folder
from rookery.manage.checkpoint import Content
from rookery.manage.interrupts import Interrupts
from rookery.manage.saver import Saver
from rookery.nets.arrays import arrays_of, fingerprint
from rookery.server.aggregate import ROBUST
from rookery.server.federated import FederatedParameterServer
from rookery.server.keys import Keys
from rookery.server.ledger import Ledger
from rookery.server.parameters import Parameters, ParameterServer, Receipt
from rookery.types import Array, EnvSpec

STORE, LEDGER, KEYS = "server", "ledger.json", "keys.json"
LOOK_S = 0.1  # between two looks at what has happened
REPORT_S = 10.0  # between two lines about it
KEEP_S = 60.0  # between two policies for `rookery evaluate`
LINGER_S = 10.0  # for clients to hear that it is over
KEPT = 2  # policies


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What is promised to clients. See `server/privacy.py` for the units."""

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
    quorum: int | None = None  # clients that end a round
    deadline_s: float | None = None  # of a round
    staleness: str = "discount"
    byzantine: int = 0  # liars that a robust aggregation reckons with
    server_rule: str = "fedavg"
    round_steps: int = 2_000  # env steps of a client in a federated round
    until: int | None = None  # version
    privacy: Privacy | None = None
    keys: Path | None = None  # None: in the run's folder
    certificate: Path | None = None
    private_key: Path | None = None
    status_token: str | None = None
    insecure: bool = False
    quiet: bool = False

    @property
    def keys_file(self) -> Path:
        return self.keys or self.run_dir / KEYS


class Outcome(NamedTuple):
    """How it ended."""

    answer: dict[str, Any]
    exit_code: int


class Policy:
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
        self.spec = written(self.spec, self.algorithm)

    def parameters(self) -> dict[str, Array]:
        """Returns what is trained, by name."""
        return {n: p.detach().numpy().copy() for n, p in self._trained.items()}

    def content(self, served: Parameters) -> Content:
        """Returns a checkpoint of the policy with these parameters."""
        import torch

        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(torch.from_numpy(served.arrays[name].copy()))
        self.algorithm.settle(0)
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
        self._turn = threading.Lock()

    @property
    def version(self) -> int:
        return self.server.version

    @property
    def over(self) -> str | None:
        """Returns why there will be no other version, or None."""
        if self.notice.until is not None and self.version >= self.notice.until:
            return "limit"
        if self.ledger is not None and self.ledger.would_be() > self.ledger.target_epsilon:
            return "budget"
        return None

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
        with self._turn if self.notice.until is not None else contextlib.nullcontext():
            if (why := self.over) is not None:
                raise RefusedError(
                    f"training is over at version {self.version} ({why}); pull it, and leave",
                    "over",
                )
            return self.server.push_gradients(
                worker, grads, weight, version=version, push_id=push_id
            )

    def get_server_stats(self) -> dict[str, Any]:
        return {
            **self.server.get_server_stats(),
            KEY: self.notice.told(),
            "over": self.over or "",
        }


def serve(plan: Plan) -> Outcome:
    """Serves until a limit, a budget or a signal ends it; returns how."""
    from rookery.server.service import Service

    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        config = _claim(plan, stack)
        policy = Policy(config)
        ledger = _ledger(plan)
        server = _server(plan, config, policy.parameters(), ledger)
        stack.callback(server.close)
        served = Served(server, _notice(plan, config), ledger)
        service = Service(
            served,
            plan.host,
            plan.port,
            keys=plan.keys_file,
            certificate=plan.certificate,
            private_key=plan.private_key,
            status_token=plan.status_token,
            insecure=plan.insecure,
        )
        url = service.start()
        stack.callback(service.stop)
        saver = Saver(plan.run_dir, keep=KEPT)
        stack.callback(saver.close)
        watch = Watch(plan, served, policy, saver, interrupts, alive=lambda: service.alive)
        welcome(plan, url, served)
        interrupts.begin()
        why = watch.until_over()
        return Outcome(watch.answer(url, why), interrupts.exit_code)


def _claim(plan: Plan, stack: contextlib.ExitStack) -> Config:
    """Makes or finds the folder, and keeps every other server out of it."""
    config = portable(plan.config)
    try:
        plan.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{plan.run_dir} cannot be made: {error}; name another folder") from error
    stack.enter_context(folder.Lock(plan.run_dir))
    if not (plan.run_dir / RUN_FILE).exists():
        folder.describe(plan.run_dir, config)
        return config
    for change in differences(load_run(plan.run_dir), config):
        say(f"changed: {change.key} {change.before!r} -> {change.after!r}")
    folder.write_config(plan.run_dir, config)
    return config


def _notice(plan: Plan, config: Config) -> Notice:
    deadline_s = 30.0 if plan.deadline_s is None else plan.deadline_s
    settings = settings_of(config)
    return Notice(plan.sharing, settings, plan.round_steps, deadline_s, plan.until)


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


def _server(
    plan: Plan, config: Config, arrays: dict[str, Array], ledger: Ledger | None
) -> ParameterServer:
    return SERVERS[plan.sharing](plan, config, arrays, ledger)


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
        deadline_s=30.0 if plan.deadline_s is None else plan.deadline_s,
        staleness=plan.staleness,
        byzantine=plan.byzantine,
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
        quorum=plan.quorum,
        deadline_s=30.0 if plan.deadline_s is None else plan.deadline_s,
        byzantine=plan.byzantine,
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
        policy: Policy,
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
        for complaint in self.saver.complaints():
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


def progress(served: Served) -> str:
    """Says how far it is."""
    stats = served.get_server_stats()
    words = [f"version {stats['version']}", f"{len(stats['workers'])} clients"]
    if stats.get("epsilon") is not None:
        words.append(f"epsilon {stats['epsilon']:.3g} of {stats['target_epsilon']:g}")
    if stats["quarantined"]:
        words.append(f"in quarantine: {', '.join(stats['quarantined'])}")
    if stats["trouble"]:
        words.append(stats["trouble"])
    return ", ".join(words)


def welcome(plan: Plan, url: str, served: Served) -> None:
    """Says where clients find it and how they join."""
    clients = list(Keys(plan.keys_file))
    say(f"serving {plan.config.name} ({plan.sharing}) at {url}; {progress(served)}")
    if not clients:
        say(f"no client has a key yet: rookery serve --add-client NAME --keys {plan.keys_file}")
    for client in clients[:8]:
        say(f"  {join_line(plan, url, client)}")
    if served.notice.until is not None:
        say(f"until version {served.notice.until}")


def join_line(plan: Plan, url: str, client: str) -> str:
    """Returns the command with which a client joins."""
    trust = "" if plan.certificate is None else f" --ca {plan.certificate}"
    key = key_file(plan.keys_file, client)
    return f"rookery join {reachable(url)} --client {client} --key-file {key}{trust}"


def key_file(keys: Path, client: str) -> Path:
    """Returns the file that a client's own key is put in, to be brought to the client."""
    return keys.with_name(f"{client}.key")


def reachable(url: str) -> str:
    """Returns a URL that other hosts may use, where all addresses of this one were bound."""
    for everywhere in ("//0.0.0.0", "//[::]"):
        url = url.replace(everywhere, f"//{socket.gethostname()}")
    return url


def say(message: str) -> None:
    sys.stderr.write(f"rookery: {message}\n")
    sys.stderr.flush()
