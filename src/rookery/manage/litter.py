"""Litter: what killed runs may leave behind under a name, and how to tell it from live things."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rookery.manage.checkpoint import TEMPORARY
from rookery.manage.folder import LOCK
from rookery.sharing import remains
from rookery.sharing.registry import shared_directory


class Removed(NamedTuple):
    """Something that was, or would be, deleted."""

    path: str
    bytes: int
    why: str


def sweep(runs: Path, dry_run: bool) -> list[Removed]:
    """Removes buffers of dead owners, pools of nobody, half-written checkpoints of dead runs."""
    scratch, left = [*_scratch(runs)], [*_left(shared_directory())]
    if not dry_run:
        _clear(shared_directory())
        for item in scratch:
            _delete(Path(item.path))
    return [*left, *scratch]


def _left(directory: Path) -> Iterator[Removed]:
    """Yields what the dead have left, and pools in which nobody else is."""
    for folder in (directory, *_pools(directory)):
        for dead in remains.find(folder):
            for path in dead.paths:
                with contextlib.suppress(OSError):  # it may go while it is looked at
                    yield Removed(str(path), path.stat().st_size, dead.why)
        if folder != directory and remains.is_deserted(folder):
            yield Removed(str(folder), 0, "nobody is in this pool any more")


def _clear(directory: Path) -> None:
    """Looks again at each thing before it goes: somebody may have come meanwhile."""
    remains.clear(directory)
    for pool in _pools(directory):
        remains.clear(pool)
        remains.dissolve(pool)


def _pools(directory: Path) -> list[Path]:
    """Returns a directory's folders: each is a pool, or what is left of one."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.is_symlink())


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
