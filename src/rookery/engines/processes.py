"""Child processes that never import the user's main module again.

    child = spawn("rookery.loops.desk:serve", setup, name="manage")
    child.send(message); child.receive(timeout_s=1.0)

A child is a fresh interpreter with a socket to us. What it runs on is named, what it needs is sent
over that socket (cloudpickle: classes from a script, standard input or a notebook travel by
value). It leads its own process group, dies with its parent, and notices when the socket closes.
Spawn from the main thread: the kernel's death signal fires when the spawning *thread* ends.
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
from typing import Any

import cloudpickle

from rookery.errors import ClosedError

GRACE_S = 5.0  # between asking a child to end and killing it
PART_S = 5  # for the rest of a message: a child that was stopped in the middle of one is broken


class Child:
    """A running child and the connection to it. Sending never blocks the caller."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: Connection, name: str):
        self.process, self.name = process, name
        self._connection = connection
        self._outbox: deque[bytes] = deque()
        self._wake = threading.Condition()
        self._broken = False
        self._sender = threading.Thread(target=self._pump, name=f"to-{name}", daemon=True)
        self._sender.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return not self._broken and self.process.poll() is None

    @property
    def waiting(self) -> int:
        """Messages that have not left yet."""
        return len(self._outbox)

    def send(self, message: Any) -> None:
        """Queues a message; a sender thread of ours hands it over."""
        with self._wake:
            self._outbox.append(cloudpickle.dumps(message))
            self._wake.notify()

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        """Returns the next message, or None if none comes in time or the child is gone."""
        try:
            if self._connection.poll(timeout_s):
                return cloudpickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._broken = True
        return None

    def stop(self, grace_s: float = GRACE_S) -> int:
        """Ends the child's whole group: politely, then for certain. Returns its exit status."""
        deadline = time.monotonic() + grace_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.receive(0.05)  # it may wait for somebody to listen
            if self._broken:  # it hung up: what is left of it is its own end
                time.sleep(0.005)
        self.kill()  # also what a child that has ended left in its group
        status = self.process.wait(timeout=GRACE_S)
        self._hang_up()
        return status

    def kill(self) -> None:
        """Kills the child and everything in its group, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _hang_up(self) -> None:
        with self._wake:
            self._broken = True
            self._wake.notify()
        self._sender.join(timeout=GRACE_S)
        self._connection.close()

    def _pump(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._outbox or self._broken)
                if self._broken:
                    return
                message = self._outbox[0]
            try:
                self._connection.send_bytes(message)
            except OSError:  # the child is gone: whoever supervises it will see
                self._broken = True
                return
            self._outbox.popleft()


def start(target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Child:
    """The engine: a role in a process of its own."""
    from rookery.engines.keeper import Stay

    try:
        return spawn("rookery.engines.keeper:serve", Stay(target, setup), name=name, fds=fds)
    finally:
        for fd in fds:
            os.close(fd)


def spawn(target: str, setup: Any, *, name: str, fds: Sequence[int] = ()) -> Child:
    """Starts `module:function` in a process of its own, called as function(connection, setup).

    It inherits the descriptors `fds` under the same numbers. Where there is no process or no
    descriptor left for it, this is an OSError.
    """
    first = {"path": list(sys.path), "setup": cloudpickle.dumps(setup)}
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PART_S, 0))
    command = [
        sys.executable,
        "-m",
        "rookery.engines.child",
        target,
        str(theirs.fileno()),
        str(os.getpid()),
        name,
    ]
    with ours, theirs:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), *fds],
            process_group=0,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
        child = _talking_to(process, Connection(ours.detach()), name)
    child.send(first)
    return child


def _talking_to(process: "subprocess.Popen[bytes]", connection: Connection, name: str) -> Child:
    try:
        return Child(process, connection, name)
    except RuntimeError as error:  # a thread is a process to the system: it may have none left
        process.kill()
        process.wait()
        connection.close()
        raise OSError(errno.EAGAIN, str(error)) from error


def _environment() -> dict[str, str]:
    """One thread for each role unless the user says otherwise."""
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}


def send(connection: Connection, message: Any) -> None:
    """The child's side of `Child.receive`."""
    try:
        connection.send_bytes(cloudpickle.dumps(message))
    except OSError as error:
        raise ClosedError("the parent process is gone") from error


def receive(connection: Connection) -> Any:
    """The child's side of `Child.send`. Blocks; raises ClosedError when the parent is gone."""
    try:
        message = connection.recv_bytes()
    except (EOFError, OSError) as error:  # a reset, where it had not read all that we sent
        raise ClosedError("the parent process is gone") from error
    return cloudpickle.loads(message)
