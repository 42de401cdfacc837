"""A process that has imported everything and forks a command, or a script, when it is asked to.

Each command is a process of its own: its own session, its own signals, its own death. Only the
seconds of importing torch are shared, by its children too. One request and one answer on a line
each, in JSON:

    {"start": [argv...], "cwd": ..., "env": {...}, "stdout": path, "stderr": path}  → pid
    {"poll": pid}                                                                  → status | null

A "script" is run as Python runs what it is given on standard input, or in the file "path". With
"bare" neither these tests nor their Python's settings are seen. "inside" is a process whose
namespaces the command enters, with no environment but the one in the request.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import tempfile
from contextlib import nullcontext, suppress
from typing import Any

from fork_server import SUPPORTED, ForkServer, run, warm_up

_PR_SET_PDEATHSIG = 1


def main() -> None:
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(request) if "start" in request else _poll(request["poll"])
        print(json.dumps(answer), flush=True)


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _start(request: dict[str, Any]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(request)
    return pid


def _become(request: dict[str, Any]) -> None:
    """Runs the command as if it had been typed, and ends as it does."""
    os.setsid()
    if request.get("inside") is not None:
        os.environ.clear()
        _enter(request["inside"])
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if request["bare"]:
        _forget_the_tests()
    tempfile.tempdir = None  # TMPDIR may be another one now
    if request.get("inside") is not None:
        sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for fd, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may be run under nohup
    children = ForkServer.fork().installed() if SUPPORTED else nullcontext()
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain shows where
    with children:
        sys.exit(_perform(request))


def _enter(pid: int) -> None:
    """Goes on in the namespaces of a process; what stays outside ends as what went in does."""
    kinds = ("ipc", "net", "uts", "pid", "mnt")
    spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    libc = ctypes.CDLL(None, use_errno=True)
    for space in spaces:
        if libc.setns(space, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of {pid}")
        os.close(space)
    inside = os.fork()  # a process namespace is entered by children alone
    if inside == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    status = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _forget_the_tests() -> None:
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]


def _perform(request: dict[str, Any]) -> int | None:
    if request["script"] is None:
        from rookery.cli.main import main

        sys.argv = ["rookery", *request["start"]]
        return main()
    path = request["path"] or ""
    sys.argv, sys.path = [path or "-", *request["start"]], [os.path.dirname(path), *sys.path]
    run(compile(request["script"], path or "<stdin>", "exec"), path or None)
    return None


if __name__ == "__main__":
    main()
