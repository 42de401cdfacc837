"""Engines: a role does the same wherever it lives, and its process leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_role import RoleSetup
from eventually import eventually
from rookery.config.schema import Engine
from rookery.engines import ENGINES, processes
from rookery.engines.child_process import shown
from rookery.engines.engine import CloseRole, RoleHandle
from rookery.engines.inline import Inline
from rookery.errors import ConfigError, RoleFailed
from run_processes import SUPPORT

pytestmark = pytest.mark.fresh  # this is about how processes are started

BOTH = [Engine.INLINE, Engine.PROCESSES]
PATIENCE_S = 60.0  # for a process to start on a busy machine


@pytest.fixture
def start() -> Iterator[Callable[..., RoleHandle]]:
    """Starts clerks, and ends them with the test."""
    hosts: list[RoleHandle] = []

    def begin(engine: Engine, setup: RoleSetup = RoleSetup(), **options: Any) -> RoleHandle:  # noqa: B008 - frozen
        hosts.append(ENGINES[engine]("engine_role:EngineRole", setup, name="clerk", **options))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.stop(0.0)


def ask(host: RoleHandle, *order: Any) -> Any:
    host.send(order)
    return hear(host)


def hear(host: RoleHandle) -> Any:
    """Returns the next answer, which must come."""
    found: list[Any] = []

    def come() -> bool:
        message = host.receive(0.05)
        if message is not None:
            found.append(message)
        return bool(found)

    assert eventually(come, PATIENCE_S)
    return found[0]


def gone(pid: int) -> bool:
    """Is there no such process, or only one that has not been waited for?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("engine", BOTH)
class TestAlike:
    def test_orders_are_answered_one_by_one_and_silence_is_none(
        self, engine: Engine, start: Any
    ) -> None:
        host = start(engine)
        for word in ("one", "two", "three"):
            host.send(("echo", word))

        assert [hear(host) for _ in range(3)] == ["one", "two", "three"]
        assert host.receive(0.0) is None
        assert host.alive

    def test_a_role_that_roams_works_by_itself_and_still_obeys(
        self, engine: Engine, start: Any
    ) -> None:
        host = start(engine)

        assert ask(host, "walk") == "walking"
        assert [hear(host) for _ in range(3)] == [5, 10, 15]
        host.send(("stay",))
        assert eventually(lambda: (hear(host) or 0) >= 15, 5.0)

    @pytest.mark.parametrize("kind", ["RuntimeError", "EOFError"])
    def test_a_role_that_raises_says_so_with_its_own_traceback(
        self, kind: str, engine: Engine, start: Any
    ) -> None:
        """An EOFError of its own is not taken for a parent that is gone."""
        host = start(engine)
        failed = ask(host, "fall", kind)

        assert isinstance(failed, RoleFailed)
        assert failed.summary == f"{kind}: over the cable"
        assert "engine_role.py" in failed.traceback
        assert not failed.final
        host.send(("echo", "anybody?"))
        assert eventually(lambda: host.receive(0.0) is None and not host.alive, PATIENCE_S)

    def test_a_role_that_cannot_be_built_says_so_and_keeps_no_descriptor(
        self, engine: Engine, start: Any
    ) -> None:
        given = os.open(os.devnull, os.O_RDONLY)
        if engine is Engine.INLINE:
            with pytest.raises(ConfigError, match="no such setup"):
                start(engine, RoleSetup(wrong="no such setup"), fds=[given])
        else:
            failed = hear(start(engine, RoleSetup(wrong="no such setup"), fds=[given]))
            assert failed.summary == "ConfigError: no such setup"
            assert failed.final

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(given)

    def test_it_is_closed_once_it_is_stopped(
        self, engine: Engine, start: Any, tmp_path: Path
    ) -> None:
        host = start(engine, RoleSetup(closed=str(tmp_path / "closed")))
        ask(host, "echo", "here")
        host.send(CloseRole())
        status = host.stop(PATIENCE_S)

        assert status == (0 if engine is Engine.PROCESSES else None)
        assert (tmp_path / "closed").exists()
        assert not host.alive


def test_an_inline_role_that_was_stopped_is_not_closed_twice(tmp_path: Path) -> None:
    class Once:
        self_driven, closed = False, 0

        def close(self) -> None:
            self.closed += 1

    role = Once()
    host = Inline(role, "once")  # type: ignore[arg-type]
    host.stop()
    host.stop()

    assert role.closed == 1


def test_a_process_has_its_own_group_and_name_and_one_thread(start: Any) -> None:
    host = start(Engine.PROCESSES)
    seen = ask(host, "look")

    assert seen["pid"] == seen["group"] == host.pid != os.getpid()
    assert seen["name"] == "rookery-clerk"
    assert seen["threads"] == 1
    assert seen["main"].endswith("engines/child_process.py")


def test_a_name_is_never_cut_at_its_number() -> None:
    assert [shown(f"actor-{i}") for i in (0, 9, 10, 999)] == [
        "rookery-actor-0",
        "rookery-actor-9",
        "rk-actor-10",
        "rk-actor-999",
    ]


def test_ctrl_c_is_the_parents_business(start: Any) -> None:
    host = start(Engine.PROCESSES)
    ask(host, "echo", "here")
    os.kill(host.pid, signal.SIGINT)

    assert ask(host, "echo", "still here") == "still here"


@pytest.mark.parametrize("how", [signal.SIGSTOP, None])
def test_a_process_that_hangs_or_was_stopped_is_ended_at_once(how: Any, start: Any) -> None:
    host = start(Engine.PROCESSES)
    ask(host, "echo", "here")
    host.send(("hang",))
    if how is not None:
        os.kill(host.pid, how)

    assert host.stop(0.0) == -signal.SIGKILL
    assert not Path(f"/proc/{host.pid}").exists()  # reaped


def test_a_process_that_stops_in_the_middle_of_a_message_is_not_waited_for(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PART_S", 1)
    host = start(Engine.PROCESSES)
    host.send(("mumble",))

    assert eventually(lambda: host.receive(0.05) is None and not host.alive, PATIENCE_S)


def test_where_no_process_is_left_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = set(os.listdir("/proc/self/fd"))
    given = os.open(os.devnull, os.O_RDONLY)

    with pytest.raises(OSError, match="no more processes"):
        processes.start("engine_role:EngineRole", RoleSetup(), name="clerk", fds=[given])
    assert set(os.listdir("/proc/self/fd")) == before


def test_starting_and_ending_leaves_no_descriptor_no_thread_and_no_zombie(start: Any) -> None:
    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before, pids = left(), []
    for _ in range(5):
        host = processes.start("engine_role:EngineRole", RoleSetup(), name="clerk")
        pids.append(host.pid)
        host.stop(0.0)

    assert eventually(
        lambda: all(now <= then for now, then in zip(left(), before, strict=True)), 5.0
    )
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PARENT = """
import sys, time
from engine_role import RoleSetup
from rookery.engines import processes
role = "engine_role:EngineRole"
busy, idle, young = (processes.start(role, RoleSetup(), name="clerk") for _ in range(3))
for host in (busy, idle):
    host.send(("echo", "here"))
    assert host.receive(60.0) == "here"
busy.send(("hang",))
young = processes.start("engine_role:EngineRole", RoleSetup(), name="clerk")
print(busy.pid, idle.pid, young.pid, flush=True)
time.sleep(3600)
"""


def test_children_die_with_their_parent_whatever_they_do() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])},
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        parent.kill()

    assert eventually(lambda: all(gone(pid) for pid in pids), 2.0)
