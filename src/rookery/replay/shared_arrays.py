"""Named arrays in shared memory: a file in /dev/shm that several processes map.

    layout = ArrayLayout.of(arrays)
    file = SharedFile(new_file(layout.size, what="a weight store"))   # or an inherited descriptor
    layout.views(file.bytes)[name][...] = array

The file has no name unless one is given: the kernel frees it once the last process has closed it.
"""

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.errors import ClosedError, ConfigError
from rookery.types import Array

SHM = Path("/dev/shm")
LINE = 64  # bytes: every array begins on a cache line of its own


class ArrayLayout(NamedTuple):
    """Shapes, dtypes and order of named arrays that are stored one after another as bytes."""

    shapes: dict[str, tuple[tuple[int, ...], str]]  # name → shape and dtype

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "ArrayLayout":
        return cls({name: (array.shape, array.dtype.str) for name, array in arrays.items()})

    @classmethod
    def read(cls, shapes: Mapping[str, tuple[Sequence[int], str]]) -> "ArrayLayout":
        """Returns the layout that JSON data describe: the shape and dtype of each named array."""
        return cls({name: (tuple(shape), str(dtype)) for name, (shape, dtype) in shapes.items()})

    @property
    def size(self) -> int:
        """Total size of the arrays in bytes, padding included."""
        return sum(padded(_bytes(shape, dtype)) for shape, dtype in self.shapes.values())

    def views(self, raw: Array) -> dict[str, Array]:
        """Returns the named arrays as views of the first bytes of `raw` (a uint8 array)."""
        at, found = 0, {}
        for name, (shape, dtype) in self.shapes.items():
            size = _bytes(shape, dtype)
            found[name] = raw[at : at + size].view(dtype).reshape(shape)
            at += padded(size)
        return found


class SharedFile:
    """A file that is mapped into memory, as its `bytes`; the processes that map it share them."""

    what = "shared memory"  # in error messages

    def __init__(self, fd: int, *, writable: bool = True):
        """Maps the whole file; from now on this object owns the file descriptor `fd`."""
        self.fd = fd
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, access=access)
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        """Closes the file; its memory is unmapped once no view of it is left.

        Raises ClosedError if it was closed before.
        """
        if self.fd < 0:
            raise ClosedError(f"this {self.what} was closed before; keep one owner for it")
        os.close(self.fd)
        self.fd = -1
        del self.bytes, self._map


def new_file(
    size: int, *, what: str, directory: Path | None = None, name: str | None = None
) -> int:
    """Creates a file of `size` bytes, in /dev/shm by default; returns its file descriptor.

    Raises ConfigError if it does not fit.
    """
    directory = directory or default_directory()
    fd = private_file(directory) if name is None else _named_file(directory / name)
    try:
        allocate(fd, size, directory, what=what)
    except (ConfigError, OSError):
        os.close(fd)
        if name is not None:
            (directory / name).unlink()
        raise
    return fd


def default_directory() -> Path:
    """Returns the directory for shared memory: /dev/shm if it exists, else the temporary folder."""
    return SHM if SHM.is_dir() else Path(tempfile.gettempdir())


def private_file(directory: Path) -> int:
    """Creates an unnamed file; the kernel deletes it once the last process closes it.

    Returns the file descriptor.
    """
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # filesystems without O_TMPFILE, and macOS
        fd, path = tempfile.mkstemp(prefix="rookery-", dir=directory)
        os.unlink(path)
        return fd


def _named_file(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)


def allocate(fd: int, size: int, directory: Path, *, what: str) -> None:
    """Allocates `size` bytes for a file; raises `ConfigError` if they do not fit.

    Without this, a full /dev/shm would kill the process with SIGBUS at a later write.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.truncate(fd, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
        raise ConfigError(
            f"{what} of {size / 1e6:.0f} MB does not fit into {directory} "
            f"({free / 1e6:.0f} MB free); lower replay.capacity, enlarge {directory} "
            "(docker: --shm-size), or set replay.storage=disk"
        ) from error


def padded(size: int) -> int:
    """Returns a number of bytes rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
