"""Finds and removes stale files of replay sharing, for `rookery clean`.

These are replay buffers of dead processes, and pools (folders of shared buffers) without runs.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rookery.checkpoints.run_folder import StaleFile
from rookery.errors import ConfigError
from rookery.sharing import stale_pools
from rookery.sharing.pool_files import POOL, require_private
from rookery.sharing.registry import shared_directory


def _pools(directory: Path) -> list[Path]:
    """Returns the pool folders in a directory: every folder in it that is not a symbolic link.

    A pool folder holds the replay buffers that several runs share.
    """
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.is_symlink())


def _require_pool(folder: Path) -> None:
    """Raises `ConfigError` unless a folder is a pool that only this user can access."""
    if not (folder / POOL).is_file():
        raise ConfigError(
            f"{folder} is not a pool of shared replay buffers: it has no {POOL}; give a folder "
            "that sharing.pool or create_distributed_registry(path=...) named"
        )
    require_private(folder)


class PoolCleanup:
    """Finds and removes stale files of shared replay buffers on this host.

    Implements `Cleanup`, the interface that `rookery clean` calls.
    """

    def stale(self, pools: Sequence[Path]) -> Iterator[StaleFile]:
        for folder in pools:
            _require_pool(folder)
        return self._stale(pools)

    def _stale(self, pools: Sequence[Path]) -> Iterator[StaleFile]:
        directory = shared_directory()
        for folder in (directory, *_pools(directory), *pools):
            for dead in stale_pools.find(folder):
                for path in dead.paths:
                    with contextlib.suppress(OSError):  # another process may remove it meanwhile
                        yield StaleFile(str(path), path.stat().st_size, dead.why)
            if folder != directory and stale_pools.is_abandoned(folder):
                yield StaleFile(str(folder), 0, "this pool has no members left")

    def clear(self, pools: Sequence[Path]) -> None:
        """Removes stale files; each is checked again first, since a run may use it meanwhile."""
        directory = shared_directory()
        stale_pools.clear(directory)
        for pool in (*_pools(directory), *pools):
            stale_pools.clear(pool)
            stale_pools.remove_if_empty(pool)


CLEANUP = PoolCleanup()
