"""The lock of a file or folder that one server owns."""

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from rookery.errors import ConfigError


def lock_file(owner: object, path: Path, *, unusable: str, taken: str) -> Callable[[], object]:
    """Locks a file for as long as its owner exists; returns what unlocks it before.

    The kernel unlocks it when the process ends. Raises ConfigError with `unusable` and the cause if
    there can be no such file, and with `taken` if another process has locked it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{unusable}: {error}; name a folder that this user may write, or one that does not "
            "exist yet"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigError(taken) from None
    return weakref.finalize(owner, os.close, fd)
