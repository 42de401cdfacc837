"""The design that sharing is compared with: a manager process with a list for each buffer.

A registry in a `multiprocessing.Manager`: buffers by id, each a list whose entries are transitions,
and what is known of each buffer (when it was last active, its size, how many were added) beside
them; one lock guards all of it. A batch is drawn from the lists of all buffers. 4 buffers of 2,500
rows of 8-float observations, batches of 256, as `rookery_pool.py` in this folder has them.
"""

import multiprocessing
import time
from collections.abc import Callable

import numpy as np

BUFFERS, ROWS, BATCH, OBS = 4, 2_500, 256, 8


def _entry(rng: np.random.Generator) -> tuple[object, ...]:
    obs, next_obs = rng.normal(size=(2, OBS)).astype(np.float32)
    return obs, np.zeros(1, dtype=np.float32), 1.0, next_obs, False, 1.0


class Pool:
    """What every process of such a design holds proxies of."""

    def __init__(self, seed: int):
        self.manager = multiprocessing.get_context("spawn").Manager()
        self.rng = np.random.default_rng(seed)
        self.lock = self.manager.Lock()
        self.buffers = self.manager.dict()
        self.about = self.manager.dict()
        for index in range(BUFFERS):
            rows = [_entry(self.rng) for _ in range(ROWS)]
            self.buffers[str(index)] = self.manager.list(rows)
            self.about[str(index)] = {"last_active": time.time(), "size": ROWS, "added": ROWS}


def draw(seed: int) -> Callable[[], int]:
    pool = Pool(seed)

    def work() -> int:
        with pool.lock:
            everything = [entry for rows in pool.buffers.values() for entry in rows]
            chosen = [everything[i] for i in pool.rng.integers(len(everything), size=BATCH)]
        [np.array(column) for column in zip(*chosen, strict=True)]
        return 1

    return work


def append(seed: int) -> Callable[[], int]:
    pool = Pool(seed)
    entry = _entry(pool.rng)

    def work() -> int:
        with pool.lock:
            rows = pool.buffers["0"]
            rows.append(entry)
            if len(rows) > ROWS:
                rows.pop(0)
            about = pool.about["0"]
            about |= {"last_active": time.time(), "size": len(rows), "added": about["added"] + 1}
            pool.about["0"] = about
        return 1

    return work
