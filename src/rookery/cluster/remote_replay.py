"""Replay buffer of a cluster run: the learner samples batches from the shards of all hosts.

A shard is the part of the replay buffer on one host; a row is one stored env step. In sync mode the
learner requests a batch when it needs it, so that a run is reproducible from its seed. In async
mode it requests batches in advance, several per message, so that it does not wait for the network;
priorities are then a few batches old. If runs sample from each other's replay buffers
(`sharing/cluster_sharing.py`), a training batch also contains rows of other runs, and a batch
requested in advance is then larger than needed: a random part of it is used.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rookery.checkpoints.saver import SEGMENT_BYTES
from rookery.cluster.cluster_group import ClusterActors
from rookery.cluster.messages import AdoptRows, CopyRows, RestoreShard, SaveShard
from rookery.config.schema import Mode
from rookery.errors import EmptyReplayError
from rookery.learner.weight_store import WeightStore
from rookery.replay.batches import picked
from rookery.replay.replay import Inserted, Observed
from rookery.replay.ring import row_bytes, schema_of
from rookery.replay.sampler import SAMPLERS
from rookery.replay.saved_rows import (
    ReplayState,
    RowBlock,
    RowRange,
    SavedReplay,
    apart,
    combined,
    of_place,
    remembered,
    rng_of,
)
from rookery.replay.shards import (
    PendingBatch,
    ShardSampler,
    drawn,
    seen,
    together,
    update_priorities,
)
from rookery.types import Array, ArrayBatch, Rows

if TYPE_CHECKING:
    from torch import Tensor

PACK = 8  # batches asked for in one message
AHEAD = 2  # such messages on their way, at least


class RemoteReplay:
    """Replay buffer whose shards (parts) are on the hosts of a cluster; used by the learner."""

    def __init__(self, group: ClusterActors, rng: np.random.Generator):
        self.group = group
        self.version = 0  # hosts get it with the weights
        self.deck = ShardSampler(SAMPLERS[group.config.replay.sampling], rng)
        self._ahead: deque[PendingBatch] = deque()
        self._errors: list[tuple[Rows, Array]] = []  # not sent yet

    def insert(self) -> Inserted:
        """Returns how many rows the host workers have inserted into replay since the last call.

        A row is one stored env step. Host workers insert rows into their parts of replay by
        themselves and report the number, so this method inserts none.
        """
        return together([handle.insert() for handle in self.group.handles])

    def fetch(self) -> list[RowBlock]:
        """Returns copies of the rows (stored env steps) that the last call of `insert` counted.

        Rows of a host that was lost since then are missing.
        """
        counts = {b.place: sum(d.inserted.count for d in b.inserted) for b in self.group.handles}
        orders = {
            place: CopyRows(max(0, self.group.handles[place].status.extent.committed - count))
            for place, count in counts.items()
            if count
        }
        answers = self.group.ask(orders)
        blocks = [answers[place] for place in sorted(answers)]
        return [block for block in blocks if isinstance(block, RowBlock)]

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
            return drawn(self.deck, self.group.handles, batch, beta)
        self._ask_ahead(max(batch, self.group.config.replay.batch_size))
        taken = self.deck.take(self.group.handles, self._ahead.popleft(), beta)
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
        return any(handle.spread > 0 for handle in self.group.handles)

    def _wait_for_rows(self) -> None:
        """Lets actors play until at least one host has stored env steps that can be sampled."""
        while not self._drawable:
            self.group.hold_open()

    def _ask_ahead(self, batch: int) -> None:
        if len(self._ahead) > PACK * (AHEAD - 1):
            return
        self._send_errors()
        while len(self._ahead) < PACK * AHEAD:
            self._ahead += [self.deck.want(self.group.handles, batch) for _ in range(PACK)]
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
            rows, errors = zip(*self._errors, strict=True)
            self._errors = []
            update_priorities(self.group.handles, np.concatenate(rows), np.concatenate(errors))

    @property
    def stale(self) -> int:
        return sum(handle.status.stale for handle in self.group.handles)

    @property
    def fill(self) -> float:
        handles = self.group.handles
        return sum(handle.status.fill for handle in handles) / len(handles)

    def observed(self, inserted: Inserted) -> Observed:
        """Returns observations and returns of the rows inserted last, for running normalization."""
        parts = [part for handle in self.group.handles for part in handle.observed]
        return seen(parts) if parts else Observed({}, np.empty(0, dtype=np.float32))

    def newest_version(self, inserted: Inserted) -> int:
        return max(
            (report.version for handle in self.group.handles for report in handle.inserted),
            default=0,
        )

    @property
    def extents(self) -> list[RowRange]:
        return [handle.status.extent for handle in self.group.handles]

    def unsaved(self, saved: Sequence[int]) -> list[RowBlock | None]:
        """Returns copies of the rows (env steps) that no checkpoint file holds yet, by shard.

        In async mode the learner does not wait for a host that is silent: there is None in place of
        its rows, and a copy that arrives late is returned by the next call. There are at most
        64 MiB of rows of each shard, so that a host is not silent for long while it sends them.
        """
        if self.group.config.run.mode is not Mode.ASYNC:
            answers = self.group.ask({place: CopyRows(row) for place, row in enumerate(saved)})
            blocks = [answers[place] for place in range(len(saved))]
            return [block if isinstance(block, RowBlock) else None for block in blocks]
        most = max(1, SEGMENT_BYTES // row_bytes(schema_of(self.group.spec)))
        handles = self.group.handles[: len(saved)]
        for handle, row in zip(handles, saved, strict=True):
            handle.request_copy(CopyRows(row, most))
        while any(handle.copying for handle in handles):
            self.group.wait_a_little()
        return [handle.take_copy(row) for handle, row in zip(handles, saved, strict=True)]

    def save(self, saved: Sequence[int]) -> ReplayState:
        answers = self.group.ask({place: SaveShard(row) for place, row in enumerate(saved)})
        states = [answers[place] for place in range(len(saved))]
        return combined([s for s in states if isinstance(s, ReplayState)], self.deck.rng)

    def resume(self, saved: SavedReplay) -> None:
        """Restores the replay buffer from a checkpoint.

        If the number of shards (parts on hosts) has changed, the stored env steps are
        redistributed.
        """
        self.deck.rng = rng_of(saved.numbers)
        states, places = apart(saved.numbers, saved.arrays), len(self.group.handles)
        if len(states) == places:
            orders = {
                place: RestoreShard(*state, tuple(own))
                for place, (state, own) in enumerate(zip(states, saved.segments, strict=True))
            }
            self.group.ask(orders)
            return
        for columns in remembered(states, saved.segments):
            parts = {place: of_place(columns, place, places) for place in range(places)}
            self.group.ask({place: AdoptRows(part) for place, part in parts.items()})

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
