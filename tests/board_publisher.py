"""A process that publishes weights as fast as it can, and may be killed at any moment.

    python tests/board_publisher.py FD        # an inherited board of LAYERS

Every entry of version v is v.
"""

import os
import sys

import numpy as np

from rookery.board import Board
from rookery.types import Array

LAYERS: dict[str, Array] = {
    "first": np.zeros((64, 300), dtype=np.float32),
    "bias": np.zeros(300, dtype=np.float64),
    "count": np.zeros((), dtype=np.int64),
    "last": np.zeros((300, 40), dtype=np.float32),
}


def main(fd: int) -> None:
    board, parent = Board(LAYERS, fd=fd), os.getppid()
    while os.getppid() == parent:  # nobody may be left publishing after a killed parent
        version = board.version + 1
        board.publish({name: np.full_like(array, version) for name, array in LAYERS.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]))
