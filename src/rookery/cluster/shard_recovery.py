"""Recovery of a lost host's replay shard (its part of replay) from the newest checkpoint."""

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import VerifiedCheckpoint, read_segments
from rookery.checkpoints.saver import CHECKPOINTS, Saver
from rookery.cluster.messages import RestoreShard
from rookery.config.schema import Config
from rookery.errors import CheckpointError
from rookery.replay.saved_rows import apart
from rookery.types import Array

FLUSH_S = 30.0  # for the disk to take what is queued

Recall: TypeAlias = Callable[[int], RestoreShard | None]  # by the place of a host


def recall_of(config: Config, saver: Saver | None) -> Recall | None:
    """Returns a function that reads a lost host's replay shard from the newest checkpoint.

    The function takes the host's number. Returns None if checkpoints contain no replay shards: in
    runs without a checkpoint saver, and for on-policy algorithms, whose rollouts are stored by the
    learner.
    """
    return None if saver is None or config.algo.on_policy else ShardRecovery(saver).recall


class ShardRecovery:
    """Reads replay shards (parts of replay) of lost hosts from the run's newest checkpoint."""

    def __init__(self, saver: Saver):
        self._saver = saver

    def recall(self, place: int) -> RestoreShard | None:
        """Returns the saved replay shard of host number `place`; None if no checkpoint has it.

        The checkpoint saver then deletes the shard's rows (env steps) that it saved after that
        checkpoint: the restored shard gives their row numbers to new rows.
        """
        with contextlib.suppress(
            CheckpointError
        ):  # else one that is being written would come later
            self._saver.flush(FLUSH_S)
        found, _, _ = checkpoint.newest(self._saver.run_dir / CHECKPOINTS)
        kept = None
        if found is not None and found.manifest["about"]["replay"]:
            try:
                kept = _shard(found, place)
            except CheckpointError:  # pruned while it was read
                kept = None
        whole = kept is not None and found is not None and not found.damaged
        self._saver.rewind(place, kept.committed if kept is not None and whole else 0)
        return kept


def _shard(found: VerifiedCheckpoint, place: int) -> RestoreShard | None:
    arrays: dict[str, Array] = {
        name.partition(":")[2]: array
        for name, array in found.arrays().items()
        if name.startswith("replay:")
    }
    states = apart(found.state()["replay"], arrays)
    if place >= len(states):
        return None
    return RestoreShard(*states[place], tuple(read_segments(found.segments(), place)))
