"""A process that has imported everything and forks a command, or a script, when it is asked to.

Each command is a process of its own: its own session, its own signals, its own death. Only the
seconds of importing torch are shared, by its children too. One request and one answer on a line
each, in JSON:

    {"start": [argv...], "cwd": ..., "env": {...}, "stdout": path, "stderr": path}  → pid
    {"poll": pid}                                                                  → status | null

A "script" is run as Python runs what it is given on standard input, or in the file "path". With
"bare" neither these tests nor their Python's settings are seen.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
from contextlib import nullcontext
from typing import Any

from zygote import SUPPORTED, Zygote, run, warm_up


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
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if request["bare"]:
        _forget_the_tests()
    tempfile.tempdir = None  # TMPDIR may be another one now
    for fd, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may be run under nohup
    children = Zygote.fork().installed() if SUPPORTED else nullcontext()
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain shows where
    with children:
        sys.exit(_perform(request))


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
