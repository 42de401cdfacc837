"""The ray engine without a Ray: role server, remote handle, and a connection that can fail."""

import os
import socket
import threading
from collections import deque
from typing import Any, NamedTuple

import cloudpickle
import pytest

from eventually import eventually
from fake_cluster import Clock
from rookery.config.schema import ClusterConfig
from rookery.engines import ray as engine
from rookery.engines import rpc
from rookery.engines.engine import CloseRole
from rookery.engines.ray import Cluster
from rookery.engines.rpc import (
    FIRST_ORDER,
    BuildRole,
    CallVerdict,
    Hello,
    HostInfo,
    RayLink,
    RemoteHandle,
    RoleServer,
    RpcCall,
    RpcReply,
    SharedObject,
    versions,
)
from rookery.errors import ConfigError, LostError, RoleFailed

exceptions = pytest.importorskip("ray").exceptions
HERE = "test_ray_engine"


class Tell(NamedTuple):
    what: Any
    payload: Any = None


class Diary:
    """A role that writes down what it does."""

    last: "Diary"  # the newest one

    def __init__(self, setup: Any):
        if isinstance(setup, Exception):
            raise setup
        self.done: list[Any] = []
        self.roamed, self.closed = 0, 0
        self.self_driven = setup == "roam"
        self.breaks = threading.Event()
        Diary.last = self

    def do(self, order: Tell) -> Any:
        if isinstance(order.what, Exception):
            raise order.what
        self.done.append(order.what)
        return order.what if order.payload is None else (order.what, order.payload)

    def work(self) -> None:
        self.roamed += 1
        if self.breaks.is_set():
            raise RuntimeError("lost its way")

    def close(self) -> None:
        self.closed += 1


def stay(setup: Any = None, target: str = f"{HERE}:Diary") -> BuildRole:
    return BuildRole(target, cloudpickle.dumps(setup), [], {})


class Server(RoleServer):
    """A role server that has been greeted; tests count control messages from 0."""

    info = HostInfo("far", "10.0.0.9", "n1", 77, versions())

    def hello(self) -> HostInfo:
        return self.info

    def greet(self, build: BuildRole) -> Any:
        """Returns the answer to the message that builds the role."""
        self.do(RpcCall(0, 0, Hello()), None)
        return self.do(RpcCall(1, 0, build), None).answer

    def tell(self, number: int, received: int, order: Any, payload: Any = None) -> RpcReply[Any]:
        call = RpcCall(FIRST_ORDER + number, FIRST_ORDER + received, order)
        return self.do(call, payload)


def kept(setup: Any = None) -> Server:
    server = Server()
    assert server.greet(stay(setup)) is None
    return server


class Loss(NamedTuple):
    """A call that fails on its way there, or on its way back."""

    error: Exception
    done: bool


class Wire:
    """Calls a role server in this process and loses chosen messages; keeps the order of calls."""

    def __init__(self) -> None:
        self.server = Server()
        self.losses: deque[Loss | None] = deque()
        self.called: list[int] = []  # sequence numbers
        self.killed = 0
        self.late = False

    def call(self, call: RpcCall, payload: Any) -> Any:
        self.called.append(call.sequence)
        loss = self.losses.popleft() if self.losses else None
        if loss is not None and not loss.done:
            return loss.error
        answer = self.server.do(call, payload)
        return [answer] if loss is None else loss.error

    def ready(self, ref: Any, timeout_s: float) -> bool:
        return not self.late

    def get(self, ref: Any) -> Any:
        if isinstance(ref, Exception):
            raise ref
        return ref[0]

    def classify(self, error: Exception) -> CallVerdict:
        return RayLink(None).classify(error)

    def kill(self) -> None:
        self.killed += 1


def hosted(wire: Wire, setup: Any = None, **options: Any) -> RemoteHandle:
    return RemoteHandle("a", wire, stay(setup, **options))


def unavailable() -> Exception:
    return exceptions.ActorUnavailableError("no route", None)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(engine, "FIRST_RETRY_S", 0.0)


# The role server.


def test_an_order_that_comes_again_is_answered_and_not_done_again():
    server = kept()

    first, again = (server.tell(0, 0, Tell("x"), None) for _ in range(2))

    assert first == again
    assert first.answer == "x"
    assert Diary.last.done == ["x"]


def test_an_order_before_its_turn_is_sent_back():
    server = kept()

    assert server.tell(1, 0, Tell("second"), None).early
    server.tell(0, 0, Tell("first"), None)
    server.tell(1, 0, Tell("second"), None)

    assert Diary.last.done == ["first", "second"]


def test_an_order_before_the_role_is_built_is_sent_back():
    assert Server().tell(0, 0, Tell("x"), None).early


def test_answers_are_forgotten_once_they_were_received_and_beyond_a_bound():
    server = kept()
    for number in range(5):
        server.tell(number, 3, Tell(number), None)
    assert sorted(server._answers) == [FIRST_ORDER + 3, FIRST_ORDER + 4]

    for number in range(5, 5 + rpc.REMEMBERED):
        server.tell(number, 0, Tell(number), None)

    assert len(server._answers) == rpc.REMEMBERED


def test_a_stored_object_arrives_in_its_field():
    assert kept().tell(0, 0, Tell("x"), "weights").answer == ("x", "weights")


def test_a_role_that_raised_does_nothing_more():
    server = kept()

    failed = server.tell(0, 0, Tell(ValueError("no")), None).answer
    after = server.tell(1, 0, Tell("x"), None).answer

    assert failed.summary == f"{socket.gethostname()}: ValueError: no"
    assert not failed.final
    assert after == failed
    assert Diary.last.done == []


def test_what_a_constructor_raises_is_said_with_the_hosts_name():
    failed = Server().greet(stay(ConfigError("bad")))

    assert failed is not None
    assert failed.summary == f"{socket.gethostname()}: ConfigError: bad"
    assert failed.final


def test_what_cannot_be_imported_there_is_final_and_says_what_to_do():
    failed = Server().greet(stay(target="no_such_module:Role"))

    assert failed is not None
    assert failed.final
    assert "no_such_module" in failed.summary
    assert "install it on that host" in failed.summary


def test_building_again_says_the_same_and_builds_nothing():
    server = kept()
    first = Diary.last

    assert server.do(RpcCall(1, 0, stay()), None).answer is None

    assert Diary.last is first


def test_existing_paths_of_the_training_process_are_appended(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", ["here"])

    assert rpc._missing([str(tmp_path), "/nowhere", "here"]) == [str(tmp_path)]


def test_a_role_roams_between_orders_and_orders_get_in():
    server = kept("roam")
    role = Diary.last
    assert eventually(lambda: role.roamed > 10, 5.0)

    answers = [server.tell(n, n, Tell(n), None).answer for n in range(100)]

    assert answers == list(range(100))
    before = role.roamed
    assert eventually(lambda: role.roamed > before, 5.0)
    server.tell(100, 100, CloseRole(), None)


def test_what_roaming_raises_is_the_answer_to_the_next_order():
    server = kept("roam")
    Diary.last.breaks.set()
    assert eventually(lambda: server._failure is not None, 5.0)

    answer = server.tell(0, 0, Tell("x"), None).answer

    assert "RuntimeError: lost its way" in answer.summary
    assert Diary.last.done == []


def test_close_ends_roaming_and_closes_once():
    server = kept("roam")
    role = Diary.last

    for number in range(2):
        server.tell(number, 0, CloseRole(), None)
    roamed = role.roamed

    assert role.closed == 1
    assert not eventually(lambda: role.roamed > roamed, 0.02)


# The host.


def test_answers_come_in_the_order_of_the_orders():
    host = hosted(Wire())
    for number in range(3):
        host.send(Tell(number))
    assert host.busy
    assert host.silence_s > 0

    assert [host.receive() for _ in range(4)] == [0, 1, 2, None]

    assert (host.busy, host.silence_s) == (False, 0.0)
    assert (host.node, host.address, host.pid) == ("n1", "10.0.0.9", 77)
    assert host.alive


def test_an_order_that_waits_for_others_is_not_silence(monkeypatch):
    """As those are that were sent while it came up: that may take longer than an answer may."""
    clock = Clock()
    monkeypatch.setattr("rookery.engines.rpc.time", clock)
    host = hosted(Wire())
    for number in range(2):
        host.send(Tell(number))
    clock.now += 100.0
    assert host.silence_s == 100.0

    host.receive()
    assert host.silence_s == 0.0
    clock.now += 3.0
    assert host.silence_s == 3.0


def test_a_stored_object_is_sent_by_reference():
    host = hosted(Wire())

    host.send(Tell("x"), SharedObject("the ref"))

    assert host.receive() == ("x", "the ref")


@pytest.mark.parametrize("done", [True, False])
def test_calls_that_were_lost_are_made_again_and_applied_once(done):
    wire = Wire()
    wire.losses.extend([None, None, Loss(unavailable(), done), None, Loss(unavailable(), done)])
    host = hosted(wire)
    for number in range(4):
        host.send(Tell(number))

    answers = [host.receive(1.0) for _ in range(4)]

    assert answers == Diary.last.done == [0, 1, 2, 3]
    assert host.alive


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_hello_and_a_lost_start_are_made_again(done):
    wire = Wire()
    wire.losses.extend([Loss(unavailable(), done)] * 2)
    host = hosted(wire)
    host.send(Tell("x"))

    assert host.receive(1.0) == "x"
    assert Diary.last.done == ["x"]


def test_a_call_that_cannot_get_through_is_not_tried_without_pause(monkeypatch):
    monkeypatch.setattr(engine, "FIRST_RETRY_S", 10.0)
    wire = Wire()
    wire.losses.extend([None, None, Loss(unavailable(), False)])
    host = hosted(wire)
    host.send(Tell("x"))

    assert host.receive() is None
    assert host.receive() is None

    assert wire.called.count(FIRST_ORDER) == 1
    assert host.busy
    assert host.alive


def test_nothing_in_time_is_none():
    wire = Wire()
    wire.late = True
    host = hosted(wire)
    host.send(Tell("x"))

    assert host.receive(0.0) is None
    assert host.alive


def test_an_actor_that_died_is_not_alive_and_says_where():
    wire = Wire()
    wire.losses.extend([None, None, Loss(exceptions.ActorDiedError(), False)])
    host = hosted(wire)
    host.send(Tell("x"))

    assert host.receive() is None

    assert not host.alive
    assert host.failure is not None
    assert host.failure.startswith("far (10.0.0.9): ActorDiedError")
    assert "\n" not in host.failure
    assert (host.busy, wire.killed) == (False, 1)


def test_an_answer_that_cannot_be_read_is_a_failure():
    wire = Wire()
    broken = exceptions.RayTaskError("do", "ModuleNotFoundError: x", ModuleNotFoundError("x"))
    wire.losses.extend([None, None, Loss(broken, False)])
    host = hosted(wire)
    host.send(Tell("x"))

    assert isinstance(host.receive(), RoleFailed)
    assert not host.alive


def test_a_failure_is_an_answer_and_the_end_of_the_host():
    host = hosted(Wire(), ConfigError("bad"))

    failed = host.receive()

    assert isinstance(failed, RoleFailed)
    assert failed.final
    assert not host.alive
    host.send(Tell("x"))
    assert not host.busy


@pytest.mark.parametrize("package", ["python", "torch", "ray", "rookery"])
def test_other_versions_are_refused_naming_both_and_the_host(package):
    wire = Wire()
    wire.server.info = wire.server.info._replace(versions={**versions(), package: "0.0.1"})
    host = hosted(wire)

    failed = host.receive()

    assert isinstance(failed, RoleFailed)
    assert failed.final
    assert f"far (10.0.0.9): it has {package} 0.0.1" in failed.summary
    assert versions()[package] in failed.summary
    assert wire.killed


def test_builds_of_one_version_for_different_devices_are_alike():
    assert rpc._difference({"torch": "2.11.0+cu128"}, {"torch": "2.11.0+cpu"}) is None


def test_stop_closes_the_role_before_it_is_killed():
    wire = Wire()
    host = hosted(wire)

    host.stop(grace_s=1.0)

    assert Diary.last.closed == 1
    assert wire.killed
    assert not host.alive


# A full store.


class Store:
    """A Ray whose store is full for a while."""

    exceptions = exceptions

    def __init__(self, fulls: int):
        self.fulls = fulls

    def put(self, value: Any) -> str:
        self.fulls -= 1
        if self.fulls >= 0:
            raise exceptions.ObjectStoreFullError("no room")
        return f"ref of {value}"


def sharing(monkeypatch: pytest.MonkeyPatch, fulls: int) -> SharedObject:
    store = Store(fulls)
    monkeypatch.setattr(engine, "import_ray", lambda: store)
    session: Any = None
    return Cluster(session).share("weights")


def test_a_store_that_is_full_for_a_moment_is_waited_for(monkeypatch):
    assert sharing(monkeypatch, engine.PUT_TRIES - 1).ref == "ref of weights"


def test_a_store_that_stays_full_is_an_error_that_says_what_to_do(monkeypatch):
    with pytest.raises(LostError, match="object-store-memory"):
        sharing(monkeypatch, engine.PUT_TRIES)


# Tokens, and a machine without ray.


def token(path: Any, mode: int) -> ClusterConfig:
    path.write_text("secret")
    os.chmod(path, mode)
    return ClusterConfig(address="10.0.0.1:6379", token_path=str(path))


@pytest.fixture
def _bare(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("_bare")
def test_a_missing_token_is_refused_with_its_path(tmp_path):
    with pytest.raises(ConfigError, match=r"auth_token.*cluster\.token_path"):
        engine._credentials(ClusterConfig(address="10.0.0.1:6379"))


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_that_others_may_touch_is_refused(tmp_path, mode):
    with pytest.raises(ConfigError, match="chmod 600"):
        engine._credentials(token(tmp_path / "token", mode))


@pytest.mark.usefixtures("_bare")
def test_the_configs_token_counts_more_than_exported_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "other")
    config = token(tmp_path / "token", 0o600)

    found = engine._credentials(config)

    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN"] is None
    assert found["RAY_AUTH_TOKEN_PATH"] == config.token_path


@pytest.mark.usefixtures("_bare")
def test_disabled_tokens_are_the_users_word(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    found = engine._credentials(ClusterConfig(address="10.0.0.1:6379"))

    assert found == {"RAY_AUTH_MODE": "disabled"}


def test_where_ray_is_missing_the_extra_is_named(monkeypatch):
    def missing() -> Any:
        raise ImportError("ray")

    monkeypatch.setattr(engine, "import_ray", missing)

    with pytest.raises(ConfigError, match=r"pip install 'rookery\[ray\]'"):
        engine._need_ray()


def test_of_what_ray_says_about_a_dead_actor_one_sentence_is_kept():
    long = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: RoleServer\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2."
    )
    error = exceptions.RayActorError("ab" * 8, long)

    said = "The actor is dead because its worker process has died"
    assert rpc.gist(error) == f"RayActorError: {said}"
