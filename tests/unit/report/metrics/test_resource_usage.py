"""What a run takes is sampled cheaply."""

import subprocess
import sys
import time

import psutil

from rookery.report.metrics import resource_usage
from rookery.report.metrics.resource_usage import Usage


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_young_sample_is_given_again_without_looking(monkeypatch):
    clock = Clock()
    taken = Usage(clock)
    first = taken.sample()

    monkeypatch.setattr(resource_usage.psutil, "Process", None)
    monkeypatch.setattr(Usage, "_read", None)

    clock.s += 0.9
    assert taken.sample() is first


def test_processor_time_is_a_share_of_one_core(monkeypatch):
    clock, spent = Clock(), iter([{1: 5.0}, {1: 6.0, 2: 70.0}, {1: 6.5, 2: 71.0}])
    monkeypatch.setattr(
        Usage, "_read", lambda self: {pid: (s, 3.0) for pid, s in next(spent).items()}
    )
    taken = Usage(clock)

    clock.s = 2.0
    second = taken.sample()
    clock.s = 3.0
    third = taken.sample()

    assert second == (50.0, 6.0)  # process 2 is new: what it used before is not of this interval
    assert third == (150.0, 6.0)


def test_children_count_and_one_that_died_is_no_error():
    clock, me = Clock(), psutil.Process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        family = Usage(clock)
        with_child, alone = family.sample().memory_mb, me.memory_info().rss / 2**20
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
    clock.s += 2.0
    without = family.sample().memory_mb

    assert with_child > alone
    assert without < with_child


def test_sampling_is_cheap_between_looks():
    taken = Usage(Clock())

    began = time.perf_counter()
    for _ in range(100):
        taken.sample()

    assert time.perf_counter() - began < 0.01
