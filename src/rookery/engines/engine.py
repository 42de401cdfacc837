"""Engines: run a worker object in some process, and exchange messages with it.

A worker object (called role), such as an actor, answers control messages (`do`). While it is
`self_driven`, the engine also calls its `work` repeatedly between messages. An engine decides in
which process the worker runs, and returns a handle:

    host = ENGINES[engine]("rookery.actors.worker:ActorWorker", setup, name="actor-0", fds=[...])
    host.send(order); host.receive(timeout_s=1.0)      # the answer to the order, or `RoleFailed`

Control messages (orders) and answers are small. Experience and weights are passed through shared
memory instead.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from rookery.errors import EnvError, RoleFailed, RookeryError

Order = TypeVar("Order", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class CloseRole(NamedTuple):
    """Control message: a worker object, such as an actor, closes its resources and ends."""


class EngineRole(Protocol[Order, Answer]):
    """Interface of a worker object that an engine runs, such as an actor.

    The engine builds the object by calling the class or function `target` with the argument
    `setup`.
    """

    self_driven: bool  # does it work without an order?

    def do(self, order: Order) -> Answer:
        """Handles one control message from the parent process; returns the answer."""

    def work(self) -> Answer | None:
        """Does a short piece of work without a control message, e.g. some environment steps.

        The engine calls it repeatedly while `self_driven` is True. Returns a message for the parent
        process, or None.
        """

    def close(self) -> None: ...


class RoleHandle(Protocol[Order, Answer]):
    """Interface of the handle by which a process talks to a worker object that it started.

    It sends control messages to the worker, receives its answers, and stops it.
    """

    name: str

    @property
    def pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def send(self, message: Order | CloseRole) -> None:
        """Sends a control message to the worker object. Never blocks."""

    def receive(self, timeout_s: float = 0.0) -> Answer | RoleFailed | None:
        """Returns the worker's next message; None if no message comes within `timeout_s`."""

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Ends the worker, by force after `grace_s` seconds.

        Returns the exit status of the worker's process, or None if it is not known.
        """


class Start(Protocol):
    """Interface of an engine: a function that starts a worker object and returns its handle.

    The worker takes ownership of the file descriptors `fds`. If the worker's constructor raises an
    error, the engine either raises it too or delivers it as the worker's first answer
    (`RoleFailed`). If the operating system cannot start a process, OSError is raised.
    """

    def __call__(  # type: ignore[explicit-any]  # the types of orders and answers follow from `target`
        self, target: str, setup: object, *, name: str, fds: Sequence[int] = ()
    ) -> RoleHandle[Any, Any]: ...


def describe(error: BaseException, traceback: str) -> RoleFailed:
    """Converts an exception that a worker raised to the answer `RoleFailed`.

    Workers ignore SIGINT, so a KeyboardInterrupt was raised by the code of an environment.
    """
    if isinstance(error, KeyboardInterrupt):
        error = EnvError("the environment raised KeyboardInterrupt; raise another exception in it")
    final = isinstance(error, RookeryError) and error.exit_code == 2
    of_env = isinstance(error, EnvError)
    return RoleFailed(f"{type(error).__name__}: {error}", traceback, final, environment=of_env)


def copies(*fds: int) -> list[int]:
    """Returns duplicates of file descriptors, which a worker can own and close.

    If one of them cannot be duplicated, closes the duplicates made so far and raises OSError.
    """
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made
