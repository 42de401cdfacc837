"""Text files without incomplete lines, even after a crash or on a full disk."""

import os
from collections.abc import Iterable
from pathlib import Path

from rookery.files import replacing


class Lines:
    """Appends lines; an incomplete line is removed before the next one is written.

    Opening drops what a killed writer left unfinished; an append the disk had no room for is
    taken back and raises.
    """

    def __init__(self, path: Path):
        self.path = path
        self._open()

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)
        self.size = self.path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(self.size)

    def append(self, line: str) -> None:
        """Adds one line; other processes see it at once."""
        data = f"{line}\n".encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(f"no room for {len(data)} more bytes in {self.path}")
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(data)

    def replace(self, lines: Iterable[str]) -> None:
        """Replaces all lines of the file by these."""
        replace(self.path, lines)
        self._file.close()
        self._open()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[str]:
    """Returns the finished lines of a file, none where there is no file."""
    if not path.exists():
        return []
    return path.read_text("utf-8", errors="replace").split("\n")[:-1]


def replace(path: Path, lines: Iterable[str]) -> None:
    """Writes a file in one step: a reader, or a crash, sees the old one or the new one."""
    with replacing(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
