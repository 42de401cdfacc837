"""What an engine keeps alive, and how its keeper talks to it.

A role is a plain object that does what it is told (`do`) and, where it roams, something by itself
in between (`roam`). An engine decides where it lives and returns a host:

    host = ENGINES[engine]("rookery.loops.player:Player", setup, name="actor-0", fds=[...])
    host.send(order); host.receive(timeout_s=1.0)      # the order's answer, or `Failed`

Orders and answers are small. Experience and weights do not travel this way.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from rookery.errors import RookeryError


class Failed(NamedTuple):
    """An answer: the role raised. `traceback` is its own, `summary` the last line of it."""

    summary: str
    traceback: str
    final: bool  # True where another try would fail in the same way: a wrong request
    error: Exception | None = None  # itself, where it was raised in this process


class Close(NamedTuple):
    """An order: the end."""


class Role(Protocol):
    """What lives in an engine. Built as `target(setup)`."""

    roaming: bool  # does it have something to do without being told?

    def do(self, order: Any) -> Any:
        """Obeys; returns the answer."""

    def roam(self) -> Any | None:
        """Does a little of what it does by itself; returns what its keeper should know."""

    def close(self) -> None: ...


class Host(Protocol):
    """A role from outside."""

    name: str

    @property
    def pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def send(self, message: Any) -> None:
        """Hands over an order. Never blocks."""

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        """Returns the next answer or news, None where there is none in time."""

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Ends it for certain; returns the exit status where it had a process."""


class Start(Protocol):
    """An engine: brings a role to life. The role takes over the descriptors `fds`.

    A constructor that raises does so here, or is the host's first answer, as `Failed`. Where there
    is no process to be had, an OSError comes out of this.
    """

    def __call__(self, target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Host: ...


def describe(error: Exception, traceback: str) -> Failed:
    """Turns what a role raised into an answer."""
    final = isinstance(error, RookeryError) and error.exit_code == 2
    return Failed(f"{type(error).__name__}: {error}", traceback, final)


def copies(*fds: int) -> list[int]:
    """Returns descriptors of the same files that a role may take over: all of them, or none."""
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made
