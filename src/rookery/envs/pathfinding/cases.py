"""Cases: maps with starts and goals, many of one shape.

    cases = generate(200, agents=32, size=40, density=0.3, rng=rng)
    cases = load("cases.npz"); save("cases.npz", cases)

A file of cases is an `.npz` with the arrays `maps`, `starts` and `goals`, as in `Cases`.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Maps: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int16]


class Cases(NamedTuple):
    """C cases of N agents on maps of H rows and W columns."""

    maps: Maps  # [C, H, W] 1: blocked
    starts: Places  # [C, N, 2] row and column; -1: nobody has this number
    goals: Places  # [C, N, 2]
