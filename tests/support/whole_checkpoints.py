"""Checks that a checkpoint is whole, its files of replay rows included.

found = intact(folder)
"""

from pathlib import Path

from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import VerifiedCheckpoint
from rookery.errors import CheckpointError


def intact(folder: Path) -> VerifiedCheckpoint:
    """Returns a checkpoint; raises CheckpointError with the reason if any file is damaged."""
    found = checkpoint.verify(folder)
    for reason in found.damaged.values():
        raise CheckpointError(reason)
    return found
