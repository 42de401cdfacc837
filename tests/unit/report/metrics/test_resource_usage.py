"""What a run takes is sampled cheaply."""

import subprocess
import sys
import time

import psutil

from eventually import eventually
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
    monkeypatch.setattr(Usage, "_look", None)

    clock.s += 0.9
    assert taken.sample() is first


def test_processor_time_is_a_share_of_one_core_from_the_first_sample_of_a_process_on():
    clock = Clock()
    taken = Usage(clock)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        clock.s += resource_usage.CHILDREN_S
        taken.sample()
        first = taken.processes[child.pid].cpu_percent
        assert eventually(lambda: sum(psutil.Process(child.pid).cpu_times()[:2]) > 0.5, 30.0)
        clock.s += resource_usage.SAMPLE_S
        total = taken.sample().cpu_percent
    finally:
        child.kill()
        child.wait()

    one = taken.processes[child.pid].cpu_percent
    assert first is None  # what it used before is not of this interval
    assert 0.0 < one < 115.0  # times come in steps of 10 ms
    assert total >= one


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
