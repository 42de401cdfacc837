"""The archive: what a station that takes a lost one's place gets back of its shard."""

import contextlib

from rookery.errors import CheckpointError, StalledError
from rookery.loops.station import Restore
from rookery.manage import checkpoint
from rookery.manage.checkpoint import Found, read_segments
from rookery.manage.saver import CHECKPOINTS, Saver
from rookery.replay.kept import apart
from rookery.types import Array

FLUSH_S = 30.0  # for the disk to take what is queued


class Archive:
    """Reads shards from the newest checkpoint, and has the saver go on from there."""

    def __init__(self, saver: Saver):
        self._saver = saver

    def recall(self, place: int) -> Restore | None:
        """Returns what to restore at this place; None where no checkpoint holds its rows."""
        with contextlib.suppress(StalledError):  # else one that is being written would come later
            self._saver.flush(FLUSH_S)
        found, _, _ = checkpoint.newest(self._saver.run_dir / CHECKPOINTS)
        kept = None
        if found is not None and found.manifest["about"]["replay"]:
            try:
                kept = _shard(found, place)
            except CheckpointError:  # pruned while it was read
                kept = None
        self._saver.rewind(place, int(kept.numbers["committed"]) if kept is not None else 0)
        return kept


def _shard(found: Found, place: int) -> Restore | None:
    arrays: dict[str, Array] = {
        name.partition(":")[2]: array
        for name, array in found.arrays().items()
        if name.startswith("pool:")
    }
    states = apart(found.state()["pool"], arrays)
    if place >= len(states):
        return None
    return Restore(*states[place], tuple(read_segments(found.segments(), place)))
