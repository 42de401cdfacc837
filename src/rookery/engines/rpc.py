"""Remote calls to worker objects (roles), such as host workers, on other hosts.

A `RoleServer` on the other host runs the worker; a `RemoteHandle` in this process sends it control
messages. A call that fails in transit is sent again with the same number. Every control message
carries the random id of the sender (client), the number of the worker among those that the sender
has started (incarnation), and its own number (sequence). So the `RoleServer` executes each message
exactly once and in order.
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
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, Never, Protocol, TypeVar

import cloudpickle

from rookery import plugins
from rookery.engines.engine import CloseRole, EngineRole, RoleFailed, describe
from rookery.version import __version__

REMEMBERED = 256  # answers that a role server can send again
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0

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


class RpcReply(NamedTuple, Generic[AnswerT]):
    """Answer of a remote worker to one control message, with the number of that message."""

    client: str
    incarnation: int
    sequence: int
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
    """Runs a worker object (role) on its host: executes each control message once, in order.

    The Ray actor's main thread handles control messages. While the worker is self-driven, another
    thread calls its `work` between messages, never during one. After the worker has raised an
    exception, it is not called again, and every later message is answered with that `RoleFailed`.
    """

    def __init__(self) -> None:
        self._role: EngineRole[object, object] | None = None
        self._owner: tuple[str, int] | None = None
        self._failure: RoleFailed | None = None
        self._next = 0
        self._answers: dict[int, object] = {}
        self._free = threading.Condition()  # held by the thread that calls the role
        self._wanted = False  # an order waits: the working thread lets it pass
        self._closed = False

    def build(
        self,
        client: str,
        incarnation: int,
        target: str,
        setup: bytes,
        paths: Sequence[str],
        environ: Mapping[str, str],
    ) -> RoleFailed | None:
        """Builds the worker object `target(setup)`; returns `RoleFailed` if that fails, else None.

        A repeated call builds nothing and returns the same result.
        """
        if self._owner is None:
            self._owner = (client, incarnation)
            os.environ.update(environ)
            sys.path.extend(_missing(paths))
            self._failure = self._attempt(lambda: self._settle(target, setup))
        return self._failure

    def do(
        self,
        client: str,
        incarnation: int,
        sequence: int,
        received: int,
        order: object,
        payload: object,
    ) -> RpcReply[object]:
        """Executes a control message, unless it was executed before; returns the reply.

        Replies to messages with numbers below `received` are deleted, because the sender has them.
        A message that comes before its predecessor is not executed; its reply has `early` set.
        """
        stamp = (client, incarnation, sequence)
        if self._owner not in (None, (client, incarnation)):
            return RpcReply(
                *stamp, RoleFailed("StaleOrder: this host works for another run", "", False)
            )
        if self._owner is None or sequence > self._next:
            return RpcReply(*stamp, None, early=True)
        if sequence == self._next:
            self._answers[sequence] = self._apply(order, payload)
            self._next += 1
        self._forget(received)
        return RpcReply(*stamp, self._answers.get(sequence))

    def _forget(self, received: int) -> None:
        for old in [n for n in self._answers if n < received or n < self._next - REMEMBERED]:
            del self._answers[old]

    def _settle(self, target: str, setup: bytes) -> None:
        self._role = plugins.load(target)(cloudpickle.loads(setup))
        threading.Thread(target=self._work, name="work", daemon=True).start()

    def _apply(self, order: object, payload: object) -> object:
        answer: object = None

        def obey() -> None:
            nonlocal answer
            answer = self._obey(order, payload)

        self._wanted = True
        with self._free:
            self._wanted = False
            if self._failure is None or isinstance(order, CloseRole):
                self._failure = self._attempt(obey) or self._failure
            self._free.notify()
            return self._failure or answer

    def _obey(self, order: Any, payload: object) -> object:  # type: ignore[explicit-any]  # a named tuple
        if isinstance(order, CloseRole):
            self._close()
            return None
        assert self._role is not None  # or there is a failure
        return self._role.do(order if payload is None else order._replace(payload=payload))

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
                self._failure = self._attempt(self._role.work)

    def _may_work(self) -> bool:
        idle = self._closed or self._wanted or self._failure is not None
        return not idle and self._role is not None and self._role.self_driven

    def _attempt(self, work: Callable[[], object]) -> RoleFailed | None:
        try:
            work()
        except Exception as error:  # a user's environment may raise anything
            return _at_home(error, traceback.format_exc())
        return None


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


class Link(Protocol):
    """Interface of a connection to a `RoleServer`, which runs a worker object on another host.

    `call` returns a reference at once; `get` returns its result or raises its error.
    """

    def call(self, method: str, *args: object) -> object: ...

    def ready(self, ref: object, timeout_s: float) -> bool: ...

    def get(self, ref: object) -> object: ...

    def classify(self, error: Exception) -> "CallVerdict":
        """Returns what an exception raised by `call` or `get` means: RETRY, DEAD or RAISED."""

    def kill(self) -> None: ...


class CallVerdict(Enum):
    """What to conclude from an exception of a remote call to a worker on another host.

    RETRY: send the call again. DEAD: the worker's process is gone. RAISED: the call itself failed.
    """

    RETRY = auto()  # it may or may not have been done
    DEAD = auto()  # the actor is gone
    RAISED = auto()  # the call itself failed: what was sent cannot be read there, or sent back


class _Call:
    """A remote call to the server of a worker object that has not been answered yet."""

    def __init__(
        self,
        method: str,
        sequence: int,
        order: object = None,
        payload: SharedObject | None = None,
    ):
        self.method, self.sequence, self.order, self.payload = method, sequence, order, payload
        self.sent, self.tries = time.monotonic(), 0
        self.ref: object = None
        self.due = 0.0  # where it failed: when to try again


class RemoteHandle(Generic[OrderT, AnswerT]):
    """Handle of a worker object (role) on another host. Not thread-safe.

    After `receive` has returned a `RoleFailed`, the worker is dead and a new one must be started.
    """

    def __init__(
        self, name: str, link: Link, setup: tuple[object, ...], client: str, incarnation: int
    ):
        self.name, self.in_process = name, False
        self.node: str | None = None
        self.address: str | None = None
        self.pid = 0
        self.failure: str | None = None
        self._place: str | None = None  # how messages name where it is
        self._link, self._setup = link, setup
        self._client, self._incarnation = client, incarnation
        self._sent, self._heard = 0, 0.0  # orders; when the last of them was answered
        self._calls: deque[_Call] = deque()
        self._submit(_Call("hello", -1))
        self._submit(_Call("build", -1))

    @property
    def alive(self) -> bool:
        return self.failure is None

    @property
    def waiting(self) -> int:
        """Number of control messages that the worker on the other host has not answered yet."""
        return sum(call.method == "do" for call in self._calls)

    @property
    def silence_s(self) -> float:
        """Seconds that the oldest unanswered control message has been waiting; 0 without one.

        It counts from when the message was sent or the message before it was answered, whichever
        is later.
        """
        oldest = next((call for call in self._calls if call.method == "do"), None)
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
            self._submit(_Call("do", self._sent, order, payload))
            self._sent += 1

    def receive(self, timeout_s: float = 0.0) -> AnswerT | RoleFailed | None:
        """Returns the next answer, or `RoleFailed` if the worker raised an exception.

        Returns None if no answer came in time, or if the worker's host or process is gone (then
        `alive` is False).
        """
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
        """Asks the worker to close, waits up to `grace_s`, then kills its process."""
        if self.alive and grace_s > 0:
            self.send(CloseRole())
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
        except Exception as error:  # a large order, for one, and no room in the store
            if self._link.classify(error) is not CallVerdict.RETRY:
                raise
            self._retry(call, error)

    def _arguments(self, call: _Call) -> tuple[object, ...]:
        stamp = (self._client, self._incarnation)
        if call.method == "hello":
            return ()
        if call.method == "build":
            return (*stamp, *self._setup)
        first = next(c.sequence for c in self._calls if c.method == "do")
        payload = None if call.payload is None else call.payload.ref
        return (*stamp, call.sequence, first, call.order, payload)

    def _resend(self) -> None:
        """Sends the oldest unanswered call again if it has failed and its retry delay is over."""
        call = self._calls[0] if self._calls else None
        if call is not None and call.ref is None and time.monotonic() >= call.due:
            self._call(call)

    def _take(self, call: _Call) -> tuple[AnswerT | RoleFailed | None] | None:
        """Processes the result or the error of `call`, the oldest call, which has finished.

        Returns the tuple (answer,) if `receive` is to return this answer, which may be a
        `RoleFailed`. Returns None if the call must be sent again, if the host is gone, or if the
        call belonged to the start of the worker, which has no answer.
        """
        try:
            answer = self._link.get(call.ref)
        except Exception as error:  # all of Ray's; what it is decides what follows
            return _VERDICTS[self._link.classify(error)](self, call, error)
        return _TAKERS[call.method](self, call, answer)

    def _meet(self, call: _Call, hello: HostInfo) -> tuple[RoleFailed] | None:
        self._calls.popleft()
        self.node, self.address, self.pid = hello.node, hello.address, hello.pid
        self._place = f"{hello.host} ({hello.address})"
        if (difference := _difference(versions(), hello.versions)) is None:
            return None
        return self._fail(RoleFailed(f"{self._place}: {difference}", "", final=True))

    def _built(self, call: _Call, failure: RoleFailed | None) -> tuple[RoleFailed] | None:
        self._calls.popleft()
        self._setup = ()  # it may be large
        return None if failure is None else self._fail(failure)

    def _answered(
        self, call: _Call, reply: RpcReply[AnswerT]
    ) -> tuple[AnswerT | RoleFailed | None] | None:
        if reply[:3] != (self._client, self._incarnation, call.sequence):
            return self._fail(RoleFailed(f"{self._where}: an answer to another client", "", False))
        if reply.early:  # the one before it was made again: now it is its turn
            call.ref = None
            return None
        self._calls.popleft()
        self._heard = time.monotonic()
        if isinstance(reply.answer, RoleFailed):
            return self._fail(reply.answer)
        return (reply.answer,)

    def _fail(self, failed: RoleFailed) -> tuple[RoleFailed]:
        self._end(failed.summary)
        return (failed,)

    def _retry(self, call: _Call, error: Exception) -> None:
        call.ref = None
        call.due = time.monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**call.tries)
        call.tries += 1

    def _died(self, call: _Call, error: Exception) -> tuple[RoleFailed] | None:
        if getattr(error, "actor_init_failed", False):  # rookery itself could not be loaded there
            what = f"{_place_in(error) or self._where}: {gist(error)}; install rookery there"
            return self._fail(RoleFailed(what, str(error), final=True))
        self._end(f"{self._where}: {gist(error)}")
        return None

    def _raised(self, call: _Call, error: Exception) -> tuple[RoleFailed]:
        return self._fail(
            describe(error, str(error))._replace(summary=f"{self._where}: {gist(error)}")
        )

    @property
    def _where(self) -> str:
        return self._place or self.name

    def _end(self, why: str) -> None:
        self.failure = self.failure or why
        self._calls.clear()
        self._setup = ()
        self._link.kill()


_TAKERS: dict[  # type: ignore[explicit-any]  # each method has its own result
    str, Callable[[RemoteHandle[Any, Any], _Call, Any], tuple[Any] | None]
] = {
    "hello": RemoteHandle._meet,
    "build": RemoteHandle._built,
    "do": RemoteHandle._answered,
}
_VERDICTS: dict[
    CallVerdict, Callable[[RemoteHandle[Never, object], _Call, Exception], tuple[RoleFailed] | None]
] = {
    CallVerdict.RETRY: RemoteHandle._retry,
    CallVerdict.DEAD: RemoteHandle._died,
    CallVerdict.RAISED: RemoteHandle._raised,
}


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


def _place_in(error: Exception) -> str | None:
    _, found, rest = str(error).partition("ip=")
    return rest.split(",")[0].split(")")[0] if found else None
