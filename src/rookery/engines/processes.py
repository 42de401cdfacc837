"""Child processes that, unlike multiprocessing's, never import the user's main module again.

    child = spawn("rookery.evaluation.evaluation_process:serve", setup, name="eval")
    child.send(message); child.receive(timeout_s=1.0)

A child is a fresh Python interpreter with a socket to its parent. It gets the name of a function
and, over the socket, the function's arguments (pickled with cloudpickle, so that classes from a
script or a notebook work). The child has its own process group and dies with its parent. Spawn from
the main thread: the kernel kills the child when the spawning *thread* ends.
"""

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from rookery.engines.pickling import pickled
from rookery.errors import ClosedError

ONE_BLAS_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # where the user sets none
GRACE_S = 5.0  # between asking a child to end and killing it
PART_S = 5  # for the rest of a message: a child that was stopped in the middle of one is broken


class RoleSpec(NamedTuple):
    """Describes the worker object, e.g. an actor, that a worker process builds: `target(setup)`."""

    target: str  # module:builder
    setup: object


class Child:
    """A running child process and the connection to it. Sending never blocks the caller."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        connection: "Connection[object, object]",
        name: str,
    ):
        self.process, self.name, self.pid = process, name, process.pid
        self._connection = connection
        self._outbox: deque[bytes] = deque()
        self._wake = threading.Condition()
        self._broken = False
        self._sender = threading.Thread(target=self._pump, name=f"to-{name}", daemon=True)
        self._sender.start()

    @property
    def alive(self) -> bool:
        return not self._broken and self.process.poll() is None

    def send(self, message: object) -> None:
        """Queues a message to the child; a background thread sends it."""
        with self._wake:
            self._outbox.append(cloudpickle.dumps(message))
            self._wake.notify()

    def receive(self, timeout_s: float = 0.0) -> Any | None:  # type: ignore[explicit-any]  # what was pickled
        """Returns the child's next message; None if none comes in time or the child is gone."""
        try:
            if self._connection.poll(timeout_s):
                return cloudpickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._broken = True
        return None

    def stop(self, grace_s: float = GRACE_S) -> int:
        """Waits up to `grace_s` for the child to end, then kills its whole process group.

        Returns the child's exit status.
        """
        deadline = time.monotonic() + grace_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.receive(0.05)  # it may wait until its message is read
            if self._broken:  # it has closed the connection and is ending
                time.sleep(0.005)
        self.kill()  # also what a child that has ended left in its group
        status = self.process.wait(timeout=GRACE_S)
        with self._wake:
            self._broken = True
            self._wake.notify()
        self._sender.join(timeout=GRACE_S)
        self._connection.close()
        return status

    def kill(self) -> None:
        """Kills the child and its whole process group immediately."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _pump(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._outbox or self._broken)
                if self._broken:
                    return
                message = self._outbox[0]
            try:
                self._connection.send_bytes(message)
            except OSError:  # the child has ended, which its supervisor will notice
                self._broken = True
                return
            self._outbox.popleft()


def start(target: str, setup: object, *, name: str, fds: Sequence[int] = ()) -> Child:
    """Starts a worker object, such as an actor, in a process of its own: the engine `processes`."""
    try:
        return spawn(
            "rookery.engines.child_process:serve_role", RoleSpec(target, setup), name=name, fds=fds
        )
    finally:
        for fd in fds:
            os.close(fd)


def spawn(target: str, setup: object, *, name: str, fds: Sequence[int] = ()) -> Child:
    """Starts a process that calls `target` (module:function) as function(connection, setup).

    The process inherits the file descriptors `fds` under the same numbers. Raises OSError if the
    operating system has no process or descriptor left, ConfigError if `setup` cannot be pickled.
    """
    raw = pickled(setup, f"what the process {name!r} is started with")
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PART_S, 0))
    arguments = target, str(theirs.fileno()), str(os.getpid()), name
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "rookery.engines.child_process", *arguments],
            pass_fds=[theirs.fileno(), *fds],
            process_group=0,
            stdin=subprocess.DEVNULL,
            env={**ONE_BLAS_THREAD, **os.environ},
        )
        connection = Connection(ours.detach())
    try:
        child = Child(process, connection, name)
    except RuntimeError as error:  # threads count as processes: the system may have none left
        process.kill()
        process.wait()
        connection.close()
        raise OSError(errno.EAGAIN, str(error)) from error
    child.send((list(sys.path), raw))
    return child


def send(connection: "Connection[object, object]", message: object) -> None:
    """Sends a message to the parent process; called in a child process.

    The parent gets it from `Child.receive`. Raises ClosedError if the parent process is gone.
    """
    try:
        connection.send_bytes(cloudpickle.dumps(message))
    except OSError as error:
        raise ClosedError("the parent process is gone") from error


def receive(  # type: ignore[explicit-any]  # what was pickled
    connection: "Connection[object, object]",
) -> Any:
    """Waits for the parent's next message and returns it; called in a child process.

    The parent sends it with `Child.send`. Raises ClosedError when the parent process is gone.
    """
    try:
        message = connection.recv_bytes()
    except (EOFError, OSError) as error:  # a reset, where it had not read all that we sent
        raise ClosedError("the parent process is gone") from error
    return cloudpickle.loads(message)
