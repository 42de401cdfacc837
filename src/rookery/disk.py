"""Files that are whole or not there, whenever a process is killed or the power goes."""

import contextlib
import os
from pathlib import Path

UNFINISHED = ".part"


def replace_file(path: Path, raw: bytes) -> None:
    """Writes a file that is whole as soon as it has its name, and 0600 from its first byte on.

    Where it raises, the file is as it was. The disk has the name after `sync_folder`. One process
    at a time: what one that was killed has left of it is written over by the next.
    """
    scratch = path.with_name(path.name + UNFINISHED)
    try:
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
