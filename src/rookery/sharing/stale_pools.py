"""Finds and removes files that dead processes have left in a pool of shared replay buffers.

    for stale in find(folder): ...        # yields the stale files
    clear(folder)                         # removes them; returns the ids of their buffers

A replay buffer has two files: its registration (a JSON "note") and its ring buffer. It is abandoned
once both are unlocked and the processes that they name have ended. A process that removes a buffer
holds both locks meanwhile, so that no other process can start to use it.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rookery.errors import ProtocolError
from rookery.replay.file_owner import Owner
from rookery.sharing.pool_files import (
    LEAGUE,
    NOTE,
    POOL,
    RING,
    SCRATCH,
    TERMS,
    exclusive_lock,
    open_private,
    open_ring,
    read_json,
)

UNFINISHED_S = 3600.0  # age after which an unfinished file is stale
NEVER = "it was never finished"


class StaleFiles(NamedTuple):
    """Files in a pool of shared replay buffers that no process needs any more, and the reason."""

    paths: tuple[Path, ...]
    why: str
    buffer_id: str | None = None  # None for files that were never finished


def buffer_ids(folder: Path) -> Iterator[str]:
    """Yields the ids of the replay buffers that are registered in a pool's folder.

    A pool is the set of replay buffers that runs share. Yields nothing if there is no such folder.
    """
    for name in _names(folder):
        if name.endswith(NOTE) and name not in (POOL, TERMS) and not name.startswith(SCRATCH):
            yield name[: -len(NOTE)]


def _names(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def find(folder: Path) -> Iterator[StaleFiles]:
    """Yields the files that dead processes have left in a folder of shared replay buffers.

    They are the files that `clear` would remove now. A buffer is locked while its files are
    yielded.
    """
    for buffer_id in _buffers(folder):
        with _abandoned(folder, buffer_id) as why:
            if why:
                paths = tuple(path for path in _files(folder, buffer_id) if path.exists())
                yield StaleFiles(paths, why, buffer_id)
    for path in _unfinished(folder):
        yield StaleFiles((path,), NEVER)


def clear(folder: Path) -> Sequence[str]:
    """Removes files that dead processes have left in a folder of shared replay buffers.

    Returns the ids of the removed buffers.
    """
    removed = []
    for stale in find(folder):
        for path in stale.paths:
            path.unlink(missing_ok=True)
        if stale.buffer_id is not None:
            removed.append(stale.buffer_id)
    return tuple(removed)


def is_buffer_abandoned(folder: Path, buffer_id: str) -> bool:
    """Returns whether a shared replay buffer may be removed, since no process uses it any more.

    The processes that registered and wrote it have ended, or its files were never finished.
    """
    with _abandoned(folder, buffer_id) as why:
        return bool(why)


def remove_if_empty(folder: Path) -> bool:
    """Removes a pool (folder of shared replay buffers) that is empty and that no process uses.

    Returns whether the folder no longer exists. A process that opens the pool at the same moment
    finds it removed and creates a new one.
    """
    with exclusive_lock(folder / POOL) as alone:
        if not alone or any(buffer_ids(folder)):
            return False
        shutil.rmtree(folder / LEAGUE, ignore_errors=True)
        for name in (TERMS, POOL):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder has files that are not part of a pool
        folder.rmdir()
    return not folder.exists()


def is_abandoned(folder: Path) -> bool:
    """Returns whether no process uses a pool (folder of shared replay buffers).

    It is False if the folder holds anything but stale files and the files of the pool itself.
    """
    with exclusive_lock(folder / POOL) as alone:
        stale = {path.name for found in find(folder) for path in found.paths}
        return alone and set(_names(folder)) <= stale | {POOL, TERMS, LEAGUE}


def _files(folder: Path, buffer_id: str) -> tuple[Path, Path]:
    """Returns the paths of a replay buffer's ring and registration files, in order of removal."""
    return folder / f"{buffer_id}{RING}", folder / f"{buffer_id}{NOTE}"


def _buffers(folder: Path) -> Sequence[str]:
    """Returns the ids of all shared replay buffers in a folder, even without registration."""
    names = [name for name in _names(folder) if not name.startswith(SCRATCH)]
    return sorted({*buffer_ids(folder), *(n[: -len(RING)] for n in names if n.endswith(RING))})


def _unfinished(folder: Path) -> Iterator[Path]:
    for name in _names(folder):
        if name.startswith(SCRATCH) and _is_old(folder / name):
            yield folder / name


def _is_old(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > UNFINISHED_S


@contextlib.contextmanager
def _abandoned(folder: Path, buffer_id: str) -> Iterator[str]:
    """Context manager that locks an abandoned shared replay buffer; yields why it is abandoned.

    Yields "" if the buffer may be in use.
    """
    if not _reason(folder, buffer_id):  # buffers in use are not locked
        yield ""
        return
    ring, note = _files(folder, buffer_id)
    with exclusive_lock(note) as note_is_free, exclusive_lock(ring) as ring_is_free:
        yield _reason(folder, buffer_id) if note_is_free and ring_is_free else ""


def _reason(folder: Path, buffer_id: str) -> str:
    """Returns why a shared replay buffer is abandoned, or "" if it may be in use.

    The reason is that its processes have ended, or that it was never finished.
    """
    ring, note = _files(folder, buffer_id)
    dead: set[int] = set()
    try:
        for owner in chain(_note_owner(note), _ring_owner(ring)):
            if owner.alive:
                return ""
            dead.add(owner.pid)
    except (ProtocolError, KeyError, TypeError, ValueError):
        return ""  # not a note of this library
    if not dead:
        return NEVER if _is_old(ring) else ""
    pids = " and ".join(map(str, sorted(dead)))
    return f"its owner (pid {pids}) is gone"


def _note_owner(note: Path) -> Iterator[Owner]:
    with contextlib.suppress(FileNotFoundError):
        pid, started, boot = read_json(note)["owner"]
        yield Owner(int(pid), int(started), bytes.fromhex(boot))


def _ring_owner(path: Path) -> Iterator[Owner]:
    """Yields the process that writes a replay ring buffer file.

    Yields nothing if the file is damaged or missing. Raises `ProtocolError` for a file that other
    users can access; such a file is never removed.
    """
    try:
        os.close(open_private(path))
    except FileNotFoundError:
        return
    with contextlib.suppress(ProtocolError, FileNotFoundError):
        ring = open_ring(path)
        owner = ring.owner
        ring.close()
        yield owner
