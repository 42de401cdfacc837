"""A process that publishes weights as fast as it can, and may be killed at any moment.

    python tests/support/weight_publisher.py FD        # an inherited weight store of LAYERS

Every entry of version v is v.
"""

import os
import sys

import numpy as np

from rookery.learner.weight_store import WeightStore
from rookery.types import Array

LAYERS: dict[str, Array] = {
    "first": np.zeros((64, 300), dtype=np.float32),
    "bias": np.zeros(300, dtype=np.float64),
    "count": np.zeros((), dtype=np.int64),
    "last": np.zeros((300, 40), dtype=np.float32),
}


def main(fd: int) -> None:
    weight_store, parent = WeightStore(LAYERS, fd=fd), os.getppid()
    while os.getppid() == parent:  # must not go on publishing after a killed parent
        version = weight_store.version + 1
        weight_store.publish({name: np.full_like(array, version) for name, array in LAYERS.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]))
