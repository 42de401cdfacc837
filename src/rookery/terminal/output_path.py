"""Checks of a command's output path, before the command's work and while it writes the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.errors import ConfigError


def prepare(out: Path, what: str) -> None:
    """Makes the folder of an output file; raises `ConfigError` if that is not possible."""
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
