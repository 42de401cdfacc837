"""The archive: what a station that takes a lost one's place gets back of its shard."""

from rookery.errors import CheckpointError
from rookery.loops.station import Restore
from rookery.manage import checkpoint
from rookery.manage.checkpoint import Found, read_segments
from rookery.manage.saver import CHECKPOINTS, Saver
from rookery.replay.kept import apart
from rookery.types import Array


class Archive:
    """Reads shards from the newest checkpoint, and has the saver go on from there."""

    def __init__(self, saver: Saver):
        self._saver = saver

    def recall(self, place: int) -> Restore | None:
        """Returns what to restore at this place; None where no checkpoint holds its rows."""
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
