"""Litter: what killed runs may leave behind under a name, and how to tell it from live things."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rookery.errors import ProtocolError
from rookery.manage.checkpoint import TEMPORARY
from rookery.manage.folder import LOCK
from rookery.replay.ring import Ring, default_directory

UNFINISHED_S = 3600.0  # a ring without a readable header this long after it was made is litter


class Removed(NamedTuple):
    """Something that was, or would be, deleted."""

    path: str
    bytes: int
    why: str


def shared_directory() -> Path:
    """Where this user's named rings live."""
    return default_directory() / f"rookery-{os.getuid()}"


def sweep(runs: Path, dry_run: bool) -> list[Removed]:
    """Removes named rings of dead owners, and half-written checkpoints of dead runs."""
    doomed = [*_rings(shared_directory()), *_scratch(runs)]
    if not dry_run:
        for item in doomed:
            _delete(Path(item.path))
    return doomed


def _rings(directory: Path) -> Iterator[Removed]:
    for path in sorted(directory.rglob("*.ring")) if directory.is_dir() else ():
        with contextlib.suppress(OSError):  # it may go while it is looked at
            if reason := _dead(path):
                yield Removed(str(path), path.stat().st_size, reason)


def _dead(path: Path) -> str:
    """Says why nobody needs a ring any more; nothing where somebody may."""
    try:
        ring = Ring.open(path)
    except (ProtocolError, ValueError):  # its maker may be about to fill it, but not for ever
        old = time.time() - path.stat().st_mtime > UNFINISHED_S
        return "it was never finished" if old else ""
    owner = ring.owner
    ring.close()
    return "" if owner.alive else f"its owner (pid {owner.pid}) is gone"


def tidy(run_dir: Path) -> None:
    """Removes what an earlier session of this run left half-written. Its lock must be held."""
    for path in sorted(run_dir.rglob(f"*{TEMPORARY}*")):
        _delete(path)


def _scratch(runs: Path) -> Iterator[Removed]:
    for path in sorted(runs.rglob(f"*{TEMPORARY}*")) if runs.is_dir() else ():
        run_dir = next((p for p in path.parents if (p / LOCK).exists()), None)
        if run_dir is not None and not _in_use(run_dir):
            yield Removed(str(path), _size(path), "half-written by a run that is gone")


def _in_use(run_dir: Path) -> bool:
    with open(run_dir / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
