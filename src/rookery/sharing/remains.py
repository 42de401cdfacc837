"""Remains: what the dead have left in a pool, and how to tell it from what the living need.

    for remains in find(folder): ...      # only looks
    clear(folder)                         # removes them; returns the ids of their buffers

A buffer is nobody's once both its files are unlocked and the processes they name, if they can be
read, are gone. Whoever removes it holds both locks meanwhile, so that nobody claims it as it goes.
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
from rookery.replay.owner import Owner
from rookery.sharing.files import (
    LEAGUE,
    NOTE,
    POOL,
    RING,
    SCRATCH,
    TERMS,
    open_private,
    open_ring,
    read_json,
    seized,
)

UNFINISHED_S = 3600.0  # a file that was not finished so long after it was begun is litter
NEVER = "it was never finished"


class Remains(NamedTuple):
    """Files that nobody needs any more."""

    paths: tuple[Path, ...]
    why: str
    buffer_id: str | None = None  # none: it never became one


def ids(folder: Path) -> Iterator[str]:
    """Yields the registered buffers of a pool."""
    for name in _names(folder):
        if name.endswith(NOTE) and name not in (POOL, TERMS) and not name.startswith(SCRATCH):
            yield name[: -len(NOTE)]


def _names(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def find(folder: Path) -> Iterator[Remains]:
    """Yields what could be removed now."""
    for buffer_id in _buffers(folder):
        with _nobodys(folder, buffer_id) as why:
            if why:
                paths = tuple(path for path in _files(folder, buffer_id) if path.exists())
                yield Remains(paths, why, buffer_id)
    for path in _unfinished(folder):
        yield Remains((path,), NEVER)


def clear(folder: Path) -> Sequence[str]:
    """Removes what nobody needs; returns the ids of the buffers among it."""
    for path in _unfinished(folder):
        path.unlink(missing_ok=True)
    return tuple(buffer_id for buffer_id in _buffers(folder) if _cleared(folder, buffer_id))


def _cleared(folder: Path, buffer_id: str) -> bool:
    with _nobodys(folder, buffer_id) as why:
        if why:
            for path in _files(folder, buffer_id):
                path.unlink(missing_ok=True)
    return bool(why)


def is_dead(folder: Path, buffer_id: str) -> bool:
    """Is whoever registered it gone, and whoever wrote it too?"""
    with _nobodys(folder, buffer_id) as why:
        return bool(why)


def dissolve(folder: Path) -> bool:
    """Removes a pool that nobody has started and that has no buffers; returns whether it is gone.

    Whoever starts it at the same moment finds that its file has gone, and makes a new one.
    """
    with seized(folder / POOL) as alone:
        if not alone or any(ids(folder)):
            return False
        shutil.rmtree(folder / LEAGUE, ignore_errors=True)  # whose snapshots nobody meets any more
        for name in (TERMS, POOL):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else's file: the folder is theirs
        folder.rmdir()
    return not folder.exists()


def is_deserted(folder: Path) -> bool:
    """Would nothing be left of this pool if what is dead were removed?"""
    with seized(folder / POOL) as alone:
        doomed = {path.name for remains in find(folder) for path in remains.paths}
        return alone and set(_names(folder)) <= doomed | {POOL, TERMS, LEAGUE}


def _files(folder: Path, buffer_id: str) -> tuple[Path, Path]:
    """The ring first: a ring without a note would be harder to find."""
    return folder / f"{buffer_id}{RING}", folder / f"{buffer_id}{NOTE}"


def _buffers(folder: Path) -> Sequence[str]:
    """Returns all ids, those included of which only the ring is left."""
    rings = (
        name[: -len(RING)]
        for name in _names(folder)
        if name.endswith(RING) and not name.startswith(SCRATCH)
    )
    return sorted({*ids(folder), *rings})


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
def _nobodys(folder: Path, buffer_id: str) -> Iterator[str]:
    """Yields why nobody needs a buffer, and holds its locks so long; nothing: somebody may."""
    if not _epitaph(folder, buffer_id):  # the living are not disturbed
        yield ""
        return
    ring, note = _files(folder, buffer_id)
    with seized(note) as note_is_free, seized(ring) as ring_is_free:
        yield _epitaph(folder, buffer_id) if note_is_free and ring_is_free else ""


def _epitaph(folder: Path, buffer_id: str) -> str:
    """Says which processes a buffer names, if all are gone, or that it is nothing and is old."""
    ring, note = _files(folder, buffer_id)
    dead: set[int] = set()
    try:
        for owner in chain(_registrar(note), _writer(ring)):
            if owner.alive:
                return ""
            dead.add(owner.pid)
    except (ProtocolError, KeyError, TypeError, ValueError):
        return ""  # no note of ours
    if not dead:
        return NEVER if _is_old(ring) else ""
    pids = " and ".join(map(str, sorted(dead)))
    return f"its owner (pid {pids}) is gone"


def _registrar(note: Path) -> Iterator[Owner]:
    with contextlib.suppress(FileNotFoundError):
        pid, started, boot = read_json(note)["owner"]
        yield Owner(int(pid), int(started), bytes.fromhex(boot))


def _writer(path: Path) -> Iterator[Owner]:
    """A ring that cannot be read names nobody; one that is not ours stays, whoever made it."""
    try:
        os.close(open_private(path))
    except FileNotFoundError:
        return
    with contextlib.suppress(ProtocolError, FileNotFoundError):
        ring = open_ring(path)
        owner = ring.owner
        ring.close()
        yield owner
