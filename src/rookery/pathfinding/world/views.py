"""Agents' observations ("views") in two formats: bit codes and channels.

Codes are uint8 [S, S]: the S x S cells around an agent, with one bit for each possible content of a
cell (`rules.AGENT` and so on). Planes are the same bits as channels of 0 and 1, [6, S, S], channel
k for bit k.
"""

from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.pathfinding.world.rules import AGENT, CHANNELS

Codes: TypeAlias = npt.NDArray[np.uint8]


def planes(codes: Codes) -> Codes:
    """Converts bit-coded observations [..., S, S] to channels of 0 and 1, uint8 [..., 6, S, S].

    An agent observes S x S cells; channel k is bit k.
    """
    *worlds, rows, columns = codes.shape
    found = np.empty((prod(worlds), CHANNELS, rows * columns), dtype=np.uint8)
    _split(codes.reshape(prod(worlds), rows * columns), found)
    return found.reshape(*worlds, CHANNELS, rows, columns)


@njit(cache=True, nogil=True)
def look(seen, present, place, views):  # type: ignore[no-untyped-def]
    """Writes the bit-coded observations of N agents in E worlds to `views` [E, N, S, S].

    An agent sees the S x S cells around it. `seen` [E, N, H + 2r, W + 2r] holds each agent's
    observation bits for its whole map of H rows and W columns with a margin of the view radius r,
    without other agents. `present` [E, H + 2r, W + 2r] has the bit AGENT where an agent is. The
    observations of absent agents are 0.
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
