"""Finds and deletes files that killed runs left behind, but none that are in use."""

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rookery import plugins
from rookery.checkpoints.checkpoint import TEMPORARY
from rookery.checkpoints.run_folder import LOCK


class StaleFile(NamedTuple):
    """A file or folder left behind by a killed process, and the reason to delete it."""

    path: str
    bytes: int
    why: str


class Cleanup(Protocol):
    """Interface of a plugin that deletes files left behind by its killed processes."""

    def stale(self, pools: Sequence[Path]) -> Iterator[StaleFile]:
        """Yields the plugin's leftover files that no live process uses; deletes nothing.

        `pools` are folders of shared replay buffers that the user has named. Raises ConfigError for
        a folder that is not one.
        """

    def clear(self, pools: Sequence[Path]) -> None:
        """Deletes files that killed runs have left, after checking again that each is unused."""


def sweep(runs: Path, dry_run: bool, pools: Sequence[Path] = ()) -> list[StaleFile]:
    """Deletes plugins' leftover files, and half-written files of ended runs in folder `runs`.

    `pools` are folders of shared replay buffers to clean besides those in the default place.
    Returns the deleted files; with `dry_run` it only returns the files it would delete.
    """
    cleanups: list[Cleanup] = [plugins.load(name) for name in plugins.each("cleanup")]
    scratch, left = [*_scratch(runs)], [item for one in cleanups for item in one.stale(pools)]
    if not dry_run:
        for cleanup in cleanups:
            cleanup.clear(pools)
        for item in scratch:
            _delete(Path(item.path))
    return [*left, *scratch]


def remove_unfinished(run_dir: Path) -> None:
    """Deletes half-written files in a run's folder, which the caller must have locked."""
    for path in sorted(run_dir.rglob(f"*{TEMPORARY}*")):
        _delete(path)


def _scratch(runs: Path) -> Iterator[StaleFile]:
    for path in sorted(runs.rglob(f"*{TEMPORARY}*")) if runs.is_dir() else ():
        run_dir = next((p for p in path.parents if (p / LOCK).exists()), None)
        if run_dir is not None and not _in_use(run_dir):
            yield StaleFile(str(path), _size(path), "half-written by a run that has ended")


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
