"""Remote calls to worker objects (roles), such as host workers, on other hosts.

A `RoleServer` on the other host runs the worker; a `RemoteHandle` in this process sends it control
messages over a `RayLink`. A call that fails in transit is sent again with the same number, its
sequence number. So the `RoleServer` executes each message exactly once and in order.
"""

import contextlib
import importlib.metadata
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle

from rookery import plugins
from rookery.engines.engine import CloseRole, EngineRole, describe
from rookery.engines.library_internals import import_ray
from rookery.errors import RoleFailed
from rookery.version import __version__

FIRST_ORDER = 2  # sequence number of the first control message, after `Hello` and `BuildRole`
REMEMBERED = 256  # answers that a role server can send again
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
LOOK_S = 2.0  # for an answer of Ray about its hosts, or of an actor

OrderT = TypeVar("OrderT", contravariant=True)
AnswerT = TypeVar("AnswerT", covariant=True)


class HostInfo(NamedTuple):
    """Host, process id and library versions of the process that runs a remote worker object."""

    host: str
    address: str
    node: str
    pid: int
    versions: dict[str, str]


class SharedObject(NamedTuple):
    """Reference to a value in Ray's object store, such as network weights sent to many hosts."""

    ref: object


class Hello(NamedTuple):
    """First message to a `RoleServer`: return the `HostInfo` of its process."""


class BuildRole(NamedTuple):
    """Second message to a `RoleServer`: build the worker object `target(setup)`."""

    target: str  # module:builder
    setup: bytes  # pickled
    paths: Sequence[str]  # `sys.path` of the sender
    environ: Mapping[str, str]


class RpcCall(NamedTuple):
    """A message to a `RoleServer`, with its number."""

    sequence: int
    received: int  # answers to messages with smaller numbers have arrived
    order: object


class RpcReply(NamedTuple, Generic[AnswerT]):
    """Answer of a remote worker to one message."""

    answer: AnswerT | RoleFailed | None  # None: to `CloseRole`, or it is no longer known
    early: bool = False  # not done: an earlier one has not come yet


def versions() -> dict[str, str]:
    """Returns the versions of Python, Rookery, torch and Ray, which must agree on all hosts.

    Reads them from package metadata, without importing torch or Ray.
    """
    found = {"python": platform.python_version(), "rookery": __version__}
    for package in ("torch", "ray"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# On the other host.


class RoleServer:
    """Ray actor that runs one worker object (role) on its host, e.g. the host worker.

    It executes each message once, in order.

    The Ray actor's main thread handles messages. While the worker is self-driven, another thread
    calls its `work` between messages, never during one. After the worker has raised an exception,
    it is not called again, and every later message is answered with that `RoleFailed`.
    """

    def __init__(self) -> None:
        self._role: EngineRole[object, object] | None = None
        self._failure: RoleFailed | None = None
        self._next = 0
        self._answers: dict[int, object] = {}
        self._free = threading.Condition()  # held by the thread that calls the role
        self._wanted = False  # an order waits: the working thread lets it pass
        self._closed = False

    def hello(self) -> HostInfo:
        """Returns the host and process in which this object is."""
        address = import_ray().util.get_node_ip_address()
        node = import_ray().get_runtime_context().get_node_id()
        return HostInfo(socket.gethostname(), address, node, os.getpid(), versions())

    def do(self, call: RpcCall, payload: object) -> RpcReply[object]:
        """Executes a message, unless it was executed before; returns the reply.

        `payload` is for the field `payload` of the order; Ray passes values of its object store
        only as arguments of their own. A message that comes before its predecessor is not executed;
        its reply has `early` set.
        """
        if call.sequence > self._next:
            return RpcReply(None, early=True)
        if call.sequence == self._next:
            self._answers[call.sequence] = self._apply(call.order, payload)
            self._next += 1
        for old in [n for n in self._answers if n < call.received or n < self._next - REMEMBERED]:
            del self._answers[old]
        return RpcReply(self._answers.get(call.sequence))

    def _apply(self, order: object, payload: object) -> object:
        self._wanted = True
        with self._free:
            self._wanted, answer = False, None
            if self._failure is None or isinstance(order, CloseRole):
                answer = self._attempt(partial(self._obey, order, payload))
            self._free.notify()
            return self._failure or answer

    def _obey(self, order: Any, payload: object) -> object:  # type: ignore[explicit-any]  # a named tuple
        if isinstance(order, Hello):
            return self.hello()
        if isinstance(order, BuildRole):
            self._build(order)
        elif isinstance(order, CloseRole):
            self._close()
        else:
            assert self._role is not None  # or there is a failure
            return self._role.do(order if payload is None else order._replace(payload=payload))
        return None

    def _build(self, order: BuildRole) -> None:
        os.environ.update(order.environ)
        sys.path.extend(_missing(order.paths))
        self._role = plugins.load(order.target)(cloudpickle.loads(order.setup))
        threading.Thread(target=self._work, name="work", daemon=True).start()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._role is not None:
                self._role.close()

    def _work(self) -> None:
        """Main function of the thread that calls the worker's `work` while it is self-driven.

        It never ends, since child processes die with the thread that spawned them.
        """
        assert self._role is not None
        while True:
            with self._free:
                self._free.wait_for(self._may_work)
                self._attempt(self._role.work)

    def _may_work(self) -> bool:
        idle = self._closed or self._wanted or self._failure is not None
        return not idle and self._role is not None and self._role.self_driven

    def _attempt(self, work: Callable[[], object]) -> object:
        """Calls the worker and returns its answer; an exception it raises becomes `_failure`."""
        try:
            return work()
        except Exception as error:  # a user's environment may raise anything
            self._failure = _at_home(error, traceback.format_exc())
            return self._failure


def _missing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path not in sys.path and os.path.exists(path)]


def _at_home(error: Exception, text: str) -> RoleFailed:
    """Converts an exception of a worker to `RoleFailed`, whose summary names the worker's host."""
    failed = describe(error, text)
    summary = f"{socket.gethostname()}: {failed.summary}"
    if isinstance(error, ImportError):
        return failed._replace(summary=f"{summary}; install it on that host", final=True)
    return failed._replace(summary=summary)


# In the process that started the worker.


class CallVerdict(Enum):
    """What to conclude from an exception of a remote call to a worker on another host.

    RETRY: send the call again. DEAD: the worker's process is gone. RAISED: the call itself failed.
    """

    RETRY = auto()  # it may or may not have been done
    DEAD = auto()  # the actor is gone
    RAISED = auto()  # the call itself failed: what was sent cannot be read there, or sent back


class RayLink:
    """Connection to a `RoleServer`, the Ray actor that runs a worker object on a cluster host.

    It makes remote calls, waits for their results, and classifies their errors.
    """

    def __init__(self, actor: Any):  # type: ignore[explicit-any]  # Ray makes its methods
        self._actor, self._killed = actor, False

    def call(self, call: RpcCall, payload: object) -> object:
        """Calls `RoleServer.do`; returns a reference at once."""
        return self._actor.do.remote(call, payload)

    def ready(self, ref: object, timeout_s: float) -> bool:
        return bool(import_ray().wait([ref], timeout=timeout_s)[0])

    def get(self, ref: object) -> object:
        """Returns the result of a call, or raises its error."""
        return import_ray().get(ref, timeout=LOOK_S)

    def classify(self, error: Exception) -> CallVerdict:
        """Maps the exception of a failed Ray call to RETRY, DEAD or RAISED (`CallVerdict`).

        DEAD: the Ray actor or its host is gone. RAISED: the called method raised an exception, or
        the error is not one of Ray's. RETRY: any other error of Ray, e.g. a timeout.
        """
        kinds = import_ray().exceptions
        dead = (
            kinds.ActorDiedError,
            kinds.ActorUnschedulableError,
            kinds.NodeDiedError,
            kinds.WorkerCrashedError,
            kinds.LocalRayletDiedError,
            kinds.RuntimeEnvSetupError,
            kinds.TaskCancelledError,
        )
        if isinstance(error, kinds.RayTaskError) or not isinstance(error, kinds.RayError):
            return CallVerdict.RAISED
        return CallVerdict.DEAD if isinstance(error, dead) else CallVerdict.RETRY

    def kill(self) -> None:
        if not self._killed and import_ray().is_initialized():
            self._killed = True
            gone = import_ray().exceptions.RayError, ValueError
            with contextlib.suppress(*gone):
                import_ray().kill(self._actor)


@dataclass
class _Call:
    """A message to the server of a worker object that has not been answered yet."""

    sequence: int
    order: object
    payload: SharedObject | None
    sent: float
    tries: int = 0
    ref: object = None
    due: float = 0.0  # where it failed: when to try again


class RemoteHandle(Generic[OrderT, AnswerT]):
    """Handle of a worker object (role) on another host. Not thread-safe.

    After `receive` has returned a `RoleFailed`, the worker is dead and a new one must be started.
    """

    def __init__(self, name: str, link: RayLink, build: BuildRole):
        self.name = name
        self.node: str | None = None
        self.address: str | None = None
        self.pid = 0
        self.failure: str | None = None
        self._place = name  # how messages name where it is
        self._link = link
        self._sent, self._heard = 0, 0.0  # messages; when the last of them was answered
        self._calls: deque[_Call] = deque()
        self._answers: deque[AnswerT | RoleFailed | None] = deque()  # not returned yet
        self._submit(Hello())
        self._submit(build)

    @property
    def alive(self) -> bool:
        return self.failure is None

    @property
    def silence_s(self) -> float:
        """Seconds that the oldest unanswered control message has been waiting; 0 without one.

        It counts from when the message was sent or the message before it was answered, whichever
        is later.
        """
        oldest = next((call for call in self._calls if call.sequence >= FIRST_ORDER), None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest.sent, self._heard)

    @property
    def busy(self) -> bool:
        """Whether any remote call (control message or start of the worker) is still unanswered."""
        return bool(self._calls)

    @property
    def pending(self) -> object:
        """Ray reference of the oldest unanswered call, to wait for; None if there is none."""
        self._resend()
        return self._calls[0].ref if self._calls else None

    def send(self, order: OrderT | CloseRole, payload: SharedObject | None = None) -> None:
        """Sends a control message to the worker object; does nothing if the worker is dead.

        With a `payload`, the message's field `payload` is filled on the other host with the value
        from Ray's object store.
        """
        if self.alive:
            self._submit(order, payload)

    def receive(self, timeout_s: float = 0.0) -> AnswerT | RoleFailed | None:
        """Returns the next answer, or `RoleFailed` if the worker raised an exception.

        Returns None if no answer came in time, or if the worker's host or process is gone (then
        `alive` is False).
        """
        deadline = time.monotonic() + timeout_s
        while self._calls and not self._answers:
            left = deadline - time.monotonic()
            self._resend()
            call = self._calls[0]
            if call.ref is not None and self._link.ready(call.ref, max(0.0, left)):
                self._take(call)
            elif call.ref is not None or left <= 0:
                break
            else:
                time.sleep(min(left, max(0.0, call.due - time.monotonic())))
        return self._answers.popleft() if self._answers else None

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Asks the worker to close, waits up to `grace_s`, then kills its process."""
        if self.alive and grace_s > 0:
            self.send(CloseRole())
            deadline = time.monotonic() + grace_s
            while self._calls and time.monotonic() < deadline:
                self.receive(deadline - time.monotonic())
        self._end("it was stopped")
        return None

    def _submit(self, order: object, payload: SharedObject | None = None) -> None:
        call = _Call(self._sent, order, payload, time.monotonic())
        self._sent += 1
        self._calls.append(call)
        self._call(call)

    def _call(self, call: _Call) -> None:
        payload = None if call.payload is None else call.payload.ref
        message = RpcCall(call.sequence, self._calls[0].sequence, call.order)
        try:
            call.ref = self._link.call(message, payload)
        except Exception as error:  # a large order, for one, and no room in the store
            if self._link.classify(error) is not CallVerdict.RETRY:
                raise
            self._retry(call)

    def _resend(self) -> None:
        """Sends the oldest unanswered call again if it has failed and its retry delay is over."""
        call = self._calls[0] if self._calls else None
        if call is not None and call.ref is None and time.monotonic() >= call.due:
            self._call(call)

    def _take(self, call: _Call) -> None:
        """Processes the result or the error of `call`, the oldest call, which has finished.

        Queues the answer for `receive`, unless the call belonged to the start of the worker.
        """
        try:
            found = self._link.get(call.ref)
        except Exception as error:  # all of Ray's; what it is decides what follows
            self._broken(call, error)
            return
        assert isinstance(found, RpcReply), "what a role server returns"
        reply: RpcReply[AnswerT | HostInfo] = found
        if reply.early:  # the one before it was made again: now it is its turn
            call.ref = None
            return
        self._calls.popleft()
        self._heard = time.monotonic()
        if isinstance(reply.answer, RoleFailed):
            self._fail(reply.answer)
        elif isinstance(reply.answer, HostInfo):
            self._meet(reply.answer)
        elif call.sequence >= FIRST_ORDER:
            self._answers.append(reply.answer)

    def _meet(self, hello: HostInfo) -> None:
        self.node, self.address, self.pid = hello.node, hello.address, hello.pid
        self._place = f"{hello.host} ({hello.address})"
        if (difference := _difference(versions(), hello.versions)) is not None:
            self._fail(RoleFailed(f"{self._place}: {difference}", "", final=True))

    def _fail(self, failed: RoleFailed) -> None:
        self._end(failed.summary)
        self._answers.append(failed)

    def _retry(self, call: _Call) -> None:
        call.ref = None
        call.due = time.monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**call.tries)
        call.tries += 1

    def _broken(self, call: _Call, error: Exception) -> None:
        """Handles a call that has failed: repeats it, or counts the worker as dead."""
        verdict, what = self._link.classify(error), f"{self._place}: {gist(error)}"
        if verdict is CallVerdict.RAISED:
            self._fail(describe(error, str(error))._replace(summary=what))
        elif verdict is CallVerdict.RETRY:
            self._retry(call)
        elif getattr(error, "actor_init_failed", False):  # rookery could not be loaded there
            _, found, rest = str(error).partition("ip=")
            place = rest.split(",")[0].split(")")[0] if found else self._place
            what = f"{place}: {gist(error)}; install rookery there"
            self._fail(RoleFailed(what, str(error), final=True))
        else:
            self._end(what)

    def _end(self, why: str) -> None:
        self.failure = self.failure or why
        self._calls.clear()
        self._link.kill()


def _difference(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Returns an error message about the first library whose versions on two hosts differ.

    Returns None if all versions are equal. Builds of one version for different devices (2.11.0+cpu)
    count as equal.
    """
    for package, version in ours.items():
        other = theirs.get(package, "none")
        if version.partition("+")[0] != other.partition("+")[0]:
            return (
                f"it has {package} {other}, {socket.gethostname()} has {version}; "
                "all hosts of a run need the same: install one of them on both"
            )
    return None


def gist(error: Exception) -> str:
    """Returns the most informative line of a Ray error message, with the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line and line[0] not in "\t "]
    telling = [line for line in lines if not line.startswith("The actor died unexpectedly before")]
    last = (telling or lines or [type(error).__name__])[-1]
    if last.startswith("The actor"):
        last = last.partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {last}"[:400]
