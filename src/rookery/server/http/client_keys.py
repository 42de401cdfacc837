"""Clients' keys: a JSON file that only its owner can read.

    keys = Keys("server-keys.json")
    keys.issue("alice")     # a new key, which is given to alice over a secure channel
    keys.rotate("alice")    # another key; the server refuses the previous one at once
    keys.revoke("alice")    # no key; the server refuses alice at once

A server reads the file again after each change, and need not be restarted. Keys are never printed
or logged.
"""

import fcntl
import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from rookery.errors import ConfigError
from rookery.files import replace_file
from rookery.server.http.wire_format import checked_key, checked_name

FORMAT = 1
LARGEST = 16 << 20  # bytes of a file that is read whole
LOG = logging.getLogger("rookery.server")


class Keys:
    """The names of clients and their keys, in a file."""

    def __init__(self, path: str | Path):
        self._path, self._lock = Path(path), threading.Lock()
        self._keys: dict[str, str] = {}
        self._seen: tuple[int, int] | None = None  # the file's time and inode
        self._refresh()

    def __repr__(self) -> str:
        return f"Keys({str(self._path)!r}, clients={len(self._keys)})"

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._keys))

    def get(self, client: str) -> str | None:
        """Returns a client's key, as the file has it now."""
        with self._lock:
            try:
                self._refresh()
            except ConfigError as error:  # the file is damaged, and its server goes on
                LOG.error("the keys stay as they were: %s", error)
            return self._keys.get(client)

    def issue(self, client: str) -> str:
        """Makes, stores and returns the key of a new client; refuses a client that has a key."""
        return self._change(checked_name(client), secrets.token_urlsafe(32), has_key=False)

    def rotate(self, client: str) -> str:
        """Makes, stores and returns another key for a client; the previous key is void."""
        return self._change(client, secrets.token_urlsafe(32), has_key=True)

    def revoke(self, client: str) -> None:
        """Removes a client's key."""
        self._change(client, "", has_key=True)

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._keys, self._seen = {}, None
            return
        if (now := (found.st_mtime_ns, found.st_ino)) != self._seen:
            self._seen = now  # first: a file that cannot be read is read once
            self._keys = _read(self._path, found)

    def _change(self, client: str, key: str, *, has_key: bool) -> str:
        """Stores a client's key, or removes it (""); no other process changes keys at that time."""
        with self._lock:
            try:
                folder = os.open(self._path.parent, os.O_RDONLY)
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX)  # not the file: every change replaces it
                    self._refresh()
                    self._check(client, has_key=has_key)
                    keys = {name: own for name, own in (self._keys | {client: key}).items() if own}
                    text = json.dumps({"format": FORMAT, "keys": keys}, indent=1)
                    replace_file(self._path, text.encode())
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise ConfigError(
                    f"keys cannot be stored in {self._path}: {error}; give another file (--keys)"
                ) from error
            self._refresh()
        return key

    def _check(self, client: str, *, has_key: bool) -> None:
        """Refuses a client that has no key, or one that has a key already."""
        if client in self._keys and not has_key:
            raise ConfigError(
                f"{client!r} has a key, with which it may be training; choose another name, or "
                "replace the key (--rotate), which ends that client"
            )
        if client not in self._keys and has_key:
            raise ConfigError(
                f"there is no key of {client!r:.120} in {self._path}; `rookery serve keys list` "
                "shows the clients that have one, and `keys add` makes one"
            )


def checked_keys(keys: Mapping[str, object]) -> dict[str, str]:
    """Returns keys that were made elsewhere; refuses one that is short or cannot be sent."""
    return {checked_name(client): checked_key(client, key) for client, key in keys.items()}


def _read(path: Path, found: os.stat_result) -> dict[str, str]:
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_size > LARGEST:
        raise ConfigError(
            f"{path} has mode {stat.filemode(found.st_mode)} and {found.st_size} bytes; keys are "
            f"in a file that only its owner can read: chmod 600 {path}"
        )
    try:
        said = json.loads(path.read_bytes())
        if said["format"] != FORMAT:
            raise ValueError("another format")
        return checked_keys(said["keys"])
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no file of keys of format {FORMAT}: {type(error).__name__}; "
            "`rookery serve keys add` makes one"
        ) from None  # the error may quote what it could not read
