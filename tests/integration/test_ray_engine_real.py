"""The ray engine on real Rays: one that is started here, and one of two nodes that is joined."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from eventually import eventually
from rookery.config.schema import ClusterConfig
from rookery.engines import processes, ray_cleanup, rpc
from rookery.engines import ray as engine
from rookery.engines.ray import Cluster
from rookery.engines.rpc import RemoteHandle
from rookery.errors import ConfigError, RoleFailed
from run_processes import SUPPORT, shared

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
HERE = "test_ray_engine_real"
PATIENCE_S = 30.0
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
LOSSY = {"req_failure_prob": 10, "resp_failure_prob": 10, "in_flight_failure_prob": 10}


class Tell(NamedTuple):
    what: Any
    payload: Any = None


class Echo:
    """Says what it was told, and how many times it was told something."""

    def __init__(self, setup: Any):
        self.self_driven = setup == "roam"
        self.told, self.roamed = 0, 0
        self.child: Any = None

    def do(self, order: Tell) -> Any:
        self.told += 1
        return DEEDS.get(order.what, _echo)(self, order)

    def work(self) -> None:
        self.roamed += 1

    def close(self) -> None: ...


def _echo(role: Echo, order: Tell) -> Any:
    return order.what, role.told


def _spawn(role: Echo, order: Tell) -> int:
    role.child = processes.spawn(f"{HERE}:sleep", None, name="child")
    return int(role.child.pid)


DEEDS: dict[Any, Callable[[Echo, Tell], Any]] = {
    "sum": lambda role, order: float(order.payload.sum()),
    "array": lambda role, order: np.arange(1_000_000),
    "roamed": lambda role, order: role.roamed,
    "nice": lambda role, order: os.nice(0),
    "spawn": _spawn,
}


def sleep(connection: Any, setup: Any) -> None:
    time.sleep(600.0)


def start(
    cluster: Cluster, setup: Any = None, target: str = f"{HERE}:Echo", **options: Any
) -> RemoteHandle:
    node = options.pop("node", None) or cluster.nodes()[0].id
    return cluster.start(target, setup, name="echo-0", cpus=0.5, node=node, **options)


def answer(host: RemoteHandle) -> Any:
    answer = host.receive(PATIENCE_S)
    assert answer is not None, host.failure
    return answer


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "PYTEST" not in name}


@pytest.fixture(scope="module")
def local() -> Iterator[Cluster]:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    environ = _environ()
    cluster = Cluster.open(ClusterConfig(), cpus=4, store_bytes=0)
    try:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        yield cluster
    finally:
        cluster.close()
    assert _environ() == environ


@pytest.fixture
def host(local: Cluster) -> Iterator[RemoteHandle]:
    host = start(local)
    yield host
    host.stop()


# A Ray of our own.


def _listening(cluster: Cluster) -> list[tuple[str, str]]:
    """Returns the name of each process of a Ray, of this one too, and the address it listens on."""
    cleanup = cluster._session._cleanup
    assert cleanup is not None
    ours = [psutil.Process()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if ray_cleanup._belongs(process, str(cleanup.folder)):
                ours.append(process)
    return [
        (process.name(), connection.laddr.ip)
        for process in ours
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_it_listens_on_the_loopback_interface_only(local, host):
    """With a worker that has answered, so that all servers are up."""
    host.send(Tell("a"))
    answer(host)
    found = _listening(local)

    assert {"gcs_server", "raylet", psutil.Process().name()} <= {name for name, _ in found}
    assert [(name, ip) for name, ip in found if ip not in LOOPBACK] == []
    assert [node.address for node in local.nodes()] == ["127.0.0.1"]


def test_there_is_one_node_and_it_was_started(local):
    (node,) = local.nodes()

    assert local._session._cleanup is not None  # it was started, not joined
    assert node.resources["CPU"] == 4.0


def test_orders_are_answered_in_order(local, host):
    for number in range(50):
        host.send(Tell(number))

    assert [answer(host) for _ in range(50)] == [(n, n + 1) for n in range(50)]

    (node,) = local.nodes()
    assert (host.node, host.address) == (node.id, node.address)
    assert psutil.pid_exists(host.pid)


def test_a_role_has_the_priority_of_who_started_it(host):
    host.send(Tell("nice"))

    assert answer(host) == os.nice(0)


def test_wait_returns_when_one_has_an_answer(local, host):
    host.send(Tell("x"))
    assert answer(host) == ("x", 1)
    host.send(Tell("y"))
    began = time.monotonic()

    local.wait([host], PATIENCE_S)

    assert time.monotonic() - began < PATIENCE_S
    assert host.receive() == ("y", 2)


def test_a_stored_object_is_read_by_many(local, host):
    other = start(local)
    payload = local.share(np.ones(1_000_000))

    for each in (host, other):
        each.send(Tell("sum"), payload)

    assert [answer(each) for each in (host, other)] == [1e6, 1e6]
    other.stop()


def test_a_large_answer_arrives(host):
    host.send(Tell("array"))

    assert answer(host).sum() == 1_000_000 * 999_999 // 2


def test_a_roaming_role_lets_orders_in(local):
    host = start(local, "roam")

    def roamed() -> int:
        host.send(Tell("roamed"))
        return int(answer(host))

    first = roamed()
    assert eventually(lambda: roamed() > first, PATIENCE_S)
    host.stop()


def test_a_killed_role_is_not_alive_and_says_where(host):
    host.send(Tell("x"))
    answer(host)

    os.kill(host.pid, signal.SIGKILL)
    host.send(Tell("y"))

    assert eventually(lambda: host.receive(0.1) is None and not host.alive, PATIENCE_S)
    assert host.address in host.failure
    assert "\n" not in host.failure


def test_what_a_role_spawned_dies_with_it(host):
    host.send(Tell("spawn"))
    pid = answer(host)
    assert psutil.pid_exists(pid)

    host.stop()

    assert eventually(lambda: _gone(pid), PATIENCE_S)
    assert eventually(lambda: _gone(host.pid), PATIENCE_S)


def test_a_target_that_cannot_be_imported_is_final_and_names_the_host(local):
    host = start(local, target="nowhere_to_be_found:Role")

    failed = answer(host)

    assert isinstance(failed, RoleFailed)
    assert failed.final
    assert failed.summary.startswith(os.uname().nodename)
    assert "nowhere_to_be_found" in failed.summary


def test_a_host_with_other_versions_is_refused(local, monkeypatch):
    ours = {**rpc.versions(), "torch": "0.1.2"}
    monkeypatch.setattr(rpc, "versions", lambda: ours)
    host = start(local)

    failed = answer(host)

    assert failed.final
    assert "has 0.1.2" in failed.summary
    assert not host.alive


def test_a_node_that_is_not_there_is_no_place(local):
    host = start(local, node="ab" * 28)

    assert eventually(lambda: host.receive(0.1) is None and not host.alive, PATIENCE_S)
    assert host.failure is not None


def test_a_second_cluster_in_one_process_is_refused(local):
    with pytest.raises(ConfigError, match="already"):
        Cluster.open(ClusterConfig(), cpus=1, store_bytes=0)


# Drivers of their own: what they leave, and what Ray does to their calls.


def _gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _belonging(folder: str) -> list[int]:
    """Returns the living processes of a Ray of our own."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and ray_cleanup._belongs(process, folder):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


class Driver:
    """A function of this file in a process of its own, which prints JSON lines."""

    def __init__(self, function: str, *arguments: str, **environ: str):
        paths = os.pathsep.join(map(str, (Path(__file__).parent, SUPPORT)))
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        call = f"import {HERE} as t, sys; t.{function}(*sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**bare, "PYTHONPATH": paths, **environ},
        )

    def says(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ends(self) -> int:
        """Lets it go on to its end."""
        self.process.communicate(timeout=PATIENCE_S * 2)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def lossy() -> None:
    """Gives orders over a wire that loses them; then closes. Signals itself in between."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    cluster = Cluster.open(ClusterConfig(), cpus=2, store_bytes=0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert cluster._session._cleanup is not None
    say(folder=str(cluster._session._cleanup.folder))
    host = start(cluster)
    for number in range(30):
        host.send(Tell(number))
    answers = [answer(host) for _ in range(30)]
    cluster.close()
    os.kill(os.getpid(), signal.SIGTERM)
    say(answers=answers, signals=signals)


def test_lost_calls_are_applied_once_and_a_closed_ray_leaves_nothing():
    failure = json.dumps({"CoreWorkerService.grpc_client.PushTask": {"num_failures": -1, **LOSSY}})
    before = shared()
    driver = Driver("lossy", RAY_testing_rpc_failure=failure)
    folder = driver.says()["folder"]
    assert Path(folder).stat().st_mode & 0o777 == 0o700

    said = driver.says()
    left = (Path(folder).exists(), _belonging(folder), shared() <= before)

    assert said["answers"] == [[n, n + 1] for n in range(30)]
    assert said["signals"] == [signal.SIGTERM] * 2
    assert left == (False, [], True)
    assert driver.ends() == 0


def idle() -> None:
    """Starts a Ray and a role, and waits for its end."""
    cluster = Cluster.open(ClusterConfig(), cpus=2, store_bytes=0)
    host = start(cluster)
    host.send(Tell("spawn"))
    child = answer(host)
    assert cluster._session._cleanup is not None
    say(folder=str(cluster._session._cleanup.folder), pids=[host.pid, child])
    sys.stdin.read()


def test_after_sigkill_of_the_training_process_nothing_is_left_of_its_ray():
    before = shared()
    driver = Driver("idle")
    said = driver.says()
    assert len(_belonging(said["folder"])) > 3

    driver.kill()

    assert eventually(lambda: not Path(said["folder"]).exists(), 5.0)
    assert _belonging(said["folder"]) == []
    assert all(_gone(pid) for pid in said["pids"])
    assert shared() <= before


def interrupted() -> None:
    """Is told to end while its Ray starts; where that hangs, it leaves as the command line does."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)
    say(pid=os.getpid())
    try:
        Cluster.open(ClusterConfig(), cpus=2, store_bytes=0)
    except SystemExit:
        if engine.left_behind:
            os._exit(143)
        raise
    say(open=True)


def _folders(pid: int) -> list[str]:
    """Returns the folders of Rays that a process is starting."""
    found = set()
    for child in psutil.Process(pid).children():
        try:
            found.add(child.environ().get(ray_cleanup.MARK))
        except (psutil.Error, OSError):
            continue
    return [folder for folder in found if folder is not None]


def test_a_signal_while_ray_starts_is_the_callers_and_nothing_is_left():
    driver = Driver("interrupted")
    pid = driver.says()["pid"]
    assert eventually(lambda: bool(_folders(pid)), PATIENCE_S)
    (folder,) = _folders(pid)

    driver.process.send_signal(signal.SIGTERM)
    began = time.monotonic()

    assert driver.ends() == 143
    assert time.monotonic() - began < 10.0
    assert not Path(folder).exists()
    assert _belonging(folder) == []


# A cluster that is joined.


def head(folder: str) -> None:
    """A cluster of two nodes."""
    from ray.cluster_utils import Cluster as Nodes

    options = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes = Nodes(
        initialize_head=True,
        head_node_args={**options, "include_dashboard": False, "temp_dir": folder},
    )
    nodes.add_node(**options, temp_dir=folder)
    say(address=nodes.address)
    sys.stdin.read()
    nodes.shutdown()


def secret(path: Path, content: str) -> str:
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def joined(tmp_path_factory) -> Iterator[ClusterConfig]:
    folder = tmp_path_factory.mktemp("h")
    token = secret(folder / "token", "b" * 64)
    driver = Driver(
        "head",
        str(folder),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=token,
        RAY_USAGE_STATS_ENABLED="0",
    )
    try:
        yield ClusterConfig(address=driver.says()["address"], token_path=token)
    finally:
        driver.ends()


def guest(address: str, token: str) -> None:
    """Joins, puts a role on each node, waits, leaves."""
    config = ClusterConfig(address=address, token_path=token)
    cluster = Cluster.open(config, cpus=1, store_bytes=0)
    nodes = [node.id for node in cluster.nodes()]
    hosts = [start(cluster, node=node) for node in nodes]
    for host in hosts:
        host.send(Tell("x"))
    answers = [answer(host) for host in hosts]
    where = [host.node for host in hosts]
    say(nodes=nodes, where=where, answers=answers, pids=[h.pid for h in hosts])
    if sys.stdin.readline():
        cluster.close()
        say(started=cluster._session._cleanup is not None)


def refusals(*tries: str) -> None:
    """Tries to join with each address and token; says how that was refused."""
    for pair in tries:
        address, _, token = pair.partition("|")
        began = time.monotonic()
        try:
            Cluster.open(ClusterConfig(address=address, token_path=token), cpus=1, store_bytes=0)
        except ConfigError as error:
            say(error=str(error), seconds=time.monotonic() - began)


def test_a_joined_cluster_has_our_roles_where_we_want_them_and_keeps_none(joined):
    driver = Driver("guest", joined.address, joined.token_path)
    said = driver.says()
    assert len(said["nodes"]) == 2
    assert said["where"] == said["nodes"]
    assert said["answers"] == [["x", 1], ["x", 1]]

    assert driver.process.stdin is not None
    driver.process.stdin.write("close\n")
    driver.process.stdin.flush()

    assert driver.says() == {"started": False}
    assert driver.ends() == 0
    assert eventually(lambda: all(_gone(pid) for pid in said["pids"]), PATIENCE_S)


def test_after_sigkill_of_a_guest_the_cluster_stays_without_its_roles(joined):
    driver = Driver("guest", joined.address, joined.token_path)
    said = driver.says()

    driver.kill()

    assert eventually(lambda: all(_gone(pid) for pid in said["pids"]), 10.0)
    again = Driver("guest", joined.address, joined.token_path)
    assert again.says()["answers"] == [["x", 1], ["x", 1]]
    again.kill()


def test_who_cannot_join_is_told_why_in_one_line_and_soon(joined, tmp_path):
    wrong = secret(tmp_path / "wrong", "c" * 64)
    driver = Driver("refusals", f"{joined.address}|{wrong}", f"127.0.0.1:1|{joined.token_path}")

    token, closed = driver.says(), driver.says()

    assert driver.ends() == 0
    assert "does not accept this host's token" in token["error"]
    assert "127.0.0.1:1: " in closed["error"]
    for said in (token, closed):
        assert os.uname().nodename in said["error"]
        assert "\n" not in said["error"]
        assert said["seconds"] < engine.JOIN_S
