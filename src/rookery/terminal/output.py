"""Text output of a command to a terminal, a file, or a pipe that its reader may close early."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rookery.errors import ConfigError


def say(*lines: str) -> None:
    """Prints lines to standard output at once; a closed pipe (`| head`) is not an error."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        _discard_output()


def notice(message: str) -> None:
    """Writes one line to standard error, for progress and warnings."""
    sys.stderr.write(f"rookery: {message}\n")
    sys.stderr.flush()


def say_json(answer: Mapping[str, Any]) -> None:
    """Prints a command's result as a JSON object on one line."""
    say(json.dumps(answer))


def answer(args: argparse.Namespace, found: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Prints a command's result: `found` with the flag --json, otherwise the lines of text."""
    if args.json:
        say_json(found)
    else:
        say(*lines)


def write(path: Path, flag: str, lines: Iterable[str]) -> None:
    """Writes lines to a file, and makes its folder if that is missing.

    If that fails, raises `ConfigError` with a message that names `flag`, the command-line option
    that sets the path.
    """
    from rookery.report.trackers.whole_lines import replace

    with reported(path, flag):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, lines)


def prepare(out: Path, what: str) -> None:
    """Makes the folder of a command's output file --out, before the command does its work.

    Raises `ConfigError` if that fails, or if `out` is itself a folder; `what` names the output in
    the message, such as "a video".
    """
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; {what} is a file; name one with --out")
    with reported(out):
        out.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def reported(out: Path, flag: str = "--out") -> Iterator[None]:
    """Context that converts an `OSError` to a `ConfigError` that names the file and its flag."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(out)!r}: {error.strerror or error}; choose another file with {flag}"
        ) from error


def flush() -> None:
    """Flushes standard output; a closed pipe is not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()


def tolerate() -> None:
    """Makes stdout and stderr print backslash escapes for characters that they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def table(rows: Iterable[Sequence[str]], *, indent: str = "  ") -> list[str]:
    """Formats rows of cells as text lines with aligned columns; the last column is not padded."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (indent + "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def size(count: float) -> str:
    """Formats a number of bytes: 1536 → "1.5 KB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def _discard_output() -> None:
    # The interpreter flushes once more at exit; the descriptor must still be valid.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
