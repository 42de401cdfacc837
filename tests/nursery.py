"""A process that has imported everything and forks a `rookery` command whenever it is asked to.

Each command is a process of its own: its own session, its own signals, its own death. Only the
seconds of importing torch are shared. One request and one answer on a line each, in JSON:

    {"start": [argv...], "cwd": ..., "env": {...}, "stdout": path, "stderr": path}  → pid
    {"poll": pid}                                                                  → status | null
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
from typing import Any


def main() -> None:
    _warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(request) if "start" in request else _poll(request["poll"])
        print(json.dumps(answer), flush=True)


def _warm_up() -> None:
    """Plays and learns a little: torch imports a second's worth when it first takes a step."""
    import rookery.cli.train
    import rookery.loops.launch  # noqa: F401
    from eventually import eventually
    from rookery.config.load import load
    from rookery.event import Learned
    from rookery.loops.sync import sync
    from rookery.loops.wiring import wire

    for scenario in ("corridor", "cartpole"):
        parts = wire(load(scenario))
        learned = (event for event in sync(parts) if isinstance(event, Learned))
        next(learned)
        parts.close()
    alone = eventually(
        lambda: len(os.listdir("/proc/self/task")) == 1, 10.0
    )  # they are on their way
    assert alone, "a fork would lose the other threads"


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
    from rookery.cli.main import main

    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR may be another one now
    for fd, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain shows where
    sys.argv = ["rookery", *request["start"]]
    sys.exit(main())


if __name__ == "__main__":
    main()
