"""Accepted updates of an open round, each in as little memory as it needs.

An update of top-k compression is nearly all zeros, and a round may wait for many of them. Such an
update is kept as places and values; it is whole again only where it is aggregated, part by part.
Nothing is rounded: even the sign of the zeros comes back.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rookery.types import Floats

SMALL = 1 << 14  # entries of a vector that is kept as it is


class SparseUpdate(NamedTuple):
    """A vector [P] of which most entries are one kind of zero."""

    places: npt.NDArray[np.int64]  # [K], rising; of the other entries
    values: Floats  # [K]
    zero: float  # 0.0 or -0.0

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.values.nbytes

    def part(self, start: int, stop: int) -> Floats:
        """Returns entries [stop - start] as a new array."""
        found = np.full(stop - start, self.zero, np.float32)
        low, high = np.searchsorted(self.places, (start, stop))
        found[self.places[low:high] - start] = self.values[low:high]
        return found


class Pending(NamedTuple):
    """An accepted update that has not been applied yet."""

    worker: str
    weight: float
    update: Floats | SparseUpdate  # [P]

    @property
    def nbytes(self) -> int:
        return int(self.update.nbytes)

    def part(self, start: int, stop: int) -> Floats:
        """Returns entries [stop - start] of the update."""
        update = self.update
        return update.part(start, stop) if isinstance(update, SparseUpdate) else update[start:stop]


def packed(update: Floats) -> Floats | SparseUpdate:
    """Returns an update in the smaller form, in memory of its own."""
    if len(update) > SMALL:
        for zero in (0.0, -0.0):
            other = update.view(np.uint32) != np.float32(zero).view(np.uint32)
            if 3 * np.count_nonzero(other) < len(update):  # 12 bytes each instead of 4
                places = np.flatnonzero(other)
                return SparseUpdate(places, update[places], zero)
    # a view would keep a whole journal in memory, of which the update was read
    return update if update.base is None else update.copy()
