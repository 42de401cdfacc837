"""Cuts a run's log files back to a checkpoint, so that a resumed run does not log steps twice."""

from pathlib import Path

from rookery.errors import CheckpointError
from rookery.report.trackers import csv, jsonl, timeline_file, whole_lines


def cut(run_dir: Path, env_steps: int, *, unevaluated: int | None = None) -> None:
    """Drops the lines of log files that are later than `env_steps`, and incomplete ones.

    Evaluations from `unevaluated` env steps on will be repeated, so they are dropped too.
    Each file changes in one step or not at all. To be called before the sinks are opened. Raises
    CheckpointError for a file that cannot be read or replaced.
    """
    try:
        _cut_jsonl(run_dir / jsonl.NAME, env_steps, unevaluated)
        _cut_jsonl(run_dir / timeline_file.NAME, env_steps, None)
        _cut_csv(run_dir / csv.NAME, env_steps)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename} cannot be cut back to env step {env_steps} ({error.strerror}); move "
            "it out of the run folder, or make it readable and writable, and resume again"
        ) from error


def _cut_jsonl(path: Path, env_steps: int, unevaluated: int | None) -> None:
    if not path.exists():
        return

    def is_kept(line: str) -> bool:
        entry = jsonl.parse(line)
        if entry is None or entry["env_steps"] > env_steps:
            return False
        again = unevaluated is not None and entry["env_steps"] >= unevaluated
        return not (again and entry["event"] == "evaluated")

    whole_lines.replace(path, filter(is_kept, whole_lines.read(path)))


def _cut_csv(path: Path, env_steps: int) -> None:
    rows = whole_lines.read(path)
    if not rows:
        path.unlink(missing_ok=True)  # a header that was never finished
        return
    names = csv.parse(rows[0])
    if "env_steps" not in names:  # not ours to shorten
        return
    at = names.index("env_steps")

    def is_kept(row: str) -> bool:
        cells = csv.parse(row)
        return len(cells) == len(names) and cells[at].isdigit() and int(cells[at]) <= env_steps

    whole_lines.replace(path, [rows[0], *filter(is_kept, rows[1:])])
