"""What tests fork is like what the library starts: whose child, in which group, and how it ends."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine_role import RoleSetup
from eventually import eventually
from fork_server import SUPPORTED, Forked
from rookery.config.schema import Engine
from rookery.engines import ENGINES
from rookery.engines.engine import RoleHandle

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="only Linux forks a sibling")


@pytest.fixture
def host():
    started = ENGINES[Engine.PROCESSES]("engine_role:EngineRole", RoleSetup(), name="clerk")
    yield started
    started.stop(0.0)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def ask(host: RoleHandle, *order: Any) -> Any:
    host.send(order)
    heard: list[Any] = []
    assert eventually(lambda: bool(heard) or _heard(host, heard), 60.0)
    return heard[0]


def _heard(host: RoleHandle, heard: list[Any]) -> bool:
    heard += [message] if (message := host.receive(0.05)) is not None else []
    return bool(heard)


def test_a_forked_child_is_ours_leads_its_group_and_has_its_name(host):
    assert isinstance(host.process, Forked)
    assert ask(host, "echo", "here") == "here"

    told = status(host.pid)
    assert int(told["PPid"]) == os.getpid()
    assert os.getpgid(host.pid) == host.pid
    assert told["Name"] == "rookery-clerk"


def test_it_holds_no_descriptor_that_it_was_not_given(host):
    assert ask(host, "echo", "here") == "here"

    held = {int(fd) for fd in os.listdir(f"/proc/{host.pid}/fd")}
    assert len(held) == 4  # its streams and the socket to us
    assert os.readlink(f"/proc/{host.pid}/fd/0") == os.devnull


def test_its_group_can_be_killed_as_soon_as_it_is_there(host):
    os.killpg(host.pid, signal.SIGKILL)

    assert eventually(lambda: host.process.poll() == -signal.SIGKILL, 5.0)


@pytest.mark.fresh
def test_one_that_is_fresh_is_not_forked(host):
    assert not isinstance(host.process, Forked)
