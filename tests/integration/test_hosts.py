"""Hosts made from namespaces are hosts: what the tests of clusters stand on.

What Ray does on them is in tests/faults/test_cluster.py.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import namespace_hosts as module
from eventually import eventually
from namespace_hosts import Host, Job, hosts, missing
from run_processes import SUPPORT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

ABANDON = """
import os, signal
from namespace_hosts import hosts
with hosts(1) as (a,):
    a.popen(["sleep", "infinity"]).pid
    print(a.shared, a.pids("sleep")[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, ...]]:
    with hosts(2) as pair:
        yield pair


def _says(host: Host, script: str, *arguments: str) -> str:
    done = host.run([sys.executable, "-c", script, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


LISTEN = """
import socket
listener = socket.create_server(("", 5000))
while True:
    listener.accept()[0].sendall(b"here")
"""
CONNECT = """
import socket, sys
print(socket.create_connection((sys.argv[1], 5000), timeout=1.0).recv(9))
"""


@pytest.fixture
def listener(pair: tuple[Host, ...]) -> Iterator[Job]:
    """A process on the second host that answers."""
    _, b = pair
    job = b.popen([sys.executable, "-c", LISTEN])
    assert eventually(lambda: bool(_listening(b)), 10.0)
    yield job
    job.end()


def _listening(host: Host) -> list[str]:
    table = Path(f"/proc/{host.pids('sleep')[0]}/net/tcp").read_text().splitlines()
    return [line for line in table if f":{5000:04X} " in line and " 0A " in line]


def _reaches(a: Host, name: str) -> bool:
    return "here" in a.run([sys.executable, "-c", CONNECT, name]).stdout


@pytest.mark.usefixtures("listener")
def test_hosts_reach_each_other_by_address_and_by_name_unless_one_is_cut_off(pair):
    a, b = pair
    assert _reaches(a, b.ip)
    assert _reaches(a, b.name)
    b.cut()
    assert not _reaches(a, b.ip)
    b.heal()
    assert _reaches(a, b.ip)


def test_a_host_that_is_powered_off_has_no_process_and_boots_empty(pair, listener):
    a, b = pair
    inside = b.pids("")
    assert listener.pid in inside

    b.power_off()

    assert not any(psutil.pid_exists(pid) for pid in inside)
    b.boot()
    assert not _reaches(a, b.ip)
    assert b.pids("python") == []


def test_a_host_has_its_own_name_home_and_folders(pair):
    a, b = pair
    look = "import os, socket; print(socket.gethostname(), os.listdir(os.environ['HOME']))"
    for folder in ("/tmp", "/dev/shm", "/tmp/home"):
        assert a.run(["touch", f"{folder}/only-here"]).returncode == 0

    assert a.shm() == {"only-here"}
    assert b.shm() == set()
    assert not (b.root / "tmp" / "only-here").exists()
    assert not Path("/tmp/only-here").exists()
    assert not Path("/dev/shm/only-here").exists()
    assert _says(a, look).startswith("host-1")
    assert "only-here" not in _says(b, look)


def test_a_host_sees_its_own_processes_alone(pair):
    a, b = pair
    mine = a.popen(["sleep", "1234"])
    pids = (
        "import psutil; print(*(' '.join(p.cmdline()) for p in psutil.process_iter()), sep='\\n')"
    )

    assert eventually(lambda: a.pids("sleep sleep 1234") == [mine.pid], 5.0)  # name, then words
    assert a.pids(a.shared.name) == []  # where something lives is not what it is
    assert b.pids("sleep 1234") == []
    assert "sleep 1234" in _says(a, pids)
    assert "sleep 1234" not in _says(b, pids)
    assert str(SUPPORT) not in _says(b, pids)
    with pytest.raises(AssertionError, match="is not on host-2"):
        b.kill(mine.pid)
    a.kill(mine.pid)
    assert mine.wait(10.0) == -signal.SIGKILL


def test_the_tree_the_interpreter_and_a_shared_folder_are_on_every_host(pair):
    a, _ = pair
    (a.shared / "word").write_text("all")

    for host in pair:
        assert _says(host, "import rookery; print(open('word').read())").strip() == "all"


def test_a_command_that_is_late_is_killed(pair):
    a, _ = pair
    with pytest.raises(AssertionError, match="still there after"):
        a.run(["sleep", "4321"], within_s=0.1)

    assert eventually(lambda: a.pids("sleep 4321") == [], 5.0)


def _left() -> tuple[set[str], set[str], set[str]]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    spaces = {os.path.realpath(f"/proc/{pid}/ns/net") for pid in _children()}
    return {*links.stdout.split("\n")}, {*names.stdout.split("\n")}, spaces


def _children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def test_nothing_is_left_also_after_a_failure():
    before, children = _left(), set(_children())
    seen: list[Host] = []
    pids: list[int] = []

    def fail() -> None:
        with hosts(2) as (a, b):
            seen.extend((a, b))
            jobs = a.popen(["sleep", "infinity"]), b.popen(["setsid", "sleep", "infinity"])
            pids.extend(job.pid for job in jobs)
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not seen[0].shared.exists()
    assert set(_children()) == children
    assert _left() == before


def test_nothing_is_left_of_hosts_that_do_not_come_up(monkeypatch):
    children, folders = set(_children()), []
    mkdtemp = tempfile.mkdtemp

    def remember(**where: str) -> str:
        folders.append(mkdtemp(**where))
        return folders[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", remember)
    monkeypatch.setattr(module, "BOOT", "echo no such thing >&2; exit 1")
    with pytest.raises(AssertionError, match="no such thing"), hosts(1):
        pass

    assert set(_children()) == children
    assert folders
    assert not any(Path(folder).exists() for folder in folders)


def test_the_processes_of_hosts_end_with_a_test_process_that_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", ABANDON],
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    shared, pid = done.stdout.split()
    shutil.rmtree(shared)  # the one thing that outlives it

    assert done.returncode == -signal.SIGKILL
    assert eventually(lambda: not psutil.pid_exists(int(pid)), 10.0)
