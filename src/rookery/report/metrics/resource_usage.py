"""What a run takes of its machine."""

from collections.abc import Callable
from typing import NamedTuple

import psutil

SAMPLE_S = 1.0  # a younger sample is given again
CHILDREN_S = 10.0  # listing children walks over every process of the machine


class Taken(NamedTuple):
    """Of this process and all below it, together."""

    cpu_percent: float | None  # 100 is one core kept busy since the sample before
    memory_mb: float  # resident; pages that processes share are counted in each


class Usage:
    """Samples processor time and memory, cheaply enough to be asked at every log mark."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._family: list[psutil.Process] = []
        self._listed_at = -float("inf")
        self._spent: dict[int, float] = {}  # pid → processor seconds at the last sample
        self._sampled_at: float | None = None
        self._taken = Taken(None, 0.0)
        self._resident: dict[int, int] = {}  # pid → bytes
        self.processes: dict[int, Taken] = {}  # by pid, at the last sample
        self.sample()  # the first percentage needs something to count from

    def sample(self) -> Taken:
        """Returns what is taken now, or was within the last second."""
        now = self._now()
        if self._sampled_at is None or now - self._sampled_at >= SAMPLE_S:
            self._taken = self._look(now)
        return self._taken

    def _look(self, now: float) -> Taken:
        if now - self._listed_at >= CHILDREN_S:
            me = psutil.Process()
            self._family, self._listed_at = [me, *me.children(recursive=True)], now
        spent, resident = self._read()
        burnt = sum(max(0.0, spent[pid] - self._spent.get(pid, spent[pid])) for pid in spent)

        since, before = self._sampled_at, self._spent
        self._sampled_at, self._spent = now, spent
        self.processes = {
            pid: Taken(_percent(seconds, before.get(pid), since, now), self._mb(pid))
            for pid, seconds in spent.items()
        }
        percent = None if since is None else 100.0 * burnt / (now - since)
        return Taken(percent, resident / 2**20)

    def _mb(self, pid: int) -> float:
        return self._resident.get(pid, 0) / 2**20

    def _read(self) -> tuple[dict[int, float], int]:
        spent, resident = {}, 0
        for process in self._family:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:  # it ended since it was listed
                continue
            spent[process.pid] = times.user + times.system
            resident += memory.rss
            self._resident[process.pid] = memory.rss
        return spent, resident


def _percent(spent: float, before: float | None, since: float | None, now: float) -> float | None:
    if before is None or since is None:
        return None
    return 100.0 * max(0.0, spent - before) / (now - since)
