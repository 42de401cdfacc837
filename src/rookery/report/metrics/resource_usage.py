"""Processor time and memory of a run's processes."""

from collections.abc import Callable
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
        self._family: list[psutil.Process] = []
        self._listed_at = self._sampled_at = -float("inf")
        self._spent: dict[int, float] = {}  # pid → processor seconds at the last sample
        self._taken = Taken(None, 0.0)
        self.processes: dict[int, Taken] = {}  # by pid, at the last sample
        self.sample()  # the first percentage needs something to count from

    def sample(self) -> Taken:
        """Returns CPU and memory use; a sample younger than a second is returned again."""
        now = self._now()
        if now - self._sampled_at >= SAMPLE_S:
            self._look(now)
        return self._taken

    def _look(self, now: float) -> None:
        if now - self._listed_at >= CHILDREN_S:
            me = psutil.Process()
            self._family, self._listed_at = [me, *me.children(recursive=True)], now
        read = self._read()
        percents = {
            pid: 100.0 * max(0.0, seconds - self._spent[pid]) / (now - self._sampled_at)
            for pid, (seconds, _) in read.items()
            if pid in self._spent  # what a new one used before is not of this interval
        }
        self.processes = {pid: Taken(percents.get(pid), size) for pid, (_, size) in read.items()}
        total = sum(percents.values()) if self._spent else None
        self._taken = Taken(total, sum(size for _, size in read.values()))
        self._sampled_at, self._spent = now, {pid: seconds for pid, (seconds, _) in read.items()}

    def _read(self) -> dict[int, tuple[float, float]]:
        """Returns CPU seconds and resident memory in megabytes by pid."""
        found = {}
        for process in self._family:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:  # it ended since it was listed
                continue
            found[process.pid] = (times.user + times.system, memory.rss / 2**20)
        return found
