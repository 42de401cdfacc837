"""What is decided about an oracle that fails, tried on one that only pretends to answer."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from roles import flat_spec
from rookery.board import Board
from rookery.booth import Booths, Question, layout_of
from rookery.config.load import load
from rookery.config.schema import Engine
from rookery.engines.interface import Failed
from rookery.errors import ConfigError, LostError
from rookery.loops import warden as warden_module
from rookery.loops.oracle import Ready, Setup
from rookery.loops.warden import Warden

BROKEN = Failed("RuntimeError: no idea", "Traceback: no idea", final=False)
WRONG = Failed("ConfigError: GPU out of memory: buy one", "Traceback: buy one", final=True)


class Pretender:
    """A host whose oracle says what a test puts into its mouth."""

    def __init__(self, setup: Setup, name: str):
        self.setup, self.name, self.pid, self.alive = setup, name, 7, True
        self.board = Board({"w": np.zeros(1)}, fd=setup.board_fd)
        self.booths = Booths(LAYOUT, 1, fd=setup.booths_fd)
        self.says: deque[Any] = deque()
        self.grace_s: float | None = None

    def send(self, message: Any) -> None: ...

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        return self.says.popleft() if self.says else None

    def stop(self, grace_s: float = 0.0) -> int:
        self.alive, self.grace_s = False, grace_s
        self.booths.close()
        self.board.close()
        return -9


class World:
    """Starts pretenders and keeps the time."""

    def __init__(self) -> None:
        self.hosts: list[Pretender] = []
        self.broken: OSError | None = None
        self.now = 1_000.0

    def start(self, target: str, setup: Setup, *, name: str, fds: Sequence[int]) -> Pretender:
        if self.broken is not None:
            raise self.broken
        self.hosts.append(Pretender(setup, name))
        return self.hosts[-1]

    def monotonic(self) -> float:
        return self.now


LAYOUT = layout_of(flat_spec(), 0, 2)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setitem(warden_module.ENGINES, Engine.PROCESSES, world.start)
    monkeypatch.setattr(warden_module, "time", world)
    return world


@pytest.fixture
def make(world: World) -> Iterator[Callable[..., Warden]]:
    board, booths, made = Board({"w": np.zeros(1)}), Booths(LAYOUT, 1), []

    def build(**changes: Any) -> Warden:
        base = {"run.mode": "sync", "actor.envs": 2, "actor.inference": "central"}
        warden = Warden(load("corridor", changes=base | changes), flat_spec(), booths, board.fd)
        made.append(warden)
        return warden

    yield build
    for warden in made:
        warden.close()
    booths.close()
    board.close()


def test_one_that_died_is_replaced_at_once_and_complained_of(make, world):
    warden = make()
    world.hosts[0].alive = False

    warden.look_after()
    warden.look_after()

    assert len(world.hosts) == 2
    assert world.hosts[0].grace_s == 0.0
    assert warden.pids == {"oracle": 7}
    assert warden.take_complaints() == [
        "the inference server was lost (died (exit status -9)) and is replaced"
    ]
    assert warden.take_complaints() == []
    assert warden.metrics()["inference/restarts"] == 1.0


def test_the_next_one_waits_longer_and_longer(make, world):
    warden = make()
    for _ in range(2):
        world.hosts[-1].alive = False
        warden.look_after()
        warden.look_after()

    assert len(world.hosts) == 2
    world.now += 0.6
    warden.look_after()
    assert len(world.hosts) == 3


def test_too_many_losses_in_a_row_end_the_run_with_its_own_traceback(make, world):
    warden = make(**{"actor.max_restarts": 1})
    for host in range(2):
        world.hosts[host].says.append(BROKEN)
        if host == 0:
            warden.look_after()
            warden.look_after()

    with pytest.raises(LostError, match=r"lost 2 times .*: no idea; .*max_restarts \(1\)") as lost:
        warden.look_after()
    assert lost.value.__notes__ == ["Traceback: no idea"]


def test_one_that_has_answered_in_between_counts_anew(make, world):
    warden = make(**{"actor.max_restarts": 1})
    for _ in range(4):
        world.hosts[-1].booths.count(1, 2)
        world.hosts[-1].says.append(BROKEN)
        warden.look_after()
        warden.look_after()

    assert len(world.hosts) == 5


def test_a_wrong_request_is_not_tried_again(make, world):
    warden = make()
    world.hosts[0].says.append(WRONG)

    with pytest.raises(ConfigError, match=r"^the inference server: GPU out of memory: buy one"):
        warden.look_after()


def test_what_could_be_answered_before_is_no_wrong_request(make, world):
    """A GPU that somebody else fills later: it may have room again."""
    warden = make()
    world.hosts[0].says.extend([Ready(), WRONG])

    for _ in range(3):
        warden.look_after()

    assert len(world.hosts) == 2


def test_one_that_falls_silent_is_replaced_and_one_that_starts_has_time(make, world, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(Booths, "silence_s", property(lambda booths: clock[0]))
    monkeypatch.setattr(warden_module, "Patience", lambda: _patience(lambda: clock[0]))
    warden = make(**{"actor.env_step_timeout_s": 2.0})

    for _ in range(20):
        clock[0] += 1.0
        warden.look_after()
    assert len(world.hosts) == 1, "it may still be starting"
    world.hosts[0].says.append(Ready())
    for _ in range(6):
        clock[0] += 1.0
        warden.look_after()

    (complaint,) = warden.take_complaints()
    assert "has not moved for" in complaint
    assert "(actor.env_step_timeout_s is 2)" in complaint


def _patience(now: Callable[[], float]) -> Any:
    from rookery.manage.patience import Patience

    return Patience(now)


def test_one_that_cannot_be_started_again_is_tried_again(make, world):
    warden = make()
    world.hosts[0].alive = False
    warden.look_after()
    world.broken = OSError(11, "no more processes")
    warden.look_after()
    world.broken, world.now = None, world.now + 10.0

    warden.look_after()

    assert len(world.hosts) == 2
    assert "could not be started" in warden.take_complaints()[1]


def test_what_was_answered_is_measured_between_two_looks(make, world):
    warden = make()
    booths = world.hosts[0].booths
    booths.count(1, 2)
    warden.metrics()

    world.now += 2.0
    booths.count(2, 6)
    booths.count(1, 2)
    booths[0].ask(Question({"": np.zeros((2, 3), np.float32)}, None, 0, 0.0, True, False))
    booths[0].waited(6_000_000)

    assert warden.metrics() == {
        "inference/restarts": 0.0,
        "inference/requests_per_s": 1.5,
        "inference/requests_per_batch": 1.5,
        "inference/batch": 4.0,
        "inference/wait_ms": pytest.approx(2.0),
    }
    assert warden.metrics() == {"inference/restarts": 0.0}
