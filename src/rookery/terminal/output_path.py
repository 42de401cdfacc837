"""Checks that a command can write its output file, so that errors name the flag --out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.errors import ConfigError


def prepare(out: Path, what: str) -> None:
    """Makes the folder of a command's output file, before the command does its work.

    Raises `ConfigError` if that fails, or if `out` is itself a folder; `what` names the output in
    the message, such as "a video".
    """
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; {what} is a file; name one with --out")
    with reported(out):
        out.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def reported(out: Path) -> Iterator[None]:
    """Context that converts an `OSError` to a `ConfigError` that names the file and --out."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(out)!r}: {error.strerror or error}; choose another file with --out"
        ) from error
