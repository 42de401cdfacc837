"""metrics.jsonl: one JSON object for each logged event (`KEPT`).

    {"event": "logged", "env_steps": 1000, "learner_steps": 0, "episodes": 45, "wall_s": 0.4,
     "metrics": {"rollout/ep_rew_mean": 22.1, ...}}

Lines are in the order of arrival: an evaluation arrives after it was due, so env_steps may
decrease.
"""

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rookery.event import Evaluated, Event, Logged, Saved, Stopped, Warned
from rookery.report.trackers import whole_lines

NAME = "metrics.jsonl"
KEPT = (Logged, Evaluated, Saved, Warned, Stopped)


class Jsonl:
    """Writes metrics.jsonl."""

    def __init__(self, run_dir: Path):
        self._lines = whole_lines.Lines(run_dir / NAME)

    def write(self, event: Event) -> None:
        if isinstance(event, KEPT):
            self._lines.append(line(event))

    def close(self) -> None:
        self._lines.close()


def line(event: Event) -> str:
    """Returns an event as one line of JSON."""
    return json.dumps(_finite(record(event)), allow_nan=False, default=_plain)


def record(event: Event) -> dict[str, Any]:
    """Flattens an event: its kind, its counters, then its other fields."""
    rest = {f.name: getattr(event, f.name) for f in fields(event) if f.name != "counters"}
    if isinstance(event, Evaluated):
        rest["score"] = event.score
    return {"event": type(event).__name__.lower(), **asdict(event.counters), **rest}


def read(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's metrics.jsonl; what cannot be read is left out."""
    return Follower(run_dir).fresh()


def parse(text: str) -> dict[str, Any] | None:
    """Returns the entry of one line, or None if the line is not valid."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and isinstance(entry.get("env_steps"), int)
    return entry if whole else None


class Follower:
    """Reads the new entries of a metrics.jsonl that is still being written."""

    def __init__(self, run_dir: Path):
        self._path, self._at = run_dir / NAME, 0

    def fresh(self) -> list[dict[str, Any]]:
        """Returns the entries since the last call; an unfinished line is left for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._at += len(whole) + len(newline)
        found = [parse(line) for line in whole.decode("utf-8", "replace").split("\n")]
        return [entry for entry in found if entry is not None]


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity by None, since JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """Converts numpy scalars, which environments may return, and anything else to text."""
    return _finite(value.item()) if hasattr(value, "item") else str(value)
