"""A cluster that is not there: host workers in this process, on hosts that fall silent and die.

with FakeCluster(monkeypatch, nodes=2) as fake_cluster:
    fleet = fake_cluster.cluster_actors(shards=2)
    fake_cluster.fake_hosts[0].silent = True      # the newest host worker of each name
    fake_cluster.clock.now += 10.0

Everything but three things is the real one: time is what the clock says and passes only while
somebody waits, actors write made-up rows when they are told to, and nothing goes over a wire.
Runs that share find a pool on each host, in a folder of the host's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rookery.actors.actor_group import ActorGroupState
from rookery.actors.env_progress import EnvProgress
from rookery.actors.messages import ActorGroupSetup, ActorReport, ActorState
from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.host_worker import HostWorker
from rookery.cluster.messages import HostSetup, PoolIdentity
from rookery.cluster.remote_replay import RemoteReplay
from rookery.config.schema import (
    ActorConfig,
    ClusterConfig,
    Config,
    Engine,
    Mode,
    ReplayConfig,
    RunConfig,
    SharingConfig,
)
from rookery.engines.ray import RayNode
from rookery.engines.rpc import (
    BuildRole,
    CallVerdict,
    Hello,
    HostInfo,
    RemoteHandle,
    RoleServer,
    RpcCall,
    RpcReply,
    SharedObject,
    versions,
)
from rookery.errors import RoleFailed
from rookery.replay.ring import Ring, schema_of
from rookery.runtime.supervision import ActorLoss
from sample_experience import VECTOR, Move, columns, play

TIMED = (
    "engines.rpc",
    "sharing.cluster_sharing",
    "cluster.cluster_group",
    "cluster.host_worker",
    "runtime.supervision",
)  # modules that look at the clock
ROOM = 4_096  # rows of a transport ring
WEIGHTS = {"w": np.zeros(2, dtype=np.float32)}


class Clock:
    """The time, as a module."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeActorGroup:
    """A group of actors without processes: each actor writes what it is told to."""

    def __init__(self, setup: ActorGroupSetup):
        self.config, self.spec = setup.config, setup.spec
        self.progress, self.told = list(setup.progress), list[ActorReport]()
        assert setup.numbers is not None
        self.numbers, self.incarnations = setup.numbers, list(setup.incarnations)
        self.rings = [Ring.create(schema_of(setup.spec), ROOM) for _ in setup.numbers]
        self.written = [0] * len(setup.numbers)
        self.allowed: list[tuple[bool, list[float]]] = []
        self.complained: list[str] = []
        self.losses: list[ActorLoss] = []
        self.restored: list[Any] = []
        self.cuts = 0

    def write(self, seat: int, count: int) -> None:
        """Appends rows of an episode of seven steps after another."""
        first, last = self.written[seat], self.written[seat] + count
        moves = (Move.TERMINATE if i % 7 == 6 else Move.RUN for i in range(last))
        steps = play((self.numbers[seat], 0, move) for move in moves)[first:]
        own = [step._replace(incarnation=self.incarnations[seat]) for step in steps]
        self.rings[seat].append(columns(self.spec, own, first))
        self.written[seat] = last

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None
    ) -> Iterator[list[ActorReport]]:
        for seat in range(len(epsilons)):
            self.write(seat, env_steps)
            yield [ActorReport(env_steps, (), 0)]

    def start(self) -> None: ...

    def tell(self, standing: EnvProgress) -> None:
        """An actor says how far its environments have come."""
        self.told.append(ActorReport(0, (), 0, progress=standing))

    def reports(self) -> list[ActorReport]:
        told, self.told = self.told, []
        return told

    def allow(self, go: bool, epsilons: list[float]) -> None:
        self.allowed.append((go, epsilons))

    def warnings(self) -> list[str]:
        taken, self.complained = self.complained, []
        return taken

    def take_losses(self) -> tuple[ActorLoss, ...]:
        taken, self.losses = tuple(self.losses), []
        return taken

    def save(self) -> ActorGroupState:
        states = [
            ActorState({"name": f"actor {number}"}, {"at": np.array([number])}, exact=True)
            for number in self.numbers
        ]
        return ActorGroupState(self.incarnations, states)

    def restore(self, state: ActorGroupState) -> None:
        self.restored.append([(own.numbers["name"], own.arrays["at"][0]) for own in state.actors])

    def cut(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        for ring in self.rings:
            ring.close()


class FakeRoleServer(RoleServer):
    """A role server whose role works by itself only when it is polled, and not in a thread."""

    def __init__(self, node: RayNode, shm: str):
        super().__init__()
        self._node, self._shm = node, shm

    def hello(self) -> HostInfo:
        return HostInfo(self._node.name, self._node.address, self._node.id, 1, versions())

    def _build(self, order: BuildRole) -> None:
        self._role = HostWorker(self._here(cloudpickle.loads(order.setup)))

    def _here(self, setup: HostSetup) -> HostSetup:
        """The same path is another folder on each host."""
        sharing = setup.config.sharing
        if sharing.pool is None:
            return setup
        own = replace(sharing, pool=f"{sharing.pool}/{self._shm}")
        return setup._replace(config=replace(setup.config, sharing=own))

    def _obey(self, order: Any, payload: Any) -> Any:
        if self._role is not None and self._role.self_driven:
            self._role.work()
        return super()._obey(order, payload)


class FakeHost:
    """The wire to a host worker: what is sent is done when its sender looks for the answer."""

    def __init__(self, node: RayNode, shm: str):
        self.node = node
        self.server = FakeRoleServer(node, shm)
        self.silent = False
        self.refuses: RoleFailed | None = None  # what the role cannot be built for
        self.killed = 0
        self.sent: list[Any] = []  # orders
        self.stored_objects: list[Any] = []

    def call(self, call: RpcCall, payload: Any) -> tuple[RpcCall, Any]:
        if not isinstance(call.order, Hello | BuildRole):
            self.sent.append(call.order)
            self.stored_objects += [payload] if payload is not None else []
        return call, payload

    def ready(self, ref: tuple[RpcCall, Any], timeout_s: float) -> bool:
        return not self.silent

    def get(self, ref: tuple[RpcCall, Any]) -> Any:
        call, payload = ref
        if isinstance(call.order, BuildRole) and self.refuses is not None:
            return RpcReply(self.refuses)
        return self.server.do(call, payload)

    def classify(self, error: Exception) -> CallVerdict:
        return CallVerdict.RAISED

    def kill(self) -> None:
        self.killed += 1

    @property
    def host_worker(self) -> HostWorker:
        role = self.server._role
        assert isinstance(role, HostWorker)
        return role

    @property
    def hands(self) -> FakeActorGroup:
        local_actors: Any = self.host_worker.actors
        assert isinstance(local_actors, FakeActorGroup)
        return local_actors

    def orders(self, kind: type) -> list[Any]:
        return [order for order in self.sent if isinstance(order, kind)]


class FakeCluster:
    """What a fleet sees of a cluster."""

    def __init__(self, patch: pytest.MonkeyPatch, nodes: int = 2, cpus: float = 4.0):
        self.clock = Clock()
        for module in TIMED:
            patch.setattr(f"rookery.{module}.time", self.clock)
        patch.setattr("rookery.cluster.host_worker.LocalActors", FakeActorGroup)
        patch.setattr("rookery.sharing.borrower.REFRESH_S", 0.0)  # it has a clock of its own
        self.up = [node(number, cpus) for number in range(nodes)]
        self.started: list[tuple[str, FakeHost, RemoteHandle, dict[str, Any]]] = []
        self.shared: list[Any] = []
        self.refuses: RoleFailed | None = None
        self.full = False  # no host worker finds CPUs
        self.closed = 0
        self.silence_s = 0.0  # of the head
        self.apart = True  # does every node have shared memory of its own?

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(self, *_: Any) -> None:
        for _, fake_host, _, _ in self.started:
            if fake_host.server._role is not None:
                fake_host.server._close()

    # As a cluster.

    silence_s = 0.0  # of the head

    def nodes(self) -> list[RayNode]:
        return self.up

    def start(
        self, target: str, setup: Any, *, name: str, node: str, **options: Any
    ) -> RemoteHandle:
        place = next(n for n in self.up if n.id == node)
        fake_host = FakeHost(place, place.name if self.apart else "host")
        fake_host.refuses, fake_host.silent = self.refuses, self.full and options["cpus"] > 0
        stay = BuildRole(target, cloudpickle.dumps(setup), [], {})
        host = RemoteHandle(name, fake_host, stay)
        self.started.append((name, fake_host, host, options))
        return host

    def share(self, value: Any) -> SharedObject:
        self.shared.append(value)
        return SharedObject(value)

    def wait(self, hosts: Sequence[RemoteHandle], timeout_s: float) -> None:
        self.clock.now += timeout_s

    def close(self) -> None:
        self.closed += 1

    # For tests.

    def fake_host(self, place: int) -> FakeHost:
        """The newest host worker at a place."""
        return [fake_host for name, fake_host, _, _ in self.started if name == f"host-{place}"][-1]

    def starts(self, place: int) -> int:
        return sum(name == f"host-{place}" for name, *_ in self.started)

    def lose(self, place: int, why: str = "its host is gone") -> None:
        """The host worker at a place dies, as Ray would tell of it."""
        hosts = [host for name, _, host, _ in self.started if name == f"host-{place}"]
        hosts[-1]._end(why)

    def cluster_actors(self, **options: Any) -> ClusterActors:
        """Returns a fleet whose host workers have all been built."""
        config = settings(**options)
        run = PoolIdentity("run", f"family-{len(self.started)}") if config.sharing.pool else None
        cluster_actors = ClusterActors(
            HostSetup(config, VECTOR, None, 1, dict(WEIGHTS), run),
            cluster=self,  # type: ignore[arg-type]
        )
        if self.refuses is None and not self.full:
            cluster_actors.look()
        return cluster_actors


def node(number: int, cpus: float = 4.0) -> RayNode:
    return RayNode(f"node-{number}", f"host-{number}", f"10.0.0.{number}", {"CPU": cpus})


def settings(
    *,
    mode: Mode = Mode.SYNC,
    actors: int = 2,
    shards: int | None = 2,
    replay: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    actor: Mapping[str, Any] | None = None,
    sharing: Mapping[str, Any] | None = None,
) -> Config:
    """A run of actors with one environment each, in shards of 512 rows."""
    capacity = 512 * (shards or 2)
    own = {
        "capacity": capacity,
        "learning_starts": 8,
        "batch_size": 8,
        "shards": shards,
        **(replay or {}),
    }
    return replace(
        Config(),
        run=RunConfig(mode=mode, engine=Engine.RAY),
        actor=ActorConfig(num=actors, envs=1, chunk=8, **(actor or {})),
        replay=ReplayConfig(**own),
        cluster=ClusterConfig(**(cluster or {})),
        sharing=SharingConfig(**(sharing or {})),
    )


def replay_of(cluster_actors: ClusterActors) -> RemoteReplay:
    return RemoteReplay(cluster_actors, np.random.default_rng(0))


def played(cluster_actors: ClusterActors, env_steps: int) -> list[ActorReport]:
    """Has all actors play a chunk, in sync."""
    epsilons = [0.5] * cluster_actors.config.actor.num
    return [report for reports in cluster_actors.collect(env_steps, epsilons) for report in reports]
