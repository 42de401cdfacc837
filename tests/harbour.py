"""A cluster that is not there: stations in this process, on hosts that fall silent and die.

with Harbour(monkeypatch, nodes=2) as harbour:
    fleet = harbour.fleet(shards=2)
    harbour.piers[0].silent = True      # the newest station of each name: harbour.pier("station-0")
    harbour.clock.now += 10.0

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

from experience import VECTOR, Move, columns, play
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
from rookery.engines.interface import Failed
from rookery.engines.ray import Node
from rookery.engines.remote import Hello, Host, Keeper, Parcel, Verdict, versions
from rookery.loops.crew import Dealt
from rookery.loops.depot import Depot
from rookery.loops.fleet import Fleet
from rookery.loops.player import Report
from rookery.loops.progress import Standing
from rookery.loops.station import Badge, Setup, Station
from rookery.replay.ring import Ring, schema_of
from rookery.types import Array

TIMED = (
    "engines.remote",
    "loops.envoy",
    "loops.fleet",
    "loops.station",
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


class Hands:
    """A crew without processes: each actor writes what it is told to."""

    def __init__(
        self,
        config: Config,
        spec: Any,
        *,
        incarnations: Sequence[int],
        numbers: Sequence[int],
        progress: Sequence[Standing],
        **_: Any,
    ):
        self.config, self.spec = config, spec
        self.progress, self.told = list(progress), list[Report]()
        self.numbers, self.incarnations = numbers, list(incarnations)
        self.rings = [Ring.create(schema_of(spec), ROOM) for _ in numbers]
        self.written = [0] * len(numbers)
        self.allowed: list[tuple[bool, list[float]]] = []
        self.complained: list[str] = []
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

    def play(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None
    ) -> Iterator[list[Report]]:
        for seat, epsilon in enumerate(epsilons):
            self.write(seat, env_steps)
            yield [Report(env_steps, (), epsilon, 0)]

    def roam(self) -> None: ...

    def tell(self, standing: Standing) -> None:
        """An actor says how far its environments have come."""
        self.told.append(Report(0, (), 0.5, 0, progress=standing))

    def news(self) -> list[Report]:
        told, self.told = self.told, []
        return told

    def allow(self, go: bool, epsilons: list[float]) -> None:
        self.allowed.append((go, epsilons))

    def complaints(self) -> list[str]:
        taken, self.complained = self.complained, []
        return taken

    def save(self) -> Dealt:
        arrays = {f"{seat}.at": np.array([number]) for seat, number in enumerate(self.numbers)}
        return Dealt({"actors": [f"actor {n}" for n in self.numbers]}, arrays, exact=True)

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.restored.append((numbers["actors"], {n: a.tolist() for n, a in arrays.items()}))

    def cut(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        for ring in self.rings:
            ring.close()


class Quay(Keeper):
    """A keeper whose role roams when it is looked at, and not in a thread."""

    def __init__(self, shm: str):
        super().__init__()
        self._shm = shm

    def _settle(self, target: str, setup: bytes) -> None:
        self._role = Station(self._here(cloudpickle.loads(setup)))

    def _here(self, setup: Setup) -> Setup:
        """The same path is another folder on each host."""
        sharing = setup.config.sharing
        if sharing.pool is None:
            return setup
        own = replace(sharing, pool=f"{sharing.pool}/{self._shm}")
        return setup._replace(config=replace(setup.config, sharing=own))

    def _obey(self, order: Any, parcel: Any) -> Any:
        assert self._role is not None
        if self._role.roaming:
            self._role.roam()
        return super()._obey(order, parcel)


class Pier:
    """The wire to a station: what is sent is done when its sender looks for the answer."""

    def __init__(self, node: Node, shm: str):
        self.node = node
        self.keeper = Quay(shm)
        self.silent = False
        self.refuses: Failed | None = None  # what the role cannot be built for
        self.killed = 0
        self.sent: list[Any] = []  # orders
        self.parcels: list[Any] = []

    def call(self, method: str, *args: Any) -> list[Any]:
        if method == "do":
            self.sent.append(args[4])
            self.parcels += [args[5]] if args[5] is not None else []
        return [method, args]

    def ready(self, ref: list[Any], timeout_s: float) -> bool:
        return not self.silent

    def get(self, ref: list[Any]) -> Any:
        method, args = ref
        if method == "hello":
            return Hello(self.node.name, self.node.address, self.node.id, 1, versions())
        if method == "build" and self.refuses is not None:
            return self.refuses
        return getattr(self.keeper, method)(*args)

    def judge(self, error: Exception) -> Verdict:
        return Verdict.RAISED

    def kill(self) -> None:
        self.killed += 1

    @property
    def station(self) -> Station:
        role = self.keeper._role
        assert isinstance(role, Station)
        return role

    @property
    def hands(self) -> Hands:
        crew: Any = self.station.crew
        assert isinstance(crew, Hands)
        return crew

    def orders(self, kind: type) -> list[Any]:
        return [order for order in self.sent if isinstance(order, kind)]


class Harbour:
    """What a fleet sees of a cluster."""

    def __init__(self, patch: pytest.MonkeyPatch, nodes: int = 2, cpus: float = 4.0):
        self.clock = Clock()
        for module in TIMED:
            patch.setattr(f"rookery.{module}.time", self.clock)
        patch.setattr("rookery.loops.station.Crew", Hands)
        patch.setattr("rookery.sharing.borrower.LOOK_S", 0.0)  # it has a clock of its own
        self.up = [node(number, cpus) for number in range(nodes)]
        self.started: list[tuple[str, Pier, Host, dict[str, Any]]] = []
        self.shared: list[Any] = []
        self.refuses: Failed | None = None
        self.full = False  # no station finds CPUs
        self.closed = 0
        self.silence_s = 0.0  # of the head
        self.apart = True  # does every node have shared memory of its own?

    def __enter__(self) -> "Harbour":
        return self

    def __exit__(self, *_: Any) -> None:
        for _, pier, _, _ in self.started:
            if pier.keeper._role is not None:
                pier.keeper._close()

    # As a cluster.

    silence_s = 0.0  # of the head

    def nodes(self) -> list[Node]:
        return self.up

    def start(self, target: str, setup: Any, *, name: str, node: str, **options: Any) -> Host:
        place = next(n for n in self.up if n.id == node)
        pier = Pier(place, place.name if self.apart else "host")
        pier.refuses, pier.silent = self.refuses, self.full and options["cpus"] > 0
        stay = (target, cloudpickle.dumps(setup), [], {})
        host = Host(name, pier, stay, "us", len(self.started))
        self.started.append((name, pier, host, options))
        return host

    def share(self, value: Any) -> Parcel:
        self.shared.append(value)
        return Parcel(value)

    def wait(self, hosts: Sequence[Host], timeout_s: float) -> None:
        self.clock.now += timeout_s

    def close(self) -> None:
        self.closed += 1

    # For tests.

    def pier(self, place: int) -> Pier:
        """The newest station at a place."""
        return [pier for name, pier, _, _ in self.started if name == f"station-{place}"][-1]

    def starts(self, place: int) -> int:
        return sum(name == f"station-{place}" for name, *_ in self.started)

    def lose(self, place: int, why: str = "its host is gone") -> None:
        """The station at a place dies, as Ray would tell of it."""
        hosts = [host for name, _, host, _ in self.started if name == f"station-{place}"]
        hosts[-1]._end(why)

    def fleet(self, **options: Any) -> Fleet:
        """Returns a fleet whose stations have all been built."""
        config = settings(**options)
        run = Badge("run", f"family-{len(self.started)}") if config.sharing.pool else None
        fleet = Fleet(
            config,
            VECTOR,
            cluster=self,  # type: ignore[arg-type]
            weights=dict(WEIGHTS),
            version=1,
            badge=run,
        )
        if self.refuses is None and not self.full:
            fleet.look()
        return fleet


def node(number: int, cpus: float = 4.0) -> Node:
    return Node(f"node-{number}", f"host-{number}", f"10.0.0.{number}", {"CPU": cpus})


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
    own = {"capacity": capacity, "warmup": 8, "batch": 8, "shards": shards, **(replay or {})}
    return replace(
        Config(),
        run=RunConfig(mode=mode, engine=Engine.RAY),
        actor=ActorConfig(num=actors, envs=1, chunk=8, **(actor or {})),
        replay=ReplayConfig(**own),
        cluster=ClusterConfig(**(cluster or {})),
        sharing=SharingConfig(**(sharing or {})),
    )


def depot(fleet: Fleet) -> Depot:
    return Depot(fleet, np.random.default_rng(0))


def played(fleet: Fleet, env_steps: int) -> list[Report]:
    """Has everybody play a chunk, in sync."""
    epsilons = [0.5] * fleet.config.actor.num
    return [report for reports in fleet.play(env_steps, epsilons) for report in reports]
