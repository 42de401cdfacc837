"""The ray engine: roles on the hosts of a Ray cluster. The only file that imports ray.

    cluster = Cluster.open(config.cluster, cpus=4, store_bytes=200 << 20)
    host = cluster.start("rookery.loops.post:Post", setup, name="post-0", cpus=1, node=node.id)
    host.send(order, cluster.share(weights)); host.receive(timeout_s=1.0)
    cluster.close()

A Ray that was started here ends with this process, however that ends; one that was joined stays,
without our actors. A call that fails on its way is made again under the same number, and the
keeper on the other side does nothing twice and nothing out of order. Arrays in answers and parcels
may be read-only views of the object store: copy what is to be written to.
"""

import atexit
import contextlib
import fcntl
import importlib
import importlib.metadata
import logging
import os
import platform
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle

import rookery
from rookery.config.schema import ClusterConfig
from rookery.engines import processes
from rookery.engines.interface import Close, Failed, Role, describe
from rookery.errors import ClosedError, ConfigError, LostError

JOIN_S = 15.0  # for a cluster to take us in
START_S = 60.0  # for a Ray of our own
END_S = 10.0  # for disconnecting, and for what is left to be swept
INTERRUPTED_S = 4.0  # the same, where it was not up yet
LOOK_S = 2.0  # for an answer about the hosts, and of an actor
GLANCE_S = 0.2  # the same, where some are known: then the last answer counts
LEAST_STORE = 80 << 20  # bytes; Ray refuses less than 75 MiB
REMEMBERED = 256  # answers that a keeper can give again
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
PUT_TRIES = 5
SETTINGS = {  # of Ray itself, where the user exports none
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",  # then it aborts a driver without a head
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # a call fails after this and the next
    "RAY_core_worker_internal_heartbeat_ms": "100",
    "RAY_USAGE_STATS_ENABLED": "0",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LONGEST_FOLDER = 20  # letters; the system allows 107 for a socket's whole path
MARK = "ROOKERY_RAY"  # in the environment of what belongs to a Ray of our own: its folder
_PR_SET_PDEATHSIG = 1

left_behind = False  # a Ray hangs in this process: it crashes at an end with goodbyes


class Node(NamedTuple):
    """A live host."""

    id: str
    name: str
    address: str  # IP
    resources: dict[str, float]


class Hello(NamedTuple):
    """A keeper's first words."""

    host: str
    address: str
    node: str
    pid: int
    versions: dict[str, str]


class Parcel(NamedTuple):
    """Something that lies in the object store once and is sent by reference to many."""

    ref: Any


class Reply(NamedTuple):
    """An answer on its way back, with the number of what it answers."""

    client: str
    incarnation: int
    sequence: int
    answer: Any
    early: bool = False  # not done: an earlier one has not come yet


def versions() -> dict[str, str]:
    """Returns what must be the same on all hosts. Does not import any of it."""
    found = {"python": platform.python_version(), "rookery": rookery.__version__}
    for package in ("torch", "ray"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# The inside: what lives in a Ray actor.


class Keeper:
    """Keeps a role on its host: applies each order once, in order, and lets it roam in between.

    Orders come from one thread, the actor's main one. The role is also called from a thread of the
    keeper's own while it roams, never from both at once. A role that has raised does nothing more:
    that failure is the answer to whatever else it is told.
    """

    def __init__(self) -> None:
        self._role: Role | None = None
        self._owner: tuple[str, int] | None = None
        self._failure: Failed | None = None
        self._next = 0
        self._answers: dict[int, Any] = {}
        self._free = threading.Condition()  # held by whoever calls the role
        self._wanted = False  # an order waits: the roaming thread lets it pass
        self._closed = False

    def build(
        self,
        client: str,
        incarnation: int,
        target: str,
        setup: bytes,
        paths: Sequence[str],
        environ: Mapping[str, str],
    ) -> Failed | None:
        """Builds the role; returns how that failed. Called again, it says the same again."""
        if self._owner is None:
            self._owner = (client, incarnation)
            os.environ.update(environ)
            sys.path.extend(_missing(paths))
            self._failure = self._attempt(lambda: self._settle(target, setup))
        return self._failure

    def do(
        self, client: str, incarnation: int, sequence: int, received: int, order: Any, parcel: Any
    ) -> Reply:
        """Applies an order unless it has been. `received`: the sender has all answers below it."""
        stamp = (client, incarnation, sequence)
        if self._owner not in (None, (client, incarnation)):
            return Reply(*stamp, Failed("StaleOrder: this host works for another run", "", False))
        if self._owner is None or sequence > self._next:
            return Reply(*stamp, None, early=True)
        if sequence == self._next:
            self._answers[sequence] = self._apply(order, parcel)
            self._next += 1
        self._forget(received)
        return Reply(*stamp, self._answers.get(sequence))

    def _forget(self, received: int) -> None:
        for old in [n for n in self._answers if n < received or n < self._next - REMEMBERED]:
            del self._answers[old]

    def _settle(self, target: str, setup: bytes) -> None:
        module, _, builder = target.partition(":")
        self._role = getattr(importlib.import_module(module), builder)(cloudpickle.loads(setup))
        threading.Thread(target=self._roam, name="roam", daemon=True).start()

    def _apply(self, order: Any, parcel: Any) -> Any:
        answer: Any = None

        def obey() -> None:
            nonlocal answer
            answer = self._obey(order, parcel)

        self._wanted = True
        with self._free:
            self._wanted = False
            if self._failure is None or isinstance(order, Close):
                self._failure = self._attempt(obey) or self._failure
            self._free.notify()
            return self._failure or answer

    def _obey(self, order: Any, parcel: Any) -> Any:
        if isinstance(order, Close):
            self._close()
            return None
        assert self._role is not None  # or there is a failure
        return self._role.do(order if parcel is None else order._replace(parcel=parcel))

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._role is not None:
                self._role.close()

    def _roam(self) -> None:
        """Lives as long as the keeper: what a role spawns dies with the thread that spawned it."""
        assert self._role is not None
        while True:
            with self._free:
                self._free.wait_for(self._may_roam)
                self._failure = self._attempt(self._role.roam)

    def _may_roam(self) -> bool:
        idle = self._closed or self._wanted or self._failure is not None
        return not idle and self._role is not None and self._role.roaming

    def _attempt(self, work: Callable[[], Any]) -> Failed | None:
        try:
            work()
        except Exception as error:  # a user's environment may raise anything
            return _at_home(error, traceback.format_exc())
        return None


class Resident(Keeper):
    """A keeper that knows which host it is on."""

    def hello(self) -> Hello:
        context = _ray().get_runtime_context()
        address = _ray().util.get_node_ip_address()
        node = context.get_node_id()
        return Hello(socket.gethostname(), address, node, os.getpid(), versions())


def _missing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path not in sys.path and os.path.exists(path)]


def _at_home(error: Exception, text: str) -> Failed:
    """Describes what a role raised, with the name of the host it did so on."""
    failed = describe(error, text)
    summary = f"{socket.gethostname()}: {failed.summary}"
    if isinstance(error, ImportError):
        return failed._replace(summary=f"{summary}; install it on that host", final=True)
    return failed._replace(summary=summary)


# The outside: a role as its owner sees it.


class Link(Protocol):
    """The wire to an actor: calls return at once, `get` raises what Ray says."""

    def call(self, method: str, *args: Any) -> Any: ...

    def ready(self, ref: Any, timeout_s: float) -> bool: ...

    def get(self, ref: Any) -> Any: ...

    def kill(self) -> None: ...


class _Verdict(Enum):
    """What an exception of Ray means for the call and its actor."""

    RETRY = auto()  # it may or may not have been done
    DEAD = auto()  # the actor is gone
    RAISED = auto()  # the call itself failed: what was sent cannot be read there, or sent back


class _Call:
    """A call without an answer."""

    def __init__(self, method: str, sequence: int, order: Any = None, parcel: Any = None):
        self.method, self.sequence, self.order, self.parcel = method, sequence, order, parcel
        self.sent, self.tries = time.monotonic(), 0
        self.ref: Any = None
        self.due = 0.0  # where it failed: when to try again


class Host:
    """A role on some host. Its methods are for one thread.

    After a `Failed` it is not alive, as a process that has raised is not: start another.
    """

    def __init__(
        self, name: str, link: Link, setup: tuple[Any, ...], client: str, incarnation: int
    ):
        self.name = name
        self.node: str | None = None
        self.address: str | None = None
        self.pid = 0
        self.failure: str | None = None
        self._place: str | None = None  # how messages name where it is
        self._link, self._setup = link, setup
        self._client, self._incarnation = client, incarnation
        self._sent = 0
        self._calls: deque[_Call] = deque()
        self._submit(_Call("hello", -1))
        self._submit(_Call("build", -1))

    @property
    def alive(self) -> bool:
        return self.failure is None

    @property
    def waiting(self) -> int:
        """Orders without an answer."""
        return sum(call.method == "do" for call in self._calls)

    @property
    def silence_s(self) -> float:
        """Seconds since the oldest unanswered order was sent; 0 without one."""
        oldest = next((call for call in self._calls if call.method == "do"), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.sent

    @property
    def busy(self) -> bool:
        """Is something to come from it?"""
        return bool(self._calls)

    @property
    def pending(self) -> Any | None:
        """What to wait for, in Ray's terms; None where nothing is on its way at the moment."""
        self._resend()
        return self._calls[0].ref if self._calls else None

    def send(self, order: Any, parcel: Parcel | None = None) -> None:
        """Hands over an order; with a parcel it is a NamedTuple, and its field `parcel` is filled
        with what lies in the store. One that is not alive gets nothing any more."""
        if self.alive:
            self._submit(_Call("do", self._sent, order, parcel))
            self._sent += 1

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        """Returns the next answer, `Failed` where the role raised, None where none came in time or
        the host is gone."""
        deadline = time.monotonic() + timeout_s
        while self._calls:
            left = deadline - time.monotonic()
            self._resend()
            call = self._calls[0]
            if call.ref is None:
                if left <= 0:
                    return None
                time.sleep(min(left, max(0.0, call.due - time.monotonic())))
            elif not self._link.ready(call.ref, max(0.0, left)):
                return None
            elif (news := self._take(call)) is not None:
                return news[0]
        return None

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Asks the role to close, gives it the time, then kills its process."""
        if self.alive and grace_s > 0:
            self.send(Close())
            deadline = time.monotonic() + grace_s
            while self._calls and time.monotonic() < deadline:
                self.receive(deadline - time.monotonic())
        self._end("it was stopped")
        return None

    def _submit(self, call: _Call) -> None:
        self._calls.append(call)
        self._call(call)

    def _call(self, call: _Call) -> None:
        try:
            call.ref = self._link.call(call.method, *self._arguments(call))
        except _ray().exceptions.RayError as error:  # a large order, and no room in the store
            self._retry(call, error)

    def _arguments(self, call: _Call) -> tuple[Any, ...]:
        stamp = (self._client, self._incarnation)
        if call.method == "hello":
            return ()
        if call.method == "build":
            return (*stamp, *self._setup)
        first = next(c.sequence for c in self._calls if c.method == "do")
        parcel = None if call.parcel is None else call.parcel.ref
        return (*stamp, call.sequence, first, call.order, parcel)

    def _resend(self) -> None:
        """Makes the oldest call again where it failed and its time has come."""
        call = self._calls[0] if self._calls else None
        if call is not None and call.ref is None and time.monotonic() >= call.due:
            self._call(call)

    def _take(self, call: _Call) -> tuple[Any] | None:
        """Takes what came for the oldest call; returns the answer, or None where it is ours."""
        try:
            answer = self._link.get(call.ref)
        except Exception as error:  # all of Ray's; what it is decides what follows
            return _VERDICTS[_judge(error)](self, call, error)
        return _TAKERS[call.method](self, call, answer)

    def _meet(self, call: _Call, hello: Hello) -> tuple[Any] | None:
        self._calls.popleft()
        self.node, self.address, self.pid = hello.node, hello.address, hello.pid
        self._place = f"{hello.host} ({hello.address})"
        if (difference := _difference(versions(), hello.versions)) is None:
            return None
        return self._fail(Failed(f"{self._place}: {difference}", "", final=True))

    def _built(self, call: _Call, failure: Failed | None) -> tuple[Any] | None:
        self._calls.popleft()
        self._setup = ()  # it may be large
        return None if failure is None else self._fail(failure)

    def _answered(self, call: _Call, reply: Reply) -> tuple[Any] | None:
        if reply[:3] != (self._client, self._incarnation, call.sequence):
            return self._fail(Failed(f"{self._where}: an answer to somebody else", "", False))
        if reply.early:  # the one before it was made again: now it is its turn
            call.ref = None
            return None
        self._calls.popleft()
        if isinstance(reply.answer, Failed):
            return self._fail(reply.answer)
        return (reply.answer,)

    def _fail(self, failed: Failed) -> tuple[Any]:
        self._end(failed.summary)
        return (failed,)

    def _retry(self, call: _Call, error: Exception) -> None:
        call.ref = None
        call.due = time.monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**call.tries)
        call.tries += 1

    def _died(self, call: _Call, error: Exception) -> tuple[Any] | None:
        if getattr(error, "actor_init_failed", False):  # rookery itself could not be loaded there
            what = f"{_place_in(error) or self._where}: {_gist(error)}; install rookery there"
            return self._fail(Failed(what, str(error), final=True))
        self._end(f"{self._where}: {_gist(error)}")
        return None

    def _raised(self, call: _Call, error: Exception) -> tuple[Any]:
        return self._fail(
            describe(error, str(error))._replace(summary=f"{self._where}: {_gist(error)}")
        )

    @property
    def _where(self) -> str:
        return self._place or self.name

    def _end(self, why: str) -> None:
        self.failure = self.failure or why
        self._calls.clear()
        self._setup = ()
        self._link.kill()


_TAKERS: dict[str, Callable[[Host, _Call, Any], tuple[Any] | None]] = {
    "hello": Host._meet,
    "build": Host._built,
    "do": Host._answered,
}
_VERDICTS: dict[_Verdict, Callable[[Host, _Call, Exception], tuple[Any] | None]] = {
    _Verdict.RETRY: Host._retry,
    _Verdict.DEAD: Host._died,
    _Verdict.RAISED: Host._raised,
}


def _judge(error: Exception) -> _Verdict:
    """Anything of Ray's that is neither the actor's end nor the call's own is worth another try."""
    kinds = _ray().exceptions
    if isinstance(error, kinds.RayTaskError):
        return _Verdict.RAISED
    dead = (
        kinds.ActorDiedError,
        kinds.ActorUnschedulableError,
        kinds.NodeDiedError,
        kinds.WorkerCrashedError,
        kinds.LocalRayletDiedError,
        kinds.RuntimeEnvSetupError,
        kinds.TaskCancelledError,
    )
    if isinstance(error, dead):
        return _Verdict.DEAD
    return _Verdict.RETRY if isinstance(error, kinds.RayError) else _Verdict.RAISED


def _difference(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Builds of one version for different devices (2.11.0+cpu) are alike."""
    for package, version in ours.items():
        other = theirs.get(package, "none")
        if version.partition("+")[0] != other.partition("+")[0]:
            return (
                f"it has {package} {other}, {socket.gethostname()} has {version}; "
                "all hosts of a run need the same: install one of them on both"
            )
    return None


def _gist(error: Exception) -> str:
    """Returns the one line of Ray's message that says something; of Ray's own words a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line and line[0] not in "\t "]
    telling = [line for line in lines if not line.startswith("The actor died unexpectedly before")]
    last = (telling or lines or [type(error).__name__])[-1]
    if last.startswith("The actor"):
        last = last.partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {last}"[:400]


def _place_in(error: Exception) -> str | None:
    _, found, rest = str(error).partition("ip=")
    return rest.split(",")[0].split(")")[0] if found else None


class _Wire:
    """A Ray actor."""

    def __init__(self, actor: Any):
        self._actor = actor
        self._killed = False

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method).remote(*args)

    def ready(self, ref: Any, timeout_s: float) -> bool:
        return bool(_ray().wait([ref], timeout=timeout_s)[0])

    def get(self, ref: Any) -> Any:
        return _ray().get(ref, timeout=LOOK_S)

    def kill(self) -> None:
        if not self._killed and _ray().is_initialized():
            self._killed = True
            with contextlib.suppress(_ray().exceptions.RayError, ValueError):  # it is gone already
                _ray().kill(self._actor)


# The cluster.


class Cluster:
    """A Ray that was started here or joined. `open` it, `close` it; one at a time in a process."""

    def __init__(self, session: "_Session", *, started: bool):
        self.started = started
        self._session = session
        self._client = uuid.uuid4().hex
        self._resident: Any = None  # the class that Ray knows
        self._hosts: list[Host] = []
        self._known: list[Node] = []
        self._asking: threading.Thread | None = None
        self._asked = 0.0  # when the head was first asked what it has not answered

    @classmethod
    def open(cls, config: ClusterConfig, *, cpus: int, store_bytes: int) -> "Cluster":
        """Starts a Ray on this machine, or joins the one at `config.address`.

        What cannot work is a ConfigError within JOIN_S. Ray's environment variables are ours until
        `close`; signal handlers stay as they are.
        """
        environ = _Environ()
        _need_ray()
        if config.address is None:
            store = max(store_bytes, LEAST_STORE)
            return cls(_start(config, environ, cpus, store), started=True)
        return cls(_join(config, environ, config.address), started=False)

    def nodes(self) -> list[Node]:
        """Returns the live hosts by address; the last known ones where the head does not answer."""
        if self._asking is None or not self._asking.is_alive():  # else it has waited long enough
            self._asking = threading.Thread(target=self._ask, name="nodes", daemon=True)
            self._asked = self._asked or time.monotonic()
            self._asking.start()
            self._asking.join(GLANCE_S if self._known else LOOK_S)
        return self._known

    @property
    def silence_s(self) -> float:
        """Seconds since the head was asked by `nodes` what it has not answered; 0 if it has."""
        return time.monotonic() - self._asked if self._asked else 0.0

    def start(
        self,
        target: str,
        setup: Any,
        *,
        name: str,
        cpus: float,
        gpus: float = 0.0,
        node: str | None = None,
    ) -> Host:
        """Brings `target(setup)` to life on some host, or on the one with the id `node`."""
        environ = {name: os.environ.get(name, "1") for name in THREADS}
        if self._resident is None:  # once: each new one has to be sent to the head
            self._resident = _ray().remote(Resident)
        actor = self._resident.options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=_strategy(node),
        )
        stay = (target, cloudpickle.dumps(setup), [p for p in sys.path if p], environ)
        host = Host(name, _Wire(actor.remote()), stay, self._client, len(self._hosts))
        self._hosts.append(host)
        return host

    def share(self, value: Any) -> Parcel:
        """Puts a value into the object store once. A full one is waited for a little."""
        full = (_ray().exceptions.ObjectStoreFullError, _ray().exceptions.OutOfDiskError)
        for attempt in range(PUT_TRIES):
            try:
                return Parcel(_ray().put(value))
            except full as error:
                cause = error
                time.sleep(FIRST_RETRY_S * 2**attempt)
        raise LostError(
            f"{socket.gethostname()}: Ray's object store is full ({_gist(cause)}); give Ray a "
            "larger one (`ray start --object-store-memory`), and /dev/shm and the disk more room"
        ) from cause

    def wait(self, hosts: Sequence[Host], timeout_s: float) -> None:
        """Waits until one of these has news for `receive`, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            refs = [host.pending for host in hosts if host.busy]
            sent = [ref for ref in refs if ref is not None]
            left = max(0.0, deadline - time.monotonic())
            look = left if len(sent) == len(refs) else min(left, FIRST_RETRY_S)  # some are to retry
            if not sent:
                time.sleep(look)
            elif _ray().wait(sent, num_returns=1, timeout=look)[0]:
                return
            if time.monotonic() >= deadline:
                return

    def close(self) -> None:
        """Kills what was started here. Of a Ray that was started here, nothing is left."""
        for host in self._hosts:
            host.stop()
        self._hosts.clear()
        self._session.close()

    def _ask(self) -> None:
        try:
            found = [node for node in _ray().nodes() if node["Alive"]]
        except Exception:  # the head does not answer: that is for those who wait for its hosts
            return
        nodes = [_node(entry) for entry in found]
        self._known = sorted(nodes, key=lambda node: (node.address, node.id))
        self._asked = 0.0


def _node(entry: dict[str, Any]) -> Node:
    address = entry["NodeManagerAddress"]
    return Node(entry["NodeID"], entry["NodeManagerHostname"], address, dict(entry["Resources"]))


def _strategy(node: str | None) -> Any:
    if node is None:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


# Starting and joining.


class _Session:
    """Ray in this process: a thread that starts it, waits, and ends it.

    A thread of its own, for three reasons: in the main thread Ray would take over SIGTERM, signals
    would wait until it is up, and what it starts is killed when the *thread* that did so ends.
    """

    def __init__(self, options: dict[str, Any], environ: "_Environ", broom: "_Broom | None"):
        self._options, self._environ, self._broom = options, environ, broom
        self._up, self._over = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._quiet = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)

    def open(self, within_s: float) -> None:
        """Raises what Ray says, or TimeoutError."""
        self._quiet.enter_context(_quiet())
        self._thread.start()
        if not self._up.wait(within_s):
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        _take_signals_back()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends Ray. Where it hangs, what it has made is swept, and it is left to itself."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(END_S if self._up.is_set() else INTERRUPTED_S)
        if self._thread.is_alive():
            self._abandon()
        else:
            self._tidy()
        _take_signals_back()

    def _abandon(self) -> None:
        global left_behind
        left_behind = True
        atexit.unregister(_ray()._private.worker.shutdown)  # it would wait for what hangs
        if self._broom is not None:
            self._broom.sweep()

    def _tidy(self) -> None:
        if self._broom is not None:
            self._broom.finish()
        self._quiet.close()
        self._environ.restore()

    def _live(self) -> None:
        ray = _ray()
        try:
            ray.init(configure_logging=False, log_to_driver=False, **self._options)
        except Exception as error:  # whatever it was, whoever opens this gets it
            self._error = error
        self._up.set()
        self._over.wait()
        with contextlib.suppress(Exception):  # the head may be gone; what is left is swept
            ray.shutdown(wait_for_processes=True)


def _take_signals_back() -> None:
    """Below Python's handlers, Ray puts one of its own for SIGTERM that prints a stack, and leaves
    the default one when it goes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray says nothing: what it logs we say in a line, and what it prints on standard output, even
    with log_to_driver=False, would end up between the lines of --json."""
    logger = logging.getLogger("ray")
    worker: Any = importlib.import_module("ray._private.worker")
    level, speak = logger.level, worker.print_to_stdstream
    logger.setLevel(logging.CRITICAL + 1)
    worker.print_to_stdstream = lambda *args, **options: None
    try:
        yield
    finally:
        worker.print_to_stdstream = speak
        logger.setLevel(level)


class _Environ:
    """Ray's environment variables, to be put back as they were."""

    def __init__(self) -> None:
        self._before = dict(_variables())

    def set(self, changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "ray" in sys.modules:  # it has read them already
            raylet = importlib.import_module("ray._raylet")
            raylet.Config.initialize("")
            raylet.AuthenticationTokenLoader.instance().reset_cache()

    def restore(self) -> None:
        gone: dict[str, None] = dict.fromkeys(name for name, _ in _variables())
        self.set({**gone, **self._before})


def _variables() -> Iterator[tuple[str, str]]:
    """Yields what Ray reads and writes; it also takes over `breakpoint()`."""
    for name, value in os.environ.items():
        if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
            yield name, value


def _start(config: ClusterConfig, environ: _Environ, cpus: int, store_bytes: int) -> _Session:
    broom = _Broom()
    environ.set(
        {
            **SETTINGS,
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": None,  # it would count more than the file
            "RAY_AUTH_TOKEN_PATH": str(broom.token),
        }
    )
    options = {
        "address": "local",
        "num_cpus": cpus,
        "object_store_memory": store_bytes,
        "include_dashboard": config.dashboard,
        "_temp_dir": str(broom.folder / "r"),
    }
    session = _Session(options, environ, broom)
    try:
        with broom.marking():
            session.open(START_S)
    except BaseException as error:  # a signal too: nothing may be left
        session.close()
        if isinstance(error, Exception):
            raise LostError(f"{socket.gethostname()}: Ray did not start: {_last(error)}") from error
        raise
    return session


def _join(config: ClusterConfig, environ: _Environ, address: str) -> _Session:
    environ.set({**SETTINGS, **os.environ, **_credentials(config)})
    session = _Session({"address": address}, environ, None)
    try:
        _knock(address)
        session.open(JOIN_S)
    except BaseException as error:
        session.close()
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        raise _refused(address, _last(error)) from error
    return session


def _refused(address: str, why: str) -> ConfigError:
    return ConfigError(f"{socket.gethostname()} cannot join the Ray cluster at {address}: {why}")


def _last(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"[:400]


def _credentials(config: ClusterConfig) -> dict[str, str | None]:
    """Returns the variables that make Ray show the right token. `disabled` is the user's word."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return {"RAY_AUTH_MODE": "disabled"}
    if config.token_path is None and os.environ.get("RAY_AUTH_TOKEN"):
        return {"RAY_AUTH_MODE": "token"}
    exported = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(config.token_path or exported or Path.home() / ".ray" / "auth_token").expanduser()
    _check_token(path)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(path)}


def _check_token(path: Path) -> None:
    here = socket.gethostname()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{here}: no token of the Ray cluster in {path} ({error.strerror}); copy the head's "
            "token file there, or name another one in cluster.token_path"
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{here}: the token file {path} has mode {mode:04o}, others may read it; 0600 is "
            f"allowed: chmod 600 {path}"
        )


# Knocking: what ray.init cannot say quickly, in a process that may be killed.


def _knock(address: str) -> None:
    """Asks in a child whether the cluster takes us: ray.init itself retries for long, writes to
    the terminal, and has been seen to abort its process."""
    child = processes.spawn("rookery.engines.ray:knock", address, name="knock")
    try:
        why = child.receive(JOIN_S)
    finally:
        child.stop(grace_s=0.0)
    if why is None:
        why = (
            f"no answer within {JOIN_S:.0f} s; is the head up, and is a Ray of that cluster "
            f"running on this host (ray start --address={address})?"
        )
    if why:
        raise _refused(address, why)


def knock(connection: Connection, address: str) -> None:
    """The child: sends why it was refused, or an empty line."""
    reading, writing = os.pipe()
    os.dup2(writing, 2)  # Ray's own lines
    listener = threading.Thread(target=_listen, args=(connection, reading), daemon=True)
    listener.start()
    processes.send(connection, _try(address))
    os._exit(0)


def _try(address: str) -> str:
    """Returns why a cluster cannot be joined, or nothing."""
    if (closed := _unreachable(address)) is not None:
        return closed
    try:
        _ray().init(address=address, configure_logging=False, log_to_driver=False)
    except Exception as error:  # whatever it was, it is the answer
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text}"[:600]
    return ""


def _unreachable(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not host:
        return None
    try:
        socket.create_connection((host, int(port)), timeout=JOIN_S / 3).close()
    except OSError as error:
        return f"{error}; is the head up, and the address that of `ray start --head`?"
    return None


def _listen(connection: Connection, reading: int) -> None:
    with os.fdopen(reading, errors="replace") as lines:
        for line in lines:
            if "InvalidAuthToken" in line or "Unauthenticated" in line:
                processes.send(connection, _WRONG_TOKEN)
                os._exit(0)


_WRONG_TOKEN = (
    "it does not accept this host's token; copy the head's token file (mode 0600) and name it in "
    "cluster.token_path or RAY_AUTH_TOKEN_PATH"
)


# Sweeping: a Ray of our own leaves nothing, even after kill -9 of the process that started it.


class _Broom:
    """The folder of a Ray of our own, and the child that outlives us to clear up after us.

    Ray's servers die with us, but its agents stay for a minute and its folder for ever.
    """

    def __init__(self) -> None:
        _sweep_old()
        prefix = f"{_prefix()}{secrets.token_hex(3)}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_short_folder()))
        # mode 0700: Ray opens its own to all
        self._lock = _locked(self.folder)
        self.token = self.folder / "token"
        with os.fdopen(os.open(self.token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        self._child = processes.spawn("rookery.engines.ray:outlive", str(self.folder), name="broom")
        self._child.receive(END_S)  # from now on it outlives us

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """What is started meanwhile belongs to the Ray, as does all that comes of it."""
        os.environ[MARK] = str(self.folder)
        try:
            yield
        finally:
            del os.environ[MARK]

    def sweep(self) -> None:
        """Ends and removes everything now, and again when this process ends."""
        self._child.send(_AND_STAY)

    def finish(self) -> None:
        """Ends and removes everything, for good."""
        self._child.send("finish")
        self._child.stop(2 * END_S)
        shutil.rmtree(self.folder, ignore_errors=True)  # where somebody killed the child
        os.close(self._lock)


_AND_STAY = "sweep, and stay"


def outlive(connection: Connection, folder: str) -> None:
    """The child: waits for our word or our end, then ends and removes what Ray has left."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):  # for the one we wait for, not for us
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ClosedError):
        processes.send(connection, "ready")
    while _word(connection) == _AND_STAY:
        _sweep(folder)
    _sweep(folder)


def _word(connection: Connection) -> Any:
    try:
        return processes.receive(connection)
    except (EOFError, OSError):
        return None


def _sweep(folder: str) -> None:
    """What was killed a moment ago may still have made a file: looks again until nothing is."""
    deadline = time.monotonic() + END_S
    while (_kill_all(folder) or os.path.exists(folder)) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def _kill_all(folder: str) -> int:
    """Kills every process of the Ray in this folder, and theirs; returns how many there were."""
    import psutil

    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _belongs(process, folder):
                found += 1
                process.kill()
    return found


def _belongs(process: Any, folder: str) -> bool:
    """By the mark in its environment, which some of Ray's own have overwritten with their title:
    these have their logs open."""
    if process.environ().get(MARK) == folder:
        return bool(process.status() != "zombie")
    if not process.name().startswith("ray::"):
        return False
    return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def _short_folder() -> str:
    """Returns a temporary folder that leaves room for the names of Ray's sockets."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_FOLDER else "/tmp"


def _prefix() -> str:
    return f"rk-{os.getuid()}-"


def _sweep_old() -> None:
    """Removes what a Ray left whose process and broom were killed at once."""
    for folder in Path(_short_folder()).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > START_S:  # not in the middle of being made
                os.close(_locked(folder))
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int:
    """Returns a descriptor that holds the folder's lock; an OSError where its owner lives."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


# Ray itself.


def _need_ray() -> None:
    try:
        _ray()
    except ImportError as error:
        raise ConfigError(
            "engine ray needs ray, which is not installed; pip install 'rookery[ray]'"
        ) from error
    if _ray().is_initialized():
        raise ConfigError("this process is connected to a Ray already; ray.shutdown() it first")


def _ray() -> Any:
    """Imports ray, without its hook for exceptions: that one asks a head that may be gone."""
    if "ray" not in sys.modules:
        hook = sys.excepthook
        importlib.import_module("ray")
        sys.excepthook = hook
    return importlib.import_module("ray")
