"""Where a command writes its file: refused before the work, or reported after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rookery.errors import ConfigError


def prepare(out: Path, what: str) -> None:
    """Makes the folder of a file; what only writing can tell comes later."""
    if out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; {what} is a file; name one with --out")
    with reported(out):
        out.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def reported(out: Path) -> Iterator[None]:
    """Turns what the disk refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(out)!r}: {error.strerror or error}; choose another file with --out"
        ) from error
