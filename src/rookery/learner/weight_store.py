"""Weight store: shared memory in which the learner publishes versions of weights to actors.

The store holds the last four versions. Version v is written to slot v % 4, so a reader can copy it
until the learner has published three more. A slot's sequence number is odd while the learner writes
to the slot. A reader copies the weights and then checks the sequence number. If the learner has
overwritten the slot meanwhile, the reader tries again; after three failed attempts it keeps its
present weights.

    store.publish(arrays)          # learner: returns the version
    weights = store.latest(than)   # any reader: Weights newer than `than`, or None
"""

from collections.abc import Mapping

import numpy as np

from rookery.errors import ProtocolError
from rookery.replay.shared_arrays import LINE, ArrayLayout, SharedFile, new_file
from rookery.replay.shared_memory import look, post
from rookery.types import Array, Weights

SLOTS = 4
TRIES = 3

_NEWEST = 0  # word of the newest complete version
_SEQ = 8  # first slot's sequence number; one cache line each


class WeightStore(SharedFile):
    """Versioned network weights in shared memory: one publisher, any number of readers, no lock."""

    what = "weight store"

    def __init__(self, arrays: Mapping[str, Array], *, fd: int | None = None):
        """Creates a store, or maps an existing one by its file descriptor `fd`.

        `arrays` gives names, shapes and dtypes of the weights; the values are not used.
        """
        layout, header = ArrayLayout.of(arrays), (1 + 2 * SLOTS) * LINE
        size = header + SLOTS * layout.size
        super().__init__(new_file(size, what="a weight store") if fd is None else fd)
        self._words = self.bytes[:header].view(np.int64)
        self._slots = [
            layout.views(self.bytes[header + slot * layout.size :]) for slot in range(SLOTS)
        ]
        self.misses = 0  # copies that the learner overwrote while they were made

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

    def close(self) -> None:
        super().close()
        self._slots.clear()
        del self._words

    def _mark(self, slot: int, sequence: int) -> None:
        post(self._words, _SEQ * (1 + slot), sequence)
