"""Processor time and memory of a run's processes."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil

SAMPLE_S = 1.0  # a younger sample is given again
CHILDREN_S = 10.0  # listing children walks over every process of the machine


class Taken(NamedTuple):
    """Processor and memory use, of one process or of all processes of a run."""

    cpu_percent: float | None  # 100 is one core kept busy since the sample before
    memory_mb: float  # resident; pages that processes share are counted in each


class Usage:
    """Samples CPU time and memory of the run's processes, at most once a second."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._family: list[psutil.Process] = []  # each remembers its CPU time at the last sample
        self._listed_at = self._sampled_at = -float("inf")
        self._taken = Taken(None, 0.0)
        self.processes: dict[int, Taken] = {}  # by pid, at the last sample
        self.sample()  # the first percentage needs something to count from

    def sample(self) -> Taken:
        """Returns CPU and memory use; a sample younger than a second is returned again."""
        now = self._now()
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            if now - self._listed_at >= CHILDREN_S:
                self._list(now)
            self._look()
        return self._taken

    def _list(self, now: float) -> None:
        me, known = psutil.Process(), {process: process for process in self._family}
        listed = [me, *me.children(recursive=True)]
        self._family, self._listed_at = [known.get(each, each) for each in listed], now

    def _look(self) -> None:
        before, self.processes = self.processes, {}
        for process in self._family:
            with suppress(psutil.Error):  # it ended since it was listed
                percent, memory = process.cpu_percent(), process.memory_info().rss / 2**20
                # what a new process used before is not of this interval
                self.processes[process.pid] = Taken(
                    percent if process.pid in before else None, memory
                )
        every = self.processes.values()
        total = sum(one.cpu_percent or 0.0 for one in every) if before else None
        self._taken = Taken(total, sum(one.memory_mb for one in every))
