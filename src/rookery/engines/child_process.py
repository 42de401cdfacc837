"""Main module of a spawned process: runs a function, ignores Ctrl+C, and dies with its parent.

    python -m rookery.engines.child_process MODULE:FUNCTION FD PARENT_PID NAME

The function may be `serve_role`, which runs a worker object such as an actor, `serve_function`,
which calls one function for every message, or one of another module.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import cloudpickle

from rookery import plugins
from rookery.engines.engine import CloseRole, EngineRole, describe
from rookery.engines.processes import RoleSpec, receive, send
from rookery.errors import ClosedError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LONGEST = 15  # letters of a name that the kernel keeps
LOOK_S = 0.01  # between two polls for orders of a role that works by itself: a system call each
T = TypeVar("T")


def main(target: str, fd: int, parent: int, name: str) -> None:
    """Runs the function `target` (module:function) until it returns or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl+C means
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray worker blocks some, and we inherit it
    _die_with(parent)
    _rename(shown(name))
    connection = Connection(fd)
    with contextlib.suppress(ClosedError):  # the parent is gone
        sys.path[:], raw = receive(connection)
        plugins.load(target)(connection, cloudpickle.loads(raw))


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies.

    If the parent process is dead already, this process exits at once.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def shown(name: str) -> str:
    """Returns the name of a process as ps and top show it, at most 15 letters.

    It is "rookery-NAME", or "rk-NAME" (cut if necessary) if that is too long.
    """
    long = f"rookery-{name}"
    return long if len(long) <= _LONGEST else f"rk-{name}"[:_LONGEST]


def _rename(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def serve_role(connection: "Connection[object, object]", spec: RoleSpec) -> None:
    """Builds a worker object and runs it until it is told to close, fails, or the parent is gone.

    Only errors of the connection mean that the parent process is gone. If the worker itself raises
    an EOFError, this is reported to the parent as the worker's failure.
    """
    role: EngineRole[object, object] = _try(
        connection, lambda: plugins.load(spec.target)(spec.setup)
    )
    try:
        _obey(connection, role)
    finally:
        _close(role)


def _close(role: EngineRole[object, object]) -> None:
    try:
        role.close()
    except Exception as error:  # a user's environment may raise anything; the process ends anyway
        print(f"rookery: closing failed: {type(error).__name__}: {error}", file=sys.stderr)


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
    except (Exception, KeyboardInterrupt) as error:  # a user's environment may raise anything
        send(connection, describe(error, traceback.format_exc()))
        sys.exit(3)


def serve_function(connection: "Connection[object, object]", target: str) -> None:
    """Calls `target` (module:function) for each message and sends back its result.

    Runs until the parent process is gone.
    """
    function = plugins.load(target)
    while True:
        send(connection, function(*receive(connection)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
