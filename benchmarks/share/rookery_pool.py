"""Sharing by rings: a batch drawn from all buffers of a pool, and a step added to one.

4 buffers of 2,500 rows of 8-float observations, batches of 256, as `manager_lists.py` has them.
"""

import atexit
from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from rookery.sb3.shared_buffer import DistributedReplayBuffer
from rookery.sharing.registry import create_distributed_registry

BUFFERS, ROWS, BATCH, OBS = 4, 2_500, 256, 8


def _buffers(seed: int) -> list[DistributedReplayBuffer]:
    registry = create_distributed_registry()
    atexit.register(registry.stop)
    made = []
    for index in range(BUFFERS):
        buffer_id = registry.register_buffer(run_id=f"run{index}", algorithm="SAC")
        made.append(
            DistributedReplayBuffer(
                ROWS,
                spaces.Box(-10, 10, (OBS,), np.float32),
                spaces.Box(-1, 1, (1,), np.float32),
                device="cpu",
                registry=registry,
                buffer_id=buffer_id,
                sample_strategy="uniform",
                cross_sample_ratio=1.0,
                seed=seed,
            )
        )
        for _ in range(ROWS):
            _add(made[-1])
    return made


def _add(buffer: DistributedReplayBuffer) -> None:
    buffer.add(STEP[0], STEP[1], STEP[2], STEP[3], STEP[4], [{}])


STEP = (
    np.ones((1, OBS), dtype=np.float32),
    np.ones((1, OBS), dtype=np.float32),
    np.zeros((1, 1), dtype=np.float32),
    np.ones(1, dtype=np.float32),
    np.zeros(1, dtype=np.float32),
)


def draw(seed: int) -> Callable[[], int]:
    own, *_others = kept = _buffers(seed)

    def work() -> int:
        assert kept
        own.sample(BATCH)
        return 1

    return work


def append(seed: int) -> Callable[[], int]:
    own, *_others = kept = _buffers(seed)

    def work() -> int:
        assert kept
        _add(own)
        return 1

    return work
