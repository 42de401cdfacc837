"""The design that sharing is compared with: a manager process with a list for each buffer.

Every transition is an entry of a list that lives in a `multiprocessing.Manager`, and one lock
guards them all; a batch is drawn from the lists of all buffers. 4 buffers of 2,500 rows of
8-float observations, batches of 256, as `rookery_pool.py` in this folder has them.
"""

import multiprocessing
from collections.abc import Callable

import numpy as np

BUFFERS, ROWS, BATCH, OBS = 4, 2_500, 256, 8


def _entry(rng: np.random.Generator) -> tuple[object, ...]:
    obs, next_obs = rng.normal(size=(2, OBS)).astype(np.float32)
    return obs, np.zeros(1, dtype=np.float32), 1.0, next_obs, False, 1.0


def _pool(seed: int):  # type: ignore[no-untyped-def]
    manager = multiprocessing.get_context("spawn").Manager()
    rng = np.random.default_rng(seed)
    lists = [manager.list([_entry(rng) for _ in range(ROWS)]) for _ in range(BUFFERS)]
    return manager, manager.Lock(), lists, rng


def draw(seed: int) -> Callable[[], int]:
    manager, lock, lists, rng = _pool(seed)

    def work() -> int:
        assert manager is not None
        with lock:
            everything = [entry for rows in lists for entry in rows]
            chosen = [everything[i] for i in rng.integers(len(everything), size=BATCH)]
        [np.array(column) for column in zip(*chosen, strict=True)]
        return 1

    return work


def append(seed: int) -> Callable[[], int]:
    manager, lock, lists, rng = _pool(seed)
    entry = _entry(rng)

    def work() -> int:
        assert manager is not None
        with lock:
            lists[0].append(entry)
            if len(lists[0]) > ROWS:
                lists[0].pop(0)
        return 1

    return work
