"""Children without their seconds of imports: forked from a process that has imported everything.

    fork_server = ForkServer.fork()              # of this process: single-threaded, all imported
    fork_server = ForkServer.fresh()             # of an interpreter of its own
    with fork_server.installed(): ...        # what `rookery.engines.processes` starts is forked

What it forks is a child of the process that asks, not of the fork server (CLONE_PARENT): its
number, its group, its descriptors, its death with its parent and its exit status are those of a
process that was started. Only the interpreter is not a fresh one; tests of that are marked `fresh`.
The fork server ends with its parent, and takes no signal that is meant for its parent.
"""

import ctypes
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

SUPPORT = Path(__file__).parent
STARTERS = ("rookery.engines.processes", "rookery.sharing.launcher")  # modules that start processes
PARENTS = ("rookery.cli.tied_command",)  # modules that are started and start others
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)  # the number of a system call
SUPPORTED = sys.platform == "linux" and _CLONE is not None
_CLONE_PARENT = 0x8000
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MOST = 250  # descriptors in a message
_LENGTH = 8  # bytes that say how long a request is, or hold a process's number
_READY = b"."
_HIGH = 700  # children get descriptors under numbers that their parent chose


_left: list["Forked"] = []  # not waited for; the next start does


class Forked:
    """A child, with what `processes.Child` wants of a `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        with self._looking:
            if self.returncode is None:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"forked {self.pid}", timeout or 0.0)
            time.sleep(0.001)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            _left.append(self)


class ForkServer:
    """The asking side."""

    def __init__(self, connection: socket.socket, own: "subprocess.Popen[bytes] | None" = None):
        self._wire, self._own = connection, own
        self._asking, self._ready = threading.Lock(), False

    @classmethod
    def fork(cls) -> "ForkServer":
        """Makes one that knows what this process knows. It has to be single-threaded."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        if os.fork() == 0:
            ours.close()
            _serve(theirs, parent)
        theirs.close()
        return cls(ours)

    @classmethod
    def fresh(cls) -> "ForkServer":
        """Makes one from nothing; its imports go on while we do."""
        ours, theirs = socket.socketpair()
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            own = subprocess.Popen(
                [
                    sys.executable,
                    str(SUPPORT / "fork_server.py"),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, **ONE_THREAD},
            )
        return cls(ours, own)

    def popen(
        self,
        command: Sequence[str],
        *,
        process_group: int,
        stdin: int,
        stdout: Any = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] = os.environ,
    ) -> Forked:
        """Starts `python -m module words...` as the library asks for it."""
        _left[:] = [child for child in _left if child.poll() is None]
        _, flag, module, *words = command
        assert (flag, process_group) == ("-m", 0), command
        assert stderr in (None, subprocess.STDOUT)
        out = 1 if stdout is None else stdout.fileno()
        with open(os.devnull) as nothing:
            given = nothing.fileno() if stdin == subprocess.DEVNULL else stdin
            sent = [given, out, 2 if stderr is None else out, *pass_fds]
            pid = self._ask(
                {
                    "module": module,
                    "words": words,
                    "cwd": os.getcwd(),
                    "env": dict(env),
                    "fds": [0, 1, 2, *pass_fds],
                },
                sent,
            )
        with suppress(ProcessLookupError, PermissionError):  # it is over, or was faster
            os.setpgid(pid, pid)  # whoever comes first: its group can be killed from now on
        return Forked(pid)

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Returns the number of the child that there is now."""
        assert len(fds) <= _MOST, f"{len(fds)} descriptors for {request['words']}"
        text = json.dumps(request).encode()
        with self._asking:
            self._ready = self._ready or _exactly(self._wire, len(_READY)) == _READY
            assert self._ready, "the fork_server did not come up"
            socket.send_fds(self._wire, [len(text).to_bytes(_LENGTH, "big")], fds)
            self._wire.sendall(text)
            said = _exactly(self._wire, _LENGTH)
        assert len(said) == _LENGTH, "the fork_server is gone"  # 0 would be a number, and mean us
        return int.from_bytes(said, "big")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """What the library starts in here comes from the fork_server."""
        starters: list[Any] = [import_module(name) for name in STARTERS]
        for starter in starters:
            starter.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": self.popen})
        try:
            yield
        finally:
            for starter in starters:
                starter.subprocess = subprocess

    def close(self) -> None:
        self._wire.close()
        if self._own is not None:
            self._own.kill()  # it may still be importing
            self._own.wait()


@pytest.fixture(autouse=True)
def warm_children(request: pytest.FixtureRequest, fork_server: ForkServer | None) -> Iterator[None]:
    """What a test starts by the library's own means has its imports done, unless it is `fresh`."""
    if fork_server is None or request.node.get_closest_marker("fresh") is not None:
        yield
        return
    with fork_server.installed():
        yield


def warm_up() -> None:
    """Plays and learns a little: torch imports a second's worth when it first takes a step."""
    import rookery.cli.train
    import rookery.engines.child_process
    import rookery.training.launch  # noqa: F401
    from eventually import eventually
    from rookery.config.load import load
    from rookery.event import Learned
    from rookery.training.build import build_parts
    from rookery.training.loops import sync

    for scenario in ("corridor", "cartpole"):
        parts = build_parts(load(scenario))
        learned = (event for event in sync(parts) if isinstance(event, Learned))
        next(learned)
        parts.close()
    alone = eventually(
        lambda: len(os.listdir("/proc/self/task")) == 1, 10.0
    )  # they are on their way
    assert alone, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()  # what is never looked at is never copied


# In the server's process.


def _serve(connection: socket.socket, parent: int) -> NoReturn:
    """Forks a process for each request until its parent has ended."""
    connection = _out_of_the_way(connection)
    _tie_to(parent)
    try:
        connection.sendall(_READY)
    except BrokenPipeError:  # a command that is refused ends before this process is ready
        os._exit(0)
    while True:
        try:
            head, fds, _, _ = socket.recv_fds(connection, _LENGTH, _MOST)
        except ConnectionResetError:
            os._exit(0)
        if not head:
            os._exit(0)
        head += _exactly(connection, _LENGTH - len(head))
        request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        pid = _sibling()
        if pid == 0:
            connection.close()
            _become(request, fds)
        for fd in fds:
            os.close(fd)
        connection.sendall(pid.to_bytes(_LENGTH, "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Reads this many bytes; fewer only where the other side is gone."""
    read = b""
    while len(read) < count and (part := connection.recv(count - len(read))):
        read += part
    return read


def _out_of_the_way(connection: socket.socket) -> socket.socket:
    """Returns the same connection under a number that no child wants."""
    fd = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    connection.close()
    return socket.socket(fileno=fd)


def _tie_to(parent: int) -> None:
    """Ends with its parent, is in a group of its own, and has a name."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, b"fork_server")
    os.setpgid(0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _sibling() -> int:
    """Forks a child of our parent. Python is told as by os.fork; no other thread is there."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def _become(request: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """Is what `python -m` would be, and ends as it does."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR may be another one now
    _take(fds, request["fds"])
    module, sys.argv = request["module"], [request["module"], *request["words"]]
    with ForkServer.fork().installed() if module in PARENTS else nullcontext():
        spec: Any = find_spec(module)
        run(spec.loader.get_code(module), spec.origin)
    sys.exit()


def run(code: CodeType, path: str | None = None) -> None:
    """Runs code as the main module, of a file where it comes from one."""
    itself = ModuleType("__main__")
    if path is not None:
        itself.__file__ = path
    sys.modules["__main__"] = itself
    exec(code, itself.__dict__)


def _take(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives descriptors the numbers they had where they come from; no other stays open."""
    base = max(_HIGH, *numbers, *fds) + 1
    high = [os.dup2(fd, base + place) for place, fd in enumerate(fds)]
    os.closerange(3, base)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


if __name__ == "__main__":
    warm_up()
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
