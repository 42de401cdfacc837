"""Resources of this machine: CPU cores, memory, shared memory, file descriptors, GPUs.

Inside a container they are the limits of the control group (cgroup), not those of the host.
"""

import math
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")


class Space(NamedTuple):
    """Total and free bytes of a memory or disk."""

    total: int
    free: int


class Gpu(NamedTuple):
    """A CUDA device: its number, name and total memory in bytes."""

    number: int
    name: str
    memory: int  # bytes


def cores(root: Path = CGROUPS) -> int:
    """Returns how many CPU cores this process may use, at least 1."""
    quota = cpu_quota(root)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.floor(min(allowed or 1, quota if quota is not None else math.inf)))


def cpu_quota(root: Path = CGROUPS) -> float | None:
    """Returns the CPU quota of this process's control groups, in cores; None without a quota."""
    quotas = [
        int(words[0]) / int(words[1])
        for folder in _groups(root)
        if len(words := _words(folder / "cpu.max")) == 2 and words[0] != "max"
    ]
    old = _words(root / "cpu" / "cpu.cfs_quota_us") + _words(root / "cpu" / "cpu.cfs_period_us")
    if len(old) == 2 and int(old[0]) > 0:
        quotas.append(int(old[0]) / int(old[1]))
    return min(quotas, default=None)


def memory(root: Path = CGROUPS) -> Space:
    """Returns total memory, and memory that is available to this process, in bytes."""
    import psutil

    host = psutil.virtual_memory()
    total, free = int(host.total), int(host.available)
    for folder in _groups(root):
        limit, used = _words(folder / "memory.max"), _words(folder / "memory.current")
        if limit and used and limit[0] != "max":
            total, free = min(total, int(limit[0])), min(free, int(limit[0]) - int(used[0]))
    return Space(total, max(0, free))


def space(folder: Path) -> Space:
    """Returns total and free bytes of the file system that contains a folder."""
    usage = shutil.disk_usage(folder)
    return Space(usage.total, usage.free)


def descriptors() -> tuple[int, int]:
    """Returns the soft and hard limit of open files of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files() -> int:
    """Returns how many files this process has open; 0 if unknown (no /proc)."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0


def unnamed_files(folder: Path) -> bool:
    """Returns whether a folder supports files without a name (O_TMPFILE)."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600))
    except (OSError, AttributeError):  # the latter on macOS
        return False
    return True


def gpus() -> list[Gpu]:
    """Returns the CUDA devices that torch can use. Imports torch."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver that is too old counts as no GPU
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    every = [(number, torch.cuda.get_device_properties(number)) for number in range(found)]
    return [Gpu(number, about.name, about.total_memory) for number, about in every]


def gpu_memory(number: int) -> Space:
    """Returns total and free memory of a CUDA device.

    Imports torch and creates a CUDA context, which itself occupies some of that memory.
    """
    import torch

    free, total = torch.cuda.mem_get_info(number)
    return Space(total, free)


def _groups(root: Path) -> Iterator[Path]:
    """Yields the folders of this process's control group and of its parents (cgroup v2)."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            own = root / line[3:].lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))
            return
    yield root


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
