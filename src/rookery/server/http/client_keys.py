"""Clients' keys: a JSON file that only its owner can read.

    keys = Keys("server-keys.json")
    keys.issue("alice")     # a new key, to be given to alice by a safe way
    keys.rotate("alice")    # another one; hers is void from the next second on
    keys.revoke("alice")    # her messages are refused from the next second on

The file is read again when it has changed, so that a server need not be restarted. Keys are never
printed or logged.
"""

import fcntl
import json
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.errors import ConfigError
from rookery.files import replace_file, sync_folder
from rookery.server.http.wire_format import checked_key, checked_name

FORMAT = 1
SHORTEST = 32  # characters of a key that somebody made up
LARGEST = 16 << 20  # bytes of a file that is read whole
LOG = logging.getLogger("rookery.server")
LOOK_S = 1.0  # between two looks whether the file has changed


class Keys:
    """Names and their keys, in a file or only in memory."""

    def __init__(
        self, path: str | Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ):
        self._path = Path(path) if path is not None else None
        self._clock, self._lock = clock, threading.Lock()
        self._keys: dict[str, str] = {}
        self._seen: tuple[int, int] | None = None  # the file's time and inode
        self._looked = -LOOK_S
        self._refresh()

    def __repr__(self) -> str:
        return f"Keys({str(self._path) if self._path else None!r}, clients={len(self)})"

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._keys))

    def get(self, client: str) -> str | None:
        """Returns a client's key as the file has it now, give or take a second."""
        with self._lock:
            if self._clock() - self._looked >= LOOK_S:
                self._look_again()
            return self._keys.get(client)

    def issue(self, client: str) -> str:
        """Makes, keeps and returns the key of a new client; one that has a key is refused."""
        checked_name(client)
        key = secrets.token_urlsafe(32)
        with self._lock, _alone(self._path):
            self._refresh()
            if client in self._keys:
                raise ConfigError(
                    f"{client!r} has a key, with which it may be training; choose another name, or "
                    "rotate the key (--rotate), which ends that client"
                )
            self._write(self._keys | {client: key})
        return key

    def rotate(self, client: str) -> str:
        """Makes, keeps and returns another key for a client; the one before is void."""
        key = secrets.token_urlsafe(32)
        with self._lock, _alone(self._path):
            self._refresh()
            if client not in self._keys:
                raise ConfigError(
                    f"there is no key of {client!r:.120} to rotate; issue one (leave --rotate out)"
                )
            self._write(self._keys | {client: key})
        return key

    def add(self, client: str, key: str) -> None:
        """Keeps a key that was made elsewhere."""
        checked_name(client)
        checked_key(client, key)
        if len(key) < SHORTEST:
            raise ConfigError(
                f"the key of {client} has {len(key)} characters and could be guessed; use at "
                f"least {SHORTEST}, best those of Keys.issue"
            )
        with self._lock, _alone(self._path):
            self._refresh()
            self._write(self._keys | {client: key})

    def revoke(self, client: str) -> None:
        """Forgets a client's key."""
        with self._lock, _alone(self._path):
            self._refresh()
            if client not in self._keys:
                raise ConfigError(f"there is no key of {client!r:.120}; nothing to revoke")
            self._write({name: key for name, key in self._keys.items() if name != client})

    def _refresh(self) -> None:
        self._looked = self._clock()
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._keys, self._seen = {}, None
            return
        if (now := (found.st_mtime_ns, found.st_ino)) != self._seen:
            self._seen = now  # first: a file that cannot be read is read once
            self._keys = _read(self._path)

    def _look_again(self) -> None:
        """A server that runs keeps the keys it has when their file is damaged, and says so."""
        try:
            self._refresh()
        except ConfigError as error:
            LOG.error("the keys stay as they were: %s", error)

    def _write(self, keys: dict[str, str]) -> None:
        if self._path is not None:
            text = json.dumps({"format": FORMAT, "keys": keys}, indent=1)
            try:
                replace_file(self._path, text.encode())
                sync_folder(self._path.parent)
            except OSError as error:
                raise _unwritable(self._path, error) from error
            self._refresh()
        self._keys = keys


def _read(path: Path) -> dict[str, str]:
    _refuse_open(path)
    try:
        said = json.loads(path.read_bytes())
        keys = dict(said["keys"]) if said["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is no file of keys: {type(error).__name__}; make one with Keys(path).issue"
        ) from None  # the error may quote what it could not read
    if keys is None or not all(isinstance(key, str) for key in keys.values()):
        raise ConfigError(f"{path} has another format than {FORMAT}; use one release for it")
    return keys


def _refuse_open(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_size > LARGEST:
        raise ConfigError(
            f"{path} has mode {stat.filemode(found.st_mode)} and {found.st_size} bytes; keys are "
            f"in a file that only its owner can read: chmod 600 {path}"
        )


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Lets one process at a time change a file: two would each write what they had read."""
    if path is None:
        yield
        return
    try:
        fd = os.open(path.parent, os.O_RDONLY)  # the folder: the file itself is replaced
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # for as long as another one writes
        yield
    finally:
        os.close(fd)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"keys cannot be kept in {path}: {error}; name another file")
