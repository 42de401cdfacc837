"""Atomic file writes: a file is complete or absent, even after a kill or a power failure."""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".part"
TEMPORARY = ".tmp-"  # `rookery clean` deletes what killed processes left under such names
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def advice_on(error: OSError, folder: Path) -> str:
    """Returns what a user can do about a file in `folder` that could not be written."""
    if error.errno in NO_SPACE:
        return f"free some space in {folder}"
    return f"make {folder} a folder that exists and is writable"


def delete(path: Path) -> None:
    """Deletes a file, or a folder with all that is in it; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def scratch_name(path: Path) -> Path:
    """Returns a unique temporary path in the same folder as `path`."""
    return path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path; the file written there then replaces `path`.

    After an error, `path` is unchanged and the temporary file is deleted.
    """
    scratch = scratch_name(path)
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def replace_file(path: Path, raw: bytes) -> None:
    """Writes a file atomically, readable by its owner only (mode 0600).

    If writing fails, the old file is unchanged. Call `sync_folder` afterwards to make the new file
    name survive a power failure. Only one process may write a file at a time; a partial file of a
    killed process is replaced.
    """
    scratch = path.with_name(path.name + UNFINISHED)
    try:
        scratch.unlink(missing_ok=True)  # of a killed process: other users might read it
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
    """Flushes a folder's entries to disk (fsync), so that new files survive a power failure."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
