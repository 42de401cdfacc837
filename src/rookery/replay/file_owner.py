"""Identity of the process that owns a file, unambiguous after pid reuse and reboots."""

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STARTED_FIELD = 19  # of /proc/PID/stat, counted after the command's closing bracket


class Owner(NamedTuple):
    """Identity of a process: its pid, its start time (clock ticks since boot) and the boot id.

    On systems without /proc the start time is wall-clock time and the boot id is zero.
    """

    pid: int
    started: int
    boot: bytes  # 16 bytes

    @classmethod
    def this(cls) -> "Owner":
        """Returns the identity of the calling process."""
        return cls(pid=os.getpid(), started=_started(os.getpid()) or 0, boot=_boot())

    @property
    def alive(self) -> bool:
        """True if the process still runs; False if it has ended or the host was rebooted."""
        return self.boot == _boot() and _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    """Returns the start time of a process, or None if it has ended or is a zombie."""
    if not _PROC.is_dir():
        return _started_by_clock(pid)
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()  # a command may be cut within a letter
    except (FileNotFoundError, ProcessLookupError):  # the latter: it went while being read
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[_STARTED_FIELD])


def _started_by_clock(pid: int) -> int | None:
    import psutil  # where there is no /proc: macOS

    try:
        process = psutil.Process(pid)
        zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if zombie else int(process.create_time() * 100)
    except psutil.NoSuchProcess:
        return None


def _boot() -> bytes:
    try:
        text = (_PROC / "sys/kernel/random/boot_id").read_text()
    except FileNotFoundError:
        return bytes(16)
    return bytes.fromhex(text.strip().replace("-", ""))
