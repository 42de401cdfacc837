"""The board: versioned weights on their way from the learner to everybody else.

Four memory-mapped slots; version v goes into slot v % 4, so a reader has three publications' time
to copy. A slot's sequence number is odd while it is being written. Readers copy, look again, and
keep what they have after three misses.

    board.publish(arrays)          # learner → version
    weights = board.latest(than)   # anybody: Weights newer than `than`, or None
"""

import contextlib
import json
import mmap
import os
from collections.abc import Mapping

import numpy as np

from rookery.errors import ClosedError, ConfigError, ProtocolError
from rookery.replay.memory import look, post
from rookery.replay.ring import allocate, default_directory, private_file
from rookery.types import Array, Weights

SLOTS = 4
TRIES = 3

_LINE = 64
_NEWEST = 0  # word of the newest complete version
_SEQ = 8  # first slot's sequence number; one cache line each


class Board:
    """Versioned weights in shared memory. One publisher, any number of readers, no lock."""

    def __init__(self, arrays: Mapping[str, Array], *, fd: int | None = None):
        """`arrays` gives names, shapes and dtypes; the values do not matter."""
        self.layout = {name: (a.shape, a.dtype.str) for name, a in arrays.items()}
        sizes = [-(-a.nbytes // _LINE) * _LINE for a in arrays.values()]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        header = (1 + 2 * SLOTS) * _LINE
        total = header + SLOTS * int(offsets[-1])
        self.fd = _new_file(total) if fd is None else fd
        self._map = mmap.mmap(self.fd, total)
        raw = np.frombuffer(self._map, dtype=np.uint8)
        self._words = raw[:header].view(np.int64)
        self._slots = [
            self._views(raw, header + slot * int(offsets[-1]), offsets) for slot in range(SLOTS)
        ]
        self.misses = 0  # copies that were overtaken while being made

    def _views(self, raw: Array, base: int, offsets: Array) -> dict[str, Array]:
        views = {}
        for (name, (shape, dtype)), at in zip(self.layout.items(), offsets, strict=False):
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            piece = raw[base + int(at) : base + int(at) + count]
            views[name] = piece.view(dtype).reshape(shape)
        return views

    @property
    def version(self) -> int:
        """The newest complete version; 0 before the first."""
        return look(self._words, _NEWEST)

    def publish(self, arrays: Mapping[str, Array], *, version: int | None = None) -> int:
        """Writes the next version (or the given one, after a resume) and returns its number.

        The newest version may be given again only while nobody reads.
        """
        newest = self.version
        version = newest + 1 if version is None else version
        if version < max(1, newest):
            raise ProtocolError(
                f"versions only grow: {newest} is published, got {version}; use a new board"
            )
        slot = version % SLOTS
        self._mark(slot, 2 * version - 1)
        for name, view in self._slots[slot].items():
            view[...] = arrays[name]
        self._mark(slot, 2 * version)
        post(self._words, _NEWEST, version)
        return version

    def latest(self, than: int) -> Weights | None:
        """Returns the newest version if it is newer than `than`; None also after three misses."""
        for _ in range(TRIES):
            version = self.version
            if version <= than:
                return None
            slot = version % SLOTS
            copies = {name: view.copy() for name, view in self._slots[slot].items()}
            if look(self._words, _SEQ * (1 + slot)) == 2 * version:
                return Weights(version, copies)
            self.misses += 1
        return None

    def describe(self) -> str:
        """Returns the layout as JSON, for a process that inherits the descriptor."""
        return json.dumps(self.layout)

    def close(self) -> None:
        """Unmaps the board. The file vanishes with its last descriptor and map."""
        if self.fd < 0:
            raise ClosedError("this board was closed before; keep one owner for each board")
        self._slots.clear()
        del self._words
        with contextlib.suppress(BufferError):  # a view outlives us: the kernel frees it later
            self._map.close()
        os.close(self.fd)
        self.fd = -1

    def _mark(self, slot: int, sequence: int) -> None:
        post(self._words, _SEQ * (1 + slot), sequence)


def _new_file(size: int) -> int:
    directory = default_directory()
    fd = private_file(directory)
    try:
        allocate(fd, size, directory, what="a board of weights")
    except (ConfigError, OSError):
        os.close(fd)
        raise
    return fd
