"""Main module of a spawned process: runs a function, ignores Ctrl+C, and dies with its parent.

python -m rookery.engines.child_process MODULE:FUNCTION FD PARENT_PID NAME
"""

import contextlib
import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import TypedDict

from rookery import plugins
from rookery.errors import ClosedError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LONGEST = 15  # letters of a name that the kernel keeps


class FirstMessage(TypedDict):
    """First message from a parent to its child process: import path and function argument."""

    path: list[str]  # its `sys.path`
    setup: bytes  # the argument of the child's function, pickled


def main(target: str, fd: int, parent: int, name: str) -> None:
    """Runs the function `target` (module:function) until it returns or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl+C means
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray worker blocks some, and we inherit it
    _die_with(parent)
    _rename(shown(name))
    connection = Connection(fd)
    first = _first_message(connection)
    sys.path[:] = first["path"]
    import cloudpickle

    work = plugins.load(target)
    with contextlib.suppress(ClosedError):  # the parent is gone
        work(connection, cloudpickle.loads(first["setup"]))


def _first_message(connection: "Connection[object, object]") -> FirstMessage:
    import cloudpickle

    try:
        message: FirstMessage = cloudpickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        sys.exit(0)
    return message


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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
