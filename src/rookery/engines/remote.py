"""Roles on other hosts: the keeper there, the host here, over a link that may fail.

A call that fails on its way is made again under the same number, and the keeper does nothing twice
and nothing out of order: every order carries (client, incarnation, sequence).
"""

import contextlib
import importlib
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
from typing import Any, NamedTuple, Protocol

import cloudpickle

import rookery
from rookery.engines.interface import Close, Failed, Role, describe

REMEMBERED = 256  # answers that a keeper can give again
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0


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


# The inside: what lives on the other host.


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
    """The wire to a keeper: calls return at once, `get` raises what came of one."""

    def call(self, method: str, *args: Any) -> Any: ...

    def ready(self, ref: Any, timeout_s: float) -> bool: ...

    def get(self, ref: Any) -> Any: ...

    def judge(self, error: Exception) -> "Verdict":
        """Says what it means that `get` raised this."""

    def kill(self) -> None: ...


class Verdict(Enum):
    """What an exception means for the call and its keeper."""

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
        self._sent, self._heard = 0, 0.0  # orders; when the last of them was answered
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
        """Seconds since the oldest unanswered order was sent, or since the answer to the one
        before it: orders that were sent while it came up wait for each other. 0 without one."""
        oldest = next((call for call in self._calls if call.method == "do"), None)
        return 0.0 if oldest is None else time.monotonic() - max(oldest.sent, self._heard)

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
        except Exception as error:  # a large order, for one, and no room in the store
            if self._link.judge(error) is not Verdict.RETRY:
                raise
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
            return _VERDICTS[self._link.judge(error)](self, call, error)
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
        self._heard = time.monotonic()
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
            what = f"{_place_in(error) or self._where}: {gist(error)}; install rookery there"
            return self._fail(Failed(what, str(error), final=True))
        self._end(f"{self._where}: {gist(error)}")
        return None

    def _raised(self, call: _Call, error: Exception) -> tuple[Any]:
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


_TAKERS: dict[str, Callable[[Host, _Call, Any], tuple[Any] | None]] = {
    "hello": Host._meet,
    "build": Host._built,
    "do": Host._answered,
}
_VERDICTS: dict[Verdict, Callable[[Host, _Call, Exception], tuple[Any] | None]] = {
    Verdict.RETRY: Host._retry,
    Verdict.DEAD: Host._died,
    Verdict.RAISED: Host._raised,
}


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


def gist(error: Exception) -> str:
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
