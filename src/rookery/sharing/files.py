"""Files of a pool: one user's alone, whole as soon as they have a name, locked by the living.

The kernel lets go of locks, whoever is killed and wherever it ran: a lock tells more about life
than a pid does, which means nothing in another container.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError, ProtocolError
from rookery.replay.ring import Ring

POOL, TERMS, NOTE, RING = "pool.json", "terms.json", ".json", ".ring"
LEAGUE = "league"  # folder of the snapshots that runs show each other
SCRATCH = "."  # what files begin with that have not got their name yet
LARGEST = 1_000_000  # bytes of a file that is read whole


def make_private(folder: Path) -> None:
    """Makes a folder that only this user can enter; refuses one that others can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"a pool cannot be made in {folder}: {error}; name a folder of yours, best in memory "
            "(/dev/shm)"
        ) from error
    refuse_foreign(folder)


def refuse_foreign(folder: Path) -> None:
    """Others must not be able to put a ring there, nor to read what runs see."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} must be a folder of this user alone (mode 0700), it has mode "
            f"{stat.S_IMODE(found.st_mode):o} and owner {found.st_uid}; chmod 700 it, or name "
            "another"
        )


def open_private(path: Path, *, writable: bool = False) -> int:
    """Opens a file that is this user's alone. All else is a ProtocolError, or not there."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not keep us waiting
    try:
        fd = os.open(path, flags | (os.O_RDWR if writable else os.O_RDONLY))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ProtocolError(f"{path} is ignored: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.close(fd)
        raise ProtocolError(
            f"{path} is not a file of this user alone (mode {stat.S_IMODE(found.st_mode):o}, "
            f"owner {found.st_uid}); it is ignored"
        )
    return fd


def open_ring(path: Path, *, writable: bool = False) -> Ring:
    """Maps a ring; one that is damaged, or is none, is a ProtocolError."""
    fd = open_private(path, writable=writable)
    try:
        return Ring(fd, writable=writable)
    except ProtocolError:
        os.close(fd)
        raise
    except (ValueError, TypeError) as error:  # a header that says what cannot be
        os.close(fd)
        raise ProtocolError(f"{path} is not a ring: {error}; it is ignored") from error


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file; anything else in it is a ProtocolError."""
    fd = open_private(path)
    try:
        value = json.loads(os.read(fd, LARGEST))
    except (ValueError, RecursionError, OSError) as error:
        raise ProtocolError(f"{path} cannot be read: {error}; it is ignored") from error
    finally:
        os.close(fd)
    if not isinstance(value, dict):
        raise ProtocolError(f"{path} holds {type(value).__name__}, not an object; it is ignored")
    return value


def write_once(path: Path, value: Any) -> None:
    """Writes a file whole, unless it is there: of several who try at once, one succeeds."""
    if path.exists():
        return
    scratch = path.with_name(f"{SCRATCH}{path.name}.{secrets.token_hex(4)}")
    fd = _fresh(scratch, value)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.close(fd)
        scratch.unlink()


def locked_note(path: Path, note: dict[str, Any]) -> int:
    """Writes a note that is locked before anybody can see it; returns what holds the lock."""
    scratch = path.with_name(f"{SCRATCH}{path.name}")
    fd = _fresh(scratch, note)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(scratch, path)
    return fd


def _fresh(path: Path, value: Any) -> int:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    raw = json.dumps(value).encode()
    try:
        if os.write(fd, raw) < len(raw):
            raise OSError(f"no room for {len(raw)} bytes")
    except OSError as error:
        os.close(fd)
        path.unlink()
        raise ConfigError(
            f"{path.name.lstrip(SCRATCH)} cannot be written into {path.parent}: {error}; make "
            "room there, or name another folder"
        ) from error
    return fd


def name_ring(ring: Ring, path: Path) -> None:
    """Gives a private ring a name; raises where there is one, or where that is not possible."""
    # An absolute path needs no directory; naming one makes Python call linkat, which follows.
    os.link(f"/proc/self/fd/{ring.fd}", path, src_dir_fd=ring.fd)


def is_at(fd: int, path: Path) -> bool:
    """Is the open file the one that has this name now?"""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def take(fd: int, how: int, *, patience_s: float) -> bool:
    """Locks an open file, alone (LOCK_EX) or together with others (LOCK_SH)."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.005)


@contextlib.contextmanager
def seized(path: Path) -> Iterator[bool]:
    """Locks a file for the moment; yields False where somebody holds it or it is not ours.

    What is not there is seized too.
    """
    try:
        fd = open_private(path)
    except FileNotFoundError:
        yield True
        return
    except ProtocolError:
        yield False
        return
    try:
        yield _locks(fd)
    finally:
        os.close(fd)


def _locks(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
