"""One process writes as fast as it can and is killed again and again; another one reads. The
reader never gets a row that is torn, overwritten, half-written, or joined over a dead writer's
gap."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import ring_reader_process as ring_follower
import ring_writer_process as ring_writer
from eventually import eventually
from ring_writer_process import LANES, LENGTH, SPEC, STACK
from rookery.errors import EmptyReplayError
from rookery.replay.fold import Horizon
from rookery.replay.ring import Ring, schema_of
from rookery.sharing.ring_reader import RingReader
from rookery.types import Array, Batch

CAPACITY = 1200
N_STEP, GAMMA = 3, 0.5
KILLS = 20  # at least; more while none of them came in the middle of a row
MOST_KILLS = 10 * KILLS


class Kennel:
    """Starts writers one after another, and kills them."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self.process = process

    def start(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._answer())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self._answer() == "SIGKILL"  # it was alive, and now it is gone and reaped

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def kennel(ring: Ring) -> Iterator[Kennel]:
    command = [sys.executable, str(Path(ring_writer.__file__)), str(ring.fd)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(ring.fd,)
    ) as process:
        try:
            yield Kennel(process)
        finally:
            process.kill()  # a writer ends when its parent is gone


@pytest.mark.parametrize("seed", [0])
def test_a_reader_never_gets_a_bad_row_whatever_happens_to_the_writer(seed: int) -> None:
    moments, rng = random.Random(seed), np.random.default_rng(seed)
    gaps = np.zeros(0, dtype=np.int64)
    drawn = 0
    with closing(Ring.create(schema_of(SPEC), CAPACITY)) as ring, kennel(ring) as writers:
        reader = RingReader(SPEC, Horizon(N_STEP, GAMMA))
        for kill in range(MOST_KILLS):
            if kill >= KILLS and gaps.size:
                break
            before = ring.committed
            pid = writers.start()
            assert eventually(lambda before=before: ring.committed > before + CAPACITY, within_s=20)
            until = time.monotonic() + moments.uniform(0.0, 0.05)
            while time.monotonic() < until or drawn == 0:
                drawn += check(reader, ring, rng, gaps)
            writers.kill(pid)
            drawn += check(reader, ring, rng, gaps)  # a dead writer leaves a readable ring
            gaps = np.concatenate([gaps, np.arange(ring.committed, ring.reserved)])

        deadline = time.monotonic() + 20
        pid = writers.start()
        while reader.overwritten == 0 and time.monotonic() < deadline:
            drawn += check(reader, ring, rng, gaps)
        writers.kill(pid)

    assert drawn > 1000
    assert reader.overwritten > 0  # the second look was needed
    assert gaps.size > 0  # and some writers died in the middle of a row


def test_a_process_that_polls_in_compiled_code_sees_every_change() -> None:
    last = 200
    with closing(Ring.create(schema_of(SPEC), 8)) as ring:
        command = [sys.executable, str(Path(ring_follower.__file__)), str(ring.fd), str(last)]
        with subprocess.Popen(command, pass_fds=(ring.fd,)) as follower:
            for value in range(1, last + 1):
                ring.restart_at(value)
                assert eventually(lambda value=value: ring.consumed == value, within_s=60)

        assert follower.returncode == 0


def check(reader: RingReader, ring: Ring, rng: np.random.Generator, gaps: Array) -> int:
    """Draws a batch and compares it with what its row numbers say; returns its size."""
    try:
        batch = reader.sample(ring, 32, rng)
    except EmptyReplayError:  # the writer laps this reader; that is its right
        return 0
    touched = check_batch(batch)
    assert not np.isin(touched, gaps).any(), "a row of a dead writer's gap was drawn"
    return int(batch.rows.size)


def check_batch(batch: Batch) -> Array:
    """Asserts that every field follows from the rows' numbers; returns all rows behind it."""
    number = batch.rows
    t, episode = number // LANES % LENGTH, number // LANES // LENGTH
    assert (t < LENGTH - 1).all(), "a final row was drawn as a start"
    taken = np.minimum(N_STEP, LENGTH - 1 - t)
    died = (t + taken == LENGTH - 1) & (episode % 2 == 0)
    walked = number[:, None] + LANES * np.arange(N_STEP)
    counted = np.arange(N_STEP) < taken[:, None]
    factor = GAMMA ** np.arange(N_STEP)
    last = number + LANES * taken

    assert np.array_equal(batch.action, number % 7)
    assert np.array_equal(batch.reward, (ring_writer.reward(walked) * counted * factor).sum(1))
    assert np.array_equal(batch.discount, np.where(died, 0.0, GAMMA**taken))
    assert np.array_equal(batch.obs, stacked(number))
    assert np.array_equal(batch.next_obs, stacked(last))
    return np.concatenate([frames(number).ravel(), walked[counted], last])


def frames(number: Array) -> Array:
    """Returns [B, STACK] rows a policy saw with each, the first of an episode repeated."""
    back = np.arange(STACK - 1, -1, -1)
    t = number // LANES % LENGTH
    return number[:, None] - LANES * np.minimum(back, t[:, None])


def stacked(number: Array) -> Array:
    return ring_writer.obs(frames(number)).reshape(number.size, -1)
