"""A run's record, read while it is being written."""

from pathlib import Path
from typing import Any

from rookery.report.trackers import jsonl


class Follower:
    """Reads what was added to metrics.jsonl since it last looked."""

    def __init__(self, run_dir: Path):
        self._path, self._at = run_dir / jsonl.NAME, 0

    def fresh(self) -> list[dict[str, Any]]:
        """Returns whole entries; the rest of a line that is being written waits for the next."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._at += len(whole) + len(newline)
        found = [jsonl.parse(line) for line in whole.decode("utf-8", "replace").split("\n")]
        return [entry for entry in found if entry is not None]
