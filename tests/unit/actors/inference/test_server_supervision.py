"""Supervision of an inference server that fails, tried on a fake one."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rookery.actors.inference import server_supervision as supervision_module
from rookery.actors.inference.inference_server import InferenceReady, InferenceSetup
from rookery.actors.inference.server_supervision import InferenceSupervisor
from rookery.actors.inference.slots import InferenceRequest, InferenceSlots
from rookery.actors.messages import ActorGroupSetup
from rookery.config.load import load
from rookery.config.schema import Engine
from rookery.errors import ConfigError, LostError, RoleFailed
from rookery.learner.weight_store import WeightStore
from scripted_roles import flat_spec

BROKEN = RoleFailed("RuntimeError: no idea", "Traceback: no idea", final=False)
WRONG = RoleFailed("ConfigError: GPU out of memory: buy one", "Traceback: buy one", final=True)


class Pretender:
    """A host whose inference server says what a test puts into its mouth."""

    def __init__(self, setup: InferenceSetup, name: str):
        self.setup, self.name, self.pid, self.alive = setup, name, 7, True
        self.weight_store = WeightStore({"w": np.zeros(1)}, fd=setup.weights_fd)
        self.slots = InferenceSlots(setup.config.actor, setup.spec, 0, fd=setup.slots_fd)
        self.says: deque[Any] = deque()
        self.grace_s: float | None = None

    def send(self, message: Any) -> None: ...

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        return self.says.popleft() if self.says else None

    def stop(self, grace_s: float = 0.0) -> int:
        self.alive, self.grace_s = False, grace_s
        self.slots.close()
        self.weight_store.close()
        return -9


class World:
    """Starts pretenders and keeps the time."""

    def __init__(self) -> None:
        self.hosts: list[Pretender] = []
        self.broken: OSError | None = None
        self.now = 1_000.0

    def start(
        self, target: str, setup: InferenceSetup, *, name: str, fds: Sequence[int]
    ) -> Pretender:
        if self.broken is not None:
            raise self.broken
        self.hosts.append(Pretender(setup, name))
        return self.hosts[-1]

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setitem(supervision_module.ENGINES, Engine.PROCESSES, world.start)
    monkeypatch.setattr(supervision_module, "time", world)
    monkeypatch.setattr("rookery.runtime.supervision.time", world)
    return world


@pytest.fixture
def make(world: World) -> Iterator[Callable[..., InferenceSupervisor]]:
    weight_store, made = WeightStore({"w": np.zeros(1)}), []

    def build(**changes: Any) -> InferenceSupervisor:
        base = {"run.mode": "sync", "actor.envs": 2, "actor.inference": "central", "actor.num": 1}
        config = load("corridor", changes=base | changes)
        supervisor = InferenceSupervisor(ActorGroupSetup(config, flat_spec(), weight_store.fd))
        supervisor.start()
        made.append(supervisor)
        return supervisor

    yield build
    for supervisor in made:
        supervisor.close()
    weight_store.close()


def test_one_that_died_is_replaced_at_once_and_complained_of(make, world):
    supervisor = make()
    world.hosts[0].alive = False

    supervisor.supervise()
    supervisor.supervise()

    assert len(world.hosts) == 2
    assert world.hosts[0].grace_s == 0.0
    assert supervisor.pids == {"infer": 7}
    assert supervisor.warnings == [
        "the inference server was lost (died (exit status -9)) and is replaced"
    ]
    assert supervisor.metrics()["inference/restarts"] == 1.0


def test_the_next_one_waits_longer_and_longer(make, world):
    supervisor = make()
    for _ in range(2):
        world.hosts[-1].alive = False
        supervisor.supervise()
        supervisor.supervise()

    assert len(world.hosts) == 2
    world.now += 0.6
    supervisor.supervise()
    assert len(world.hosts) == 3


def test_too_many_losses_in_a_row_end_the_run_with_its_own_traceback(make, world):
    supervisor = make(**{"actor.max_restarts": 1})
    for host in range(2):
        world.hosts[host].says.append(BROKEN)
        if host == 0:
            supervisor.supervise()
            supervisor.supervise()

    with pytest.raises(LostError, match=r"lost 2 times .*: no idea; .*max_restarts \(1\)") as lost:
        supervisor.supervise()
    assert lost.value.__notes__ == ["Traceback: no idea"]


def test_one_that_has_answered_in_between_counts_anew(make, world):
    supervisor = make(**{"actor.max_restarts": 1})
    for _ in range(4):
        world.hosts[-1].slots.count(1, 2)
        world.hosts[-1].says.append(BROKEN)
        supervisor.supervise()
        supervisor.supervise()

    assert len(world.hosts) == 5


def test_a_wrong_request_is_not_tried_again(make, world):
    supervisor = make()
    world.hosts[0].says.append(WRONG)

    with pytest.raises(ConfigError, match=r"^the inference server: GPU out of memory: buy one"):
        supervisor.supervise()


def test_what_could_be_answered_before_is_no_wrong_request(make, world):
    """A GPU that somebody else fills later: it may have room again."""
    supervisor = make()
    world.hosts[0].says.extend([InferenceReady(), WRONG])

    for _ in range(3):
        supervisor.supervise()

    assert len(world.hosts) == 2


def test_one_that_falls_silent_is_replaced_and_one_that_starts_has_time(make, world, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(InferenceSlots, "silence_s", property(lambda slots: clock[0]))
    monkeypatch.setattr("rookery.runtime.supervision.Patience", lambda: _patience(lambda: clock[0]))
    supervisor = make(**{"actor.env_step_timeout_s": 2.0})

    for _ in range(20):
        clock[0] += 1.0
        supervisor.supervise()
    assert len(world.hosts) == 1, "it may still be starting"
    world.hosts[0].says.append(InferenceReady())
    for _ in range(6):
        clock[0] += 1.0
        supervisor.supervise()

    (complaint,) = supervisor.warnings
    assert "has not moved for" in complaint
    assert "(actor.env_step_timeout_s is 2)" in complaint


def _patience(now: Callable[[], float]) -> Any:
    from rookery.runtime.timeouts import Patience

    return Patience(now)


def test_one_that_cannot_be_started_again_is_tried_again(make, world):
    supervisor = make()
    world.hosts[0].alive = False
    supervisor.supervise()
    world.broken = OSError(11, "no more processes")
    supervisor.supervise()
    world.broken, world.now = None, world.now + 10.0

    supervisor.supervise()

    assert len(world.hosts) == 2
    assert "could not be started" in supervisor.warnings[1]


def test_what_was_answered_is_measured_between_two_looks(make, world):
    supervisor = make()
    slots = world.hosts[0].slots
    slots.count(1, 2)
    supervisor.metrics()

    world.now += 2.0
    slots.count(2, 6)
    slots.count(1, 2)
    slots[0].ask(InferenceRequest({"": np.zeros((2, 3), np.float32)}, None, 0, 0.0, True, False))
    slots[0].waited_ns += 6_000_000

    assert supervisor.metrics() == {
        "inference/restarts": 0.0,
        "inference/requests_per_s": 1.5,
        "inference/requests_per_batch": 1.5,
        "inference/batch": 4.0,
        "inference/wait_ms": pytest.approx(2.0),
    }
    assert supervisor.metrics() == {"inference/restarts": 0.0}
