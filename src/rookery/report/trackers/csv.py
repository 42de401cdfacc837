"""progress.csv: one row for each log mark, in columns that spreadsheets and SB3's readers know."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rookery.event import Evaluated, Event, Logged
from rookery.report.metrics.metric_names import KNOWN, evaluation
from rookery.report.trackers import whole_lines

NAME = "progress.csv"
COUNTED = ("env_steps", "learner_steps", "episodes", "wall_s")


class Csv:
    """Writes progress.csv; the newest evaluation is repeated in every row until the next."""

    def __init__(self, run_dir: Path):
        self._lines = whole_lines.Lines(run_dir / NAME)
        rows = [parse(line) for line in whole_lines.read(run_dir / NAME)]
        self._names = rows[0] if rows else [*COUNTED, *KNOWN]
        self._evaluation: Mapping[str, float | str] = {}
        if not rows:
            self._lines.append(_line(self._names))
        elif len(rows) > 1:
            last = dict(zip(self._names, rows[-1], strict=False))
            self._evaluation = {key: last[key] for key in last if key.startswith("eval/")}

    def write(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self._evaluation = evaluation(event)
        elif isinstance(event, Logged):
            self._add({**asdict(event.counters), "wall_s": event.wall_s, **event.metrics})

    def close(self) -> None:
        self._lines.close()

    def _add(self, row: Mapping[str, float]) -> None:
        self._widen(sorted(row.keys() - set(self._names)))
        whole: Mapping[str, float | str] = {**self._evaluation, **row}
        self._lines.append(_line([_cell(whole.get(name, "")) for name in self._names]))

    def _widen(self, fresh: list[str]) -> None:
        """Adds columns at the right; rows written before them get empty cells."""
        if not fresh:
            return
        names, *rows = [parse(line) for line in whole_lines.read(self._lines.path)]
        empty = [""] * len(fresh)
        table = [[*names, *fresh], *([*row, *empty] for row in rows)]
        self._lines.replace([_line(row) for row in table])
        self._names = table[0]


def parse(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else repr(float(value))
