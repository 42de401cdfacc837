"""Views: what agents see around them, as codes and as planes.

A code is uint8 [S, S], one bit for each thing a cell may have (`rules.AGENT` and the next ones);
planes are the same as 0 and 1, [6, S, S], channel k for bit k.
"""

from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.pathfinding.rules import AGENT, CHANNELS
from rookery.errors import ConfigError

Codes: TypeAlias = npt.NDArray[np.uint8]


def planes(codes: Codes, out: Codes | None = None) -> Codes:
    """Returns codes [..., S, S] taken apart, [..., 6, S, S]; in `out`, where it is given."""
    *worlds, rows, columns = codes.shape
    shape = (*worlds, CHANNELS, rows, columns)
    out = np.empty(shape, dtype=np.uint8) if out is None else out
    if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ConfigError(
            f"planes need an out of contiguous uint8 {list(shape)}, got {out.dtype} "
            f"{list(out.shape)}; make it with np.empty"
        )
    count, cells = prod(worlds), rows * columns
    _split(codes.reshape(count, cells), out.reshape(count, CHANNELS, cells))
    return out


@njit(cache=True, nogil=True)
def look(seen, present, place, views):  # type: ignore[no-untyped-def]
    """Writes everybody's codes into `views` [E, N, S, S].

    `seen` [E, N, H + 2r, W + 2r] are the code planes of `fields`, `present` [E, H + 2r, W + 2r] has
    AGENT where somebody stands. A number that nobody has sees nothing.
    """
    sight = views.shape[2]
    for world in range(place.shape[0]):
        for i in range(place.shape[1]):
            row, column = place[world, i, 0], place[world, i, 1]
            if row < 0:
                views[world, i] = 0
                continue
            for y in range(sight):
                for x in range(sight):
                    code = seen[world, i, row + y, column + x]
                    views[world, i, y, x] = code | present[world, row + y, column + x]
            views[world, i, sight // 2, sight // 2] &= np.uint8(0xFF ^ AGENT)


@njit(cache=True, nogil=True)
def _split(codes, planes):  # type: ignore[no-untyped-def]
    for i in range(codes.shape[0]):
        for channel in range(CHANNELS):
            for at in range(codes.shape[1]):
                planes[i, channel, at] = (codes[i, at] >> np.uint8(channel)) & np.uint8(1)
