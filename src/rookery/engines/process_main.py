"""Main function of a worker process: passes control messages to an actor or other worker object."""

import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

from rookery import plugins
from rookery.engines.engine import CloseRole, EngineRole, describe
from rookery.engines.processes import receive, send

LOOK_S = (
    0.01  # between two polls for orders while the role works by itself: a poll is a system call
)
T = TypeVar("T")


class RoleSpec(NamedTuple):
    """Describes the worker object, e.g. an actor, that a worker process builds: `target(setup)`."""

    target: str  # module:builder
    setup: object


def serve(connection: "Connection[object, object]", spec: RoleSpec) -> None:
    """Builds a worker object and runs it until it is told to close, fails, or the parent is gone.

    Only errors of the connection mean that the parent process is gone. If the worker itself raises
    an EOFError, this is reported to the parent as the worker's failure.
    """
    role: EngineRole[object, object] = _try(connection, partial(_build, spec))
    try:
        _obey(connection, role)
    finally:
        _close(role)


def _close(role: EngineRole[object, object]) -> None:
    try:
        role.close()
    except Exception as error:  # a user's environment may raise anything; the process ends anyway
        print(f"rookery: closing failed: {type(error).__name__}: {error}", file=sys.stderr)


def _build(spec: RoleSpec) -> EngineRole[object, object]:
    role: EngineRole[object, object] = plugins.load(spec.target)(spec.setup)
    return role


def _obey(connection: "Connection[object, object]", role: EngineRole[object, object]) -> None:
    looked = 0.0
    while True:
        if role.self_driven and time.monotonic() - looked < LOOK_S:
            if (news := _try(connection, role.work)) is not None:
                send(connection, news)
            continue
        looked = time.monotonic()
        if role.self_driven and not connection.poll(0):
            continue
        order = receive(connection)
        if isinstance(order, CloseRole):
            return
        send(connection, _try(connection, partial(role.do, order)))


def _try(connection: "Connection[object, object]", work: Callable[[], T]) -> T:
    """Calls worker code; if it raises, reports the error to the parent and ends the process."""
    try:
        return work()
    except Exception as error:  # a user's environment may raise anything
        send(connection, describe(error, traceback.format_exc()))
        sys.exit(3)
