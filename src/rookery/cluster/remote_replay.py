"""Replay buffer of a cluster run: the learner samples batches from the shards of all hosts.

A shard is the part of the replay buffer on one host; a row is one stored env step. In sync mode the
learner requests a batch when it needs it, so that a run is reproducible from its seed. In async
mode it requests batches in advance, several per message, so that it does not wait for the network;
priorities are then a few batches old. If runs sample from each other's replay buffers
(`sharing/cluster_sharing.py`), a training batch also contains rows of other runs, and a batch
requested in advance is then larger than needed: a random part of it is used.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import VerifiedCheckpoint, read_segments
from rookery.checkpoints.saver import CHECKPOINTS, SEGMENT_BYTES, Saver
from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.messages import AdoptRows, CopyRows, RestoreShard, SaveShard
from rookery.config.schema import Config, Mode
from rookery.errors import CheckpointError, EmptyReplayError
from rookery.learner.weight_store import WeightStore
from rookery.replay import saved_rows
from rookery.replay.batches import picked
from rookery.replay.ring import row_bytes, schema_of
from rookery.replay.sampler import SAMPLERS
from rookery.replay.saved_rows import ReplayState, RowBlock, SavedReplay
from rookery.replay.shards import PendingBatch, ReplayShards
from rookery.types import Array, ArrayBatch, Rows, below

if TYPE_CHECKING:
    from torch import Tensor

PACK = 8  # batches asked for in one message
AHEAD = 2  # such messages on their way, at least
FLUSH_S = 30.0  # for the disk to take what is queued, before a lost shard is read

Recall: TypeAlias = Callable[[int], RestoreShard | None]  # by the place of a host


class RemoteReplay(ReplayShards):
    """Replay buffer whose shards (parts) are on the hosts of a cluster; used by the learner."""

    def __init__(self, group: ClusterActors, rng: np.random.Generator):
        super().__init__(group.handles, SAMPLERS[group.config.replay.sampling], rng)
        self.group = group
        self.version = 0  # hosts get it with the weights
        self._ahead: deque[PendingBatch] = deque()
        self._errors: list[tuple[Rows, Array]] = []  # not sent yet

    def fetch(self) -> list[RowBlock]:
        """Returns copies of the rows (stored env steps) that the last call of `insert` counted.

        Rows of a host that was lost since then are missing.
        """
        orders = []
        for handle in self.group.handles:
            count = sum(report.inserted.count for report in handle.inserted)
            first = max(0, handle.status.extent.committed - count)
            orders.append(CopyRows(first) if count else None)
        return [block for block in self.group.ask(orders) if isinstance(block, RowBlock)]

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrayBatch:
        while True:
            self._wait_for_rows()
            try:
                taken = self._draw(batch, beta)
            except EmptyReplayError:
                if self._drawable:
                    raise
                continue  # all hosts were lost, or fell silent, meanwhile
            if taken is not None:
                return taken

    def _draw(self, batch: int, beta: float) -> ArrayBatch | None:
        """Returns a sampled batch; None if no host returned rows for it.

        In async mode takes the oldest batch that was requested in advance; otherwise requests one
        now.
        """
        if self.group.config.run.mode is not Mode.ASYNC:
            self.group.settle()  # the spread of each shard must be known exactly
            return super().sample(batch, beta=beta)
        self._ask_ahead(max(batch, self.group.config.replay.batch_size))
        taken = self.deck.take(self.shards, self._ahead.popleft(), beta)
        return self._some(taken, batch) if taken.rows.size else None

    def _some(self, taken: ArrayBatch, batch: int) -> ArrayBatch:
        """Returns `batch` random samples of a batch that has more; otherwise the whole batch.

        Dropping the last samples would bias the batch: prioritized samples are in the order of
        their strata (intervals of the summed priorities). Importance weights are scaled to a
        maximum of 1.
        """
        if taken.rows.size <= batch:
            return taken
        some = picked(taken, self.deck.rng.permutation(taken.rows.size)[:batch])
        return some._replace(weight=some.weight / some.weight.max())

    @property
    def _drawable(self) -> bool:
        return any(shard.spread > 0 for shard in self.shards)

    def _wait_for_rows(self) -> None:
        """Lets actors play until at least one host has stored env steps that can be sampled."""
        while not self._drawable:
            self.group.hold_open()

    def _ask_ahead(self, batch: int) -> None:
        if len(self._ahead) > PACK * (AHEAD - 1):
            return
        self._send_errors()
        while len(self._ahead) < PACK * AHEAD:
            self._ahead += [self.deck.want(self.shards, batch) for _ in range(PACK)]
            for handle in self.group.handles:
                handle.post()

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sends the new TD errors of sampled rows to the hosts that store the rows.

        In async mode they are sent with the next sampling requests.
        """
        self._errors.append((rows, np.asarray(td_error)))
        if self.group.config.run.mode is not Mode.ASYNC:
            self._send_errors()

    def _send_errors(self) -> None:
        if self._errors:
            rows, errors = map(np.concatenate, zip(*self._errors, strict=True))
            self._errors = []
            super().update_priorities(rows, errors)

    def unsaved(self, saved: Sequence[int]) -> list[RowBlock | None]:
        """Returns copies of the rows (env steps) that no checkpoint file holds yet, by shard.

        In async mode the learner does not wait for a host that is silent: there is None in place of
        its rows, and a copy that arrives late is returned by the next call. There are at most
        64 MiB of rows of each shard, so that a host is not silent for long while it sends them.
        """
        if self.group.config.run.mode is not Mode.ASYNC:
            blocks = self.group.ask([CopyRows(row) for row in saved])
            return [block if isinstance(block, RowBlock) else None for block in blocks]
        most = max(1, SEGMENT_BYTES // row_bytes(schema_of(self.group.spec)))
        handles = self.group.handles[: len(saved)]
        for handle, row in zip(handles, saved, strict=True):
            handle.request_copy(CopyRows(row, most))
        while any(handle.copying for handle in handles):
            self.group.wait_a_little()
        return [handle.take_copy(row) for handle, row in zip(handles, saved, strict=True)]

    def save(self, saved: Sequence[int]) -> ReplayState:
        answers = self.group.ask([SaveShard(row) for row in saved])
        states = [answer for answer in answers if isinstance(answer, ReplayState)]
        return saved_rows.combined(states, self.deck.rng)

    def resume(self, saved: SavedReplay) -> None:
        """Restores the replay buffer from a checkpoint.

        If the number of shards (parts on hosts) has changed, the stored env steps are
        redistributed.
        """
        self.deck.rng, states = saved.rng, saved.states
        if len(states) == len(self.shards):
            parts = zip(states, saved.segments, strict=True)
            self.group.ask([RestoreShard(*state, tuple(own)) for state, own in parts])
            return
        for divided in saved.redistributed(len(self.shards)):
            self.group.ask([AdoptRows(part) for part in divided])

    def close(self) -> None:
        """Does nothing: the host workers close their parts of the replay buffer."""


class ClusterWeightStore(WeightStore):
    """Weight store that also sends every published version to the hosts of a cluster."""

    group: ClusterActors | None = None  # once it is built

    def publish(self, arrays: Mapping[str, Array], *, version: int | None = None) -> int:
        version = super().publish(arrays, version=version)
        if self.group is not None:
            self.group.spread(version, arrays)
        return version


# Recovery of a lost host's shard from the newest checkpoint.


def recall_of(config: Config, saver: Saver | None) -> Recall | None:
    """Returns a function that reads a lost host's replay shard from the newest checkpoint.

    The function takes the host's number. Returns None if checkpoints contain no replay shards: in
    runs without a checkpoint saver, and for on-policy algorithms, whose rollouts are stored by the
    learner.
    """
    return None if saver is None or config.algo.on_policy else partial(recall, saver)


def recall(saver: Saver, place: int) -> RestoreShard | None:
    """Returns the saved replay shard of host number `place`; None if no checkpoint has it.

    The checkpoint saver then deletes the shard's rows (env steps) that it saved after that
    checkpoint: the restored shard gives their row numbers to new rows.
    """
    with contextlib.suppress(CheckpointError):  # else one that is being written would come later
        saver.flush(FLUSH_S)
    found, _, _ = checkpoint.newest(saver.run_dir / CHECKPOINTS)
    kept, row = None, 0
    if found is not None and found.manifest["about"]["replay"]:
        with contextlib.suppress(CheckpointError):  # pruned while it was read
            kept = _shard(found, place)
            row = kept.committed if kept is not None and not found.damaged else 0
    saver.rewind(place, row)
    return kept


def _shard(found: VerifiedCheckpoint, place: int) -> RestoreShard | None:
    saved = SavedReplay(found.state()["replay"], below("replay:", found.arrays()), ())
    if place >= len(saved.states):
        return None
    return RestoreShard(*saved.states[place], tuple(read_segments(found.segments(), place)))
