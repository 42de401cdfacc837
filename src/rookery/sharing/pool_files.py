"""Files of a pool, the folder in which runs share their replay buffers.

The files are accessible to one user only, become visible only when complete, and are locked by the
process that uses them. A lock shows that the process is alive: the kernel releases the locks of a
killed process, and unlike pids, locks work across containers.
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
LEAGUE = "league"  # folder of the snapshots that runs exchange for self-play
SCRATCH = "."  # prefix of files that do not have their final name yet
MAX_BYTES = 1_000_000  # largest JSON file that is read


def make_private(folder: Path) -> None:
    """Creates a folder that only this user can access.

    Raises `ConfigError` if the folder exists and other users can access it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"a pool cannot be made in {folder}: {error}; name a folder of yours, best in memory "
            "(/dev/shm)"
        ) from error
    require_private(folder)


def require_private(folder: Path) -> None:
    """Raises `ConfigError` if other users can access a folder.

    They could read observations there, or place manipulated replay files.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} must be a folder of this user alone (mode 0700), it has mode "
            f"{stat.S_IMODE(found.st_mode):o} and owner {found.st_uid}; chmod 700 it, or name "
            "another"
        )


def open_private(path: Path, *, writable: bool = False) -> int:
    """Opens a file that only this user can access.

    Raises `FileNotFoundError` if it does not exist, and `ProtocolError` if other users can access
    it or it is not a regular file. Returns the file descriptor.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a named pipe must not block
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
    """Maps the file of a replay ring buffer.

    Raises `FileNotFoundError` if it does not exist, and `ProtocolError` if it is damaged, not a
    ring buffer, or accessible to other users.
    """
    fd = open_private(path, writable=writable)
    try:
        return Ring(fd, writable=writable)
    except ProtocolError:
        os.close(fd)
        raise
    except (ValueError, TypeError) as error:  # impossible values in the header
        os.close(fd)
        raise ProtocolError(f"{path} is not a ring: {error}; it is ignored") from error


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file that only this user can access.

    Raises `FileNotFoundError` if the file does not exist, and `ProtocolError` if other users can
    access it or it holds anything else.
    """
    fd = open_private(path)
    try:
        value = json.loads(os.read(fd, MAX_BYTES))
    except (ValueError, RecursionError, OSError) as error:
        raise ProtocolError(f"{path} cannot be read: {error}; it is ignored") from error
    finally:
        os.close(fd)
    if not isinstance(value, dict):
        raise ProtocolError(f"{path} holds {type(value).__name__}, not an object; it is ignored")
    return value


def write_once(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, unless it exists already.

    If several processes call it at once, the file has the value of one of them. Raises
    `ConfigError` if the file cannot be written.
    """
    if path.exists():
        return
    scratch = path.with_name(f"{SCRATCH}{path.name}.{secrets.token_hex(4)}")
    fd = _write_new(scratch, value)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.close(fd)
        scratch.unlink()


def locked_note(path: Path, note: dict[str, Any]) -> int:
    """Writes the JSON file that registers a shared replay buffer, locked from the start.

    Returns the file descriptor, which holds the lock.
    """
    scratch = path.with_name(f"{SCRATCH}{path.name}")
    fd = _write_new(scratch, note)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(scratch, path)
    return fd


def _write_new(path: Path, value: Any) -> int:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    raw = json.dumps(value).encode()
    try:
        if os.write(fd, raw) < len(raw):
            raise OSError(f"no space for {len(raw)} bytes")
    except OSError as error:
        os.close(fd)
        path.unlink()
        raise ConfigError(
            f"{path.name.lstrip(SCRATCH)} cannot be written into {path.parent}: {error}; free "
            "some space there, or name another folder"
        ) from error
    return fd


def name_ring(ring: Ring, path: Path) -> None:
    """Gives the unnamed file of a replay ring buffer the name `path`.

    Raises `FileExistsError` if the name is taken, `OSError` if the filesystem does not support it.
    """
    # `src_dir_fd` has no effect on an absolute path, but makes Python use linkat (follows links).
    os.link(f"/proc/self/fd/{ring.fd}", path, src_dir_fd=ring.fd)


def is_at(fd: int, path: Path) -> bool:
    """Returns whether the open file `fd` is still the file at `path`, not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def lock(fd: int, how: int, *, patience_s: float) -> bool:
    """Locks an open file, exclusively (LOCK_EX) or shared (LOCK_SH).

    Tries for `patience_s` seconds; returns whether it got the lock.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.005)


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Context manager that holds an exclusive lock on a file; yields whether it got the lock.

    Yields False if another process holds the lock or another user can access the file. Yields True
    if the file does not exist.
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
        yield lock(fd, fcntl.LOCK_EX, patience_s=0.0)
    finally:
        os.close(fd)
