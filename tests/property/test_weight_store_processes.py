"""One process publishes as fast as it can and is killed; another one reads. It never gets a
version that is mixed from two, nor one older than what it has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

import weight_publisher
from eventually import eventually
from rookery.learner.weight_store import SLOTS, WeightStore
from rookery.types import Weights
from weight_publisher import LAYERS

VERSIONS, MISSES = 100, 30


class Dawdler(WeightStore):
    """A reader that begins to copy when the publisher overwrites what it copies, or just has."""

    looks = 0

    @property
    def version(self) -> int:
        seen, deadline = super().version, time.monotonic() + 1
        self.looks += 1
        until = seen + SLOTS - self.looks % 2
        while 0 < super().version < until and time.monotonic() < deadline:
            os.sched_yield()
        return seen


@contextmanager
def publisher(weight_store: WeightStore) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, str(Path(weight_publisher.__file__)), str(weight_store.fd)]
    with subprocess.Popen(command, pass_fds=(weight_store.fd,)) as process:
        try:
            before = weight_store.version
            assert eventually(lambda: weight_store.version > before, within_s=60)
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def check(found: Weights, than: int) -> None:
    assert found.version > than
    for name, array in found.arrays.items():
        assert array.shape == LAYERS[name].shape
        assert (array == found.version).all(), f"version {found.version} is mixed in {name}"


def test_a_reader_never_gets_a_mixed_or_older_version() -> None:
    with (
        closing(WeightStore(LAYERS)) as weight_store,
        closing(Dawdler(LAYERS, fd=os.dup(weight_store.fd))) as slow,
    ):
        seen, arrived = {weight_store: 0, slow: 0}, 0
        with publisher(weight_store):
            deadline = time.monotonic() + 90
            while arrived < VERSIONS or slow.misses < MISSES:
                assert time.monotonic() < deadline, (arrived, slow.misses)
                for reader, than in seen.items():
                    found = reader.latest(than)
                    if found is not None:
                        check(found, than)
                        seen[reader], arrived = found.version, arrived + 1

        last = weight_store.latest(0)  # killed at any moment: the newest complete version is there
        assert last is not None
        check(last, 0)
        assert last.version >= max(seen.values())


def test_another_publisher_goes_on_where_a_killed_one_was() -> None:
    with closing(WeightStore(LAYERS)) as weight_store:
        with publisher(weight_store):
            pass
        before = weight_store.version

        weight_store.publish(
            {name: np.full_like(array, before + 1) for name, array in LAYERS.items()}
        )

        found = weight_store.latest(before)
        assert found is not None
        check(found, before)
