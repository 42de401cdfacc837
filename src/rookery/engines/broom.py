"""The broom: a Ray of our own leaves nothing, even after kill -9 of the process that started it.

Ray's servers die with whoever started them, but its agents stay for a minute and its folder for
ever. A child that outlives us ends the ones and removes the other.
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
from typing import Any

from rookery.engines import processes
from rookery.errors import ClosedError

END_S = 10.0  # for what is left to be swept
MAKING_S = 60.0  # a folder that is younger may be in the middle of being made
LONGEST_FOLDER = 20  # letters; the system allows 107 for a socket's whole path
MARK = "ROOKERY_RAY"  # in the environment of what belongs to a Ray of our own: its folder
_PR_SET_PDEATHSIG = 1
_AND_STAY = "sweep, and stay"


class Broom:
    """The folder of a Ray of our own, and the child that clears up after us."""

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
            "rookery.engines.broom:outlive", str(self.folder), name="broom"
        )
        self._child.receive(END_S)  # from now on it outlives us

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """What is started meanwhile belongs to the Ray, as does all that comes of it."""
        os.environ[MARK] = str(self.folder)
        try:
            yield
        finally:
            del os.environ[MARK]

    def sweep(self) -> None:
        """Ends and removes everything now, and again when this process ends."""
        self._child.send(_AND_STAY)

    def finish(self) -> None:
        """Ends and removes everything, for good."""
        self._child.send("finish")
        self._child.stop(2 * END_S)
        shutil.rmtree(self.folder, ignore_errors=True)  # where somebody killed the child
        os.close(self._lock)


def outlive(connection: Connection, folder: str) -> None:
    """The child: waits for our word or our end, then ends and removes what Ray has left."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):  # for the one we wait for, not for us
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ClosedError):
        processes.send(connection, "ready")
    while _word(connection) == _AND_STAY:
        _sweep(folder)
    _sweep(folder)


def _word(connection: Connection) -> Any:
    try:
        return processes.receive(connection)
    except ClosedError:
        return None


def _sweep(folder: str) -> None:
    """What was killed a moment ago may still have made a file: looks again until nothing is."""
    deadline = time.monotonic() + END_S
    while (_kill_all(folder) or os.path.exists(folder)) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def _kill_all(folder: str) -> int:
    """Kills every process of the Ray in this folder, and theirs; returns how many there were."""
    import psutil

    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _belongs(process, folder):
                found += 1
                process.kill()
    return found


def _belongs(process: Any, folder: str) -> bool:
    """By the mark in its environment, which some of Ray's own have overwritten with their title:
    these have their logs open."""
    if process.environ().get(MARK) == folder:
        return bool(process.status() != "zombie")
    if not process.name().startswith("ray::"):
        return False
    return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def _short_folder() -> str:
    """Returns a temporary folder that leaves room for the names of Ray's sockets."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_FOLDER else "/tmp"


def _prefix() -> str:
    return f"rk-{os.getuid()}-"


def _sweep_old() -> None:
    """Removes what a Ray left whose process and broom were killed at once."""
    for folder in Path(_short_folder()).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > MAKING_S:
                os.close(_locked(folder))
                shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int:
    """Returns a descriptor that holds the folder's lock; an OSError where its owner lives."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
