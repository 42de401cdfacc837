"""Folders of checkpoints that components save to: one for each save, the newest ones stay."""

from pathlib import Path

from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content, VerifiedCheckpoint
from rookery.errors import CheckpointError, ConfigError


def folder_of(path: str | Path | None, usual: str | Path | None, name: str) -> Path:
    """Returns the folder that is given here, or the usual one, which `name` was to give."""
    given = usual if path is None else path
    if given is None:
        raise ConfigError(f"this is saved in a folder, got none; give a path here, or {name}")
    return Path(given)


def write(parent: Path, number: int, content: Content, *, keep: int) -> Path:
    """Writes a checkpoint, whole or not at all; earlier ones go once this one is on the disk."""
    folder = checkpoint.write(parent, checkpoint.name_of(number), content)
    checkpoint.prune(parent, keep)
    return folder


def next_number(parent: Path) -> int:
    """Returns a number for a checkpoint that is newer than those in the folder."""
    return 1 + max((int(path.name.split("-")[1]) for path in checkpoint.folders(parent)), default=0)


def newest(parent: Path) -> VerifiedCheckpoint:
    """Returns the newest checkpoint that is whole; raises CheckpointError if there is none."""
    search = checkpoint.newest(parent)
    if search.found is None:
        raise CheckpointError(
            f"nothing in {str(parent)!r} is whole ({'; '.join(search.broken) or 'it has none'}); "
            "give the folder that was saved to"
        )
    return search.found
