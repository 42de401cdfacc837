"""Clean-up of a Ray instance started by Rookery, even after kill -9 of the starting process.

Ray's servers die with the process that started them, but Ray's agents stay for a minute and its
temporary folder stays forever. A child process that outlives the starting process kills the agents
and deletes the folder.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.engines import processes
from rookery.errors import ClosedError

if TYPE_CHECKING:
    import psutil

END_S = 10.0  # to end leftover processes
QUIET_S = 0.2  # without any process or folder of the Ray: one that is being started shows no mark
MAKING_S = 60.0  # a folder that is younger may be in the middle of being made
LONGEST_FOLDER = 20  # letters; the system allows 107 for a socket's whole path
MARK = "ROOKERY_RAY"  # in the environment of what belongs to a Ray of our own: its folder
_PR_SET_PDEATHSIG = 1
_AND_STAY = "sweep, and stay"


class RayCleanup:
    """Temporary folder of a Ray instance, and the child process that cleans up after the instance.

    The child process kills what is left of Ray and deletes the folder.
    """

    def __init__(self) -> None:
        _sweep_old()
        prefix = f"{_prefix()}{secrets.token_hex(3)}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_short_folder()))
        # mode 0700: Ray opens its own to all
        self._lock = _locked(self.folder)
        self.token = self.folder / "token"
        with os.fdopen(os.open(self.token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        self._child = processes.spawn(
            "rookery.engines.ray_cleanup:outlive", str(self.folder), name="cleanup"
        )
        self._child.receive(END_S)  # from now on it outlives us

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Context in which all started processes are marked as part of this Ray instance.

        The mark is an environment variable, which their own child processes inherit.
        """
        os.environ[MARK] = str(self.folder)
        try:
            yield
        finally:
            del os.environ[MARK]

    def sweep(self) -> None:
        """Makes the clean-up process kill Ray's processes and delete Ray's folder.

        Returns at once. The clean-up process does the same again when this process ends.
        """
        self._child.send(_AND_STAY)

    def finish(self) -> None:
        """Kills the Ray instance's processes, deletes its folder, and ends the clean-up process."""
        self._child.send("finish")
        self._child.stop(2 * END_S)
        shutil.rmtree(self.folder, ignore_errors=True)  # where the child was killed
        os.close(self._lock)


def outlive(connection: "Connection[object, object]", folder: str) -> None:
    """Main function of the process that cleans up after a Ray instance and its starting process.

    When it is sent a message or its parent ends, it kills Ray's processes and deletes Ray's folder.
    """
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):  # for the one we wait for, not for us
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ClosedError):  # the parent has ended
        processes.send(connection, "ready")
        while processes.receive(connection) == _AND_STAY:
            _sweep(folder)
    _sweep(folder)


def _sweep(folder: str) -> None:
    """Kills the processes of a Ray instance and deletes its folder, repeatedly for up to 10 s.

    Ray may still be starting processes, so this function ends early only if it has found neither a
    process nor the folder for 0.2 s.
    """
    now = time.monotonic()
    deadline, found = now + END_S, now
    while now < deadline and now - found < QUIET_S:
        if _kill_all(folder) or os.path.exists(folder):
            found = now
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
        now = time.monotonic()


def _kill_all(folder: str) -> int:
    """Kills all processes of the Ray instance with this folder; returns how many there were."""
    import psutil

    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _belongs(process, folder):
                found += 1
                process.kill()
    return found


def _belongs(process: "psutil.Process", folder: str) -> bool:
    """Returns whether a live process belongs to the Ray instance with this folder.

    Ray's servers and agents have the folder in their arguments, and their child processes inherit
    the environment variable `MARK`. A Ray worker process overwrites its arguments and environment,
    but has a log file in the folder open.
    """
    if process.status() == "zombie":
        return False
    if process.environ().get(MARK) == folder or any(folder in arg for arg in process.cmdline()):
        return True
    if not process.name().startswith("ray::"):
        return False
    return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def _short_folder() -> str:
    """Returns the directory in which to make Ray's temporary folder.

    It is the system's directory for temporary files, or /tmp if the path of that is too long for
    Ray's sockets.
    """
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_FOLDER else "/tmp"


def _prefix() -> str:
    return f"rk-{os.getuid()}-"


def _sweep_old() -> None:
    """Deletes folders that earlier Ray instances left because their clean-up process was killed."""
    for folder in Path(_short_folder()).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > MAKING_S:
                os.close(_locked(folder))
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int:
    """Locks a Ray instance's folder; returns the file descriptor that holds the lock.

    Raises OSError if another live process holds the lock.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
