"""Takes a run's record back to a mark, so that a resumed run does not write its steps twice."""

from pathlib import Path

from rookery.report.trackers import csv, jsonl, timeline_file, whole_lines


def cut(run_dir: Path, env_steps: int, *, unjudged: int | None = None) -> None:
    """Drops every line of the files of lines past `env_steps`, and torn ones.

    Evaluations from the mark `unjudged` on will be made again, so they are dropped too.
    Each file changes in one step or not at all. To be called before the sinks are opened.
    """
    _cut_jsonl(run_dir / jsonl.NAME, env_steps, unjudged)
    _cut_jsonl(run_dir / timeline_file.NAME, env_steps, None)
    _cut_csv(run_dir / csv.NAME, env_steps)


def _cut_jsonl(path: Path, env_steps: int, unjudged: int | None) -> None:
    if not path.exists():
        return
    parsed = [(line, jsonl.parse(line)) for line in whole_lines.read(path)]
    kept = [
        line
        for line, entry in parsed
        if entry
        and entry["env_steps"] <= env_steps
        and not (
            unjudged is not None
            and entry["event"] == "evaluated"
            and entry["env_steps"] >= unjudged
        )
    ]
    whole_lines.replace(path, kept)


def _cut_csv(path: Path, env_steps: int) -> None:
    rows = whole_lines.read(path)
    if not rows:
        path.unlink(missing_ok=True)  # a header that was never finished
        return
    names = csv.parse(rows[0])
    if "env_steps" not in names:  # not ours to shorten
        return
    at = names.index("env_steps")
    kept = [row for row in rows[1:] if _reached(csv.parse(row), at, len(names), env_steps)]
    whole_lines.replace(path, [rows[0], *kept])


def _reached(cells: list[str], at: int, width: int, env_steps: int) -> bool:
    return len(cells) == width and cells[at].isdigit() and int(cells[at]) <= env_steps
