"""Weight store: shared memory in which the learner publishes versions of weights to actors.

The store holds the last four versions. Version v is written to slot v % 4, so a reader can copy it
until the learner has published three more. A slot's sequence number is odd while the learner writes
to the slot. A reader copies the weights and then checks the sequence number. If the learner has
overwritten the slot meanwhile, the reader tries again; after three failed attempts it keeps its
present weights.

    store.publish(arrays)          # learner: returns the version
    weights = store.latest(than)   # any reader: Weights newer than `than`, or None
"""

import contextlib
import json
import mmap
import os
from collections.abc import Mapping

import numpy as np

from rookery.errors import ClosedError, ConfigError, ProtocolError
from rookery.replay.ring import allocate, default_directory, private_file
from rookery.replay.shared_memory import look, post
from rookery.types import Array, Weights

SLOTS = 4
TRIES = 3

_LINE = 64
_NEWEST = 0  # word of the newest complete version
_SEQ = 8  # first slot's sequence number; one cache line each


class WeightStore:
    """Versioned network weights in shared memory: one publisher, any number of readers, no lock."""

    def __init__(self, arrays: Mapping[str, Array], *, fd: int | None = None):
        """Creates a store, or maps an existing one by its file descriptor `fd`.

        `arrays` gives names, shapes and dtypes of the weights; the values are not used.
        """
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
        self.misses = 0  # copies that the learner overwrote while they were made

    def _views(self, raw: Array, base: int, offsets: Array) -> dict[str, Array]:
        views = {}
        for (name, (shape, dtype)), at in zip(self.layout.items(), offsets, strict=False):
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            piece = raw[base + int(at) : base + int(at) + count]
            views[name] = piece.view(dtype).reshape(shape)
        return views

    @property
    def version(self) -> int:
        """Number of the newest published version of the weights; 0 before the first."""
        return look(self._words, _NEWEST)

    def publish(self, arrays: Mapping[str, Array], *, version: int | None = None) -> int:
        """Publishes weights as the next version, or as `version`; returns the version number.

        If `version` is the newest version, its weights are overwritten, which is allowed only while
        no process reads the store. An older `version` raises ProtocolError.
        """
        newest = self.version
        version = newest + 1 if version is None else version
        if version < max(1, newest):
            raise ProtocolError(
                f"versions only grow: {newest} is published, got {version}; use a new weight store"
            )
        slot = version % SLOTS
        self._mark(slot, 2 * version - 1)
        for name, view in self._slots[slot].items():
            view[...] = arrays[name]
        self._mark(slot, 2 * version)
        post(self._words, _NEWEST, version)
        return version

    def latest(self, than: int) -> Weights | None:
        """Returns a copy of the newest weights if their version is above `than`, else None.

        Also returns None if the learner overwrites the weights during three attempts to copy them.
        """
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
        """Returns names, shapes and dtypes of the weights as JSON, for other processes."""
        return json.dumps(self.layout)

    def close(self) -> None:
        """Unmaps the store; its memory is freed once all processes have closed it.

        Raises ClosedError if this object is closed already.
        """
        if self.fd < 0:
            raise ClosedError("this weight store is closed already; keep one owner for each store")
        self._slots.clear()
        del self._words
        with contextlib.suppress(
            BufferError
        ):  # a view still exists: the kernel frees the mapping later
            self._map.close()
        os.close(self.fd)
        self.fd = -1

    def _mark(self, slot: int, sequence: int) -> None:
        post(self._words, _SEQ * (1 + slot), sequence)


def _new_file(size: int) -> int:
    directory = default_directory()
    fd = private_file(directory)
    try:
        allocate(fd, size, directory, what="a weight store")
    except (ConfigError, OSError):
        os.close(fd)
        raise
    return fd
