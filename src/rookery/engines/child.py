"""What a spawned process does first: die with its parent, ignore its terminal, then its work.

python -m rookery.engines.child MODULE:FUNCTION FD PARENT_PID NAME
"""

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from rookery.errors import ClosedError

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LONGEST = 15  # letters of a name that the kernel keeps


def main(target: str, fd: int, parent: int, name: str) -> None:
    """Runs `target` until it returns or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl+C means
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray worker blocks some, and we inherit it
    _die_with(parent)
    _rename(shown(name))
    connection = Connection(fd)
    first = _first_message(connection)
    sys.path[:] = first["path"]
    import cloudpickle

    module, _, function = target.partition(":")
    work = getattr(importlib.import_module(module), function)
    with contextlib.suppress(ClosedError):  # the parent is gone: so are we
        work(connection, cloudpickle.loads(first["setup"]))


def _first_message(connection: Connection) -> dict[str, Any]:
    import cloudpickle

    try:
        message: dict[str, Any] = cloudpickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        sys.exit(0)
    return message


def _die_with(parent: int) -> None:
    """Asks the kernel to kill us when the parent dies; it may have died already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def shown(name: str) -> str:
    """Returns a role's name as ps and top show it: never cut at its number."""
    long = f"rookery-{name}"
    return long if len(long) <= _LONGEST else f"rk-{name}"[:_LONGEST]


def _rename(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
