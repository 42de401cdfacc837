"""Rows of SB3's replay buffer, numbered from 0, for the files of checkpoints.

    rows = ReplayRows(model)
    rows.blocks(saved)          # rows from number `saved` on, to be written to files
    rows.restore(numbers, segments)

A row is one step of all environments: row r is at index r % buffer_size of the buffer's arrays.
Environments are not saved, so a resumed run begins new episodes. The last row before that is marked
as the end of its episode by a time limit, since an n-step return must not go on to the next row.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rookery.checkpoints.checkpoint import Segment, read_segments
from rookery.checkpoints.saver import SEGMENT_BYTES
from rookery.replay.saved_rows import RowBlock
from rookery.sb3.shared_buffer import stored_arrays
from rookery.types import JsonObject, SavedState


class ReplayRows:
    """Saves and restores the rows of a model's replay buffer."""

    def __init__(self, model: OffPolicyAlgorithm):
        assert model.replay_buffer is not None, "an off-policy model has replay"
        self._model, self._buffer = model, model.replay_buffer
        self._breaks: list[int] = []  # last rows before the run was resumed
        self._base = 0  # number of rows at env step 0 of this session, if none was lost

    @property
    def committed(self) -> int:
        """Number of rows that were ever stored, and so the number of the next row."""
        at_most = self._base + self._model.num_timesteps // self._buffer.n_envs
        return at_most - (at_most - self._buffer.pos) % self._buffer.buffer_size

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still stored."""
        return max(0, self.committed - self._buffer.buffer_size)

    def state(self) -> JsonObject:
        return {"first": self.oldest, "committed": self.committed, "breaks": self._breaks}

    def blocks(self, saved: int) -> Iterator[RowBlock]:
        """Yields copies of the rows from number `saved` on, in blocks of about 64 MiB."""
        arrays, size = stored_arrays(self._buffer), self._buffer.buffer_size
        width = sum(array[0].nbytes for array in arrays.values())
        length = max(1, SEGMENT_BYTES // width)
        for first in range(max(saved, self.oldest), self.committed, length):
            where = np.arange(first, min(first + length, self.committed)) % size
            yield RowBlock(first, {name: array[where] for name, array in arrays.items()})

    def restore(self, numbers: SavedState, segments: Sequence[Segment]) -> list[Segment]:
        """Restores the rows of a checkpoint; returns the files that the next one can link.

        Rows before a damaged file are left out. The others then get new numbers, and no file can be
        linked.
        """
        committed, first, linked = numbers["committed"], numbers["first"], list(segments)
        damaged = [segment for segment in segments if not segment.intact]
        moved = max((segment.last for segment in damaged), default=0)
        if damaged:
            first, linked = max(first, moved), []
        arrays, size = stored_arrays(self._buffer), self._buffer.buffer_size
        for begin, columns in read_segments([s for s in segments if s.first >= moved]):
            rows = np.arange(begin, begin + len(columns["reward"]))
            kept = (rows >= first) & (rows < committed)
            for name, column in columns.items():
                arrays[name][(rows[kept] - moved) % size] = column[kept]
        committed -= moved
        self._breaks = [row - moved for row in (*numbers["breaks"], committed + moved - 1)]
        self._breaks = [row for row in self._breaks if row >= max(0, committed - size)]
        self._base = committed - self._model.num_timesteps // self._buffer.n_envs
        self._buffer.pos, self._buffer.full = committed % size, committed >= size
        for row in self._breaks:
            _end_episode(self._buffer, row % size)
        return linked


def _end_episode(buffer: ReplayBuffer, index: int) -> None:
    """Ends the episodes of the environments at an index of the buffer's arrays.

    The end is that of a time limit, which changes no value of a single step. A buffer that does not
    store next observations has lost the last one: there the episode terminates, as in SB3.
    """
    if not buffer.optimize_memory_usage:
        buffer.timeouts[index][buffer.dones[index] == 0] = 1
    buffer.dones[index] = 1
