"""What a command prints: to a terminal, a file, or a pipe whose reader may have left."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError


def say(*lines: str) -> None:
    """Prints lines at once; a reader that has gone away (`| head`) is not an error."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        _into_the_void()


def say_json(answer: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    say(json.dumps(answer))


def write(path: Path, flag: str, lines: Iterable[str]) -> None:
    """Writes a file the user asked for, its folder too; `flag` is where its name came from."""
    from rookery.report.lines import replace

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, lines)
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(path)!r}: {error.strerror}; choose another file with {flag}"
        ) from error


def flush() -> None:
    """Empties the streams now, where a closed pipe can still be kept quiet."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _into_the_void()


def tolerate() -> None:
    """Lets a terminal that is not UTF-8 show any text, foreign signs as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def table(rows: Iterable[Sequence[str]], *, indent: str = "  ") -> list[str]:
    """Lays rows out in columns; the last column is as wide as it likes."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (indent + "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def size(count: float) -> str:
    """Says a number of bytes: 1536 → "1.5 KB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def _into_the_void() -> None:
    # The interpreter flushes once more when it ends; the descriptor must take that.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
