"""Owners: which process a file belongs to, in a form that survives pid reuse and reboots."""

import os
import time
from pathlib import Path
from typing import NamedTuple

_STARTED_FIELD = 19  # of /proc/PID/stat, counted after the command's closing bracket


class Owner(NamedTuple):
    """A process: its pid, when it started (clock ticks since boot), and which boot that was."""

    pid: int
    started: int
    boot: bytes  # 16 bytes

    @classmethod
    def this(cls) -> "Owner":
        """Returns the calling process."""
        return cls(pid=os.getpid(), started=_started(os.getpid()) or 0, boot=_boot())

    @property
    def alive(self) -> bool:
        """False only where the owner is provably gone."""
        return self.boot == _boot() and _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[_STARTED_FIELD])


def _boot() -> bytes:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except FileNotFoundError:  # not Linux: the boot time to the minute tells boots apart
        return int((time.time() - time.monotonic()) / 60).to_bytes(16, "little")
    return bytes.fromhex(text.strip().replace("-", ""))
