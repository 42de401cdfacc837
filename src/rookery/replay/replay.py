"""The interface of a run's replay buffer, and its implementations.

    inserted = replay.insert()                      # rows that actors wrote since the last call
    batch = replay.sample(64, beta=0.4)             # rows → n-step batch
    replay.update_priorities(batch.rows, td_error)  # TD errors → priorities

| implementation | where rows are stored |
|---|---|
| `LocalReplay` (`buffer.py`) | in one ring of the learner's host |
| `Rollouts` (`rollouts.py`) | in one ring, until each rollout has been learned from |
| `ShardedReplay` (`shards.py`) | in several rings of the learner's host |
| `RemoteReplay` (`cluster/remote_replay.py`) | in a shard on every host of a cluster |
| `DeviceReplay` (`actors/device_group.py`) | on the learner's device |
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rookery.replay.saved_rows import ReplayState, RowBlock, RowRange, SavedReplay
from rookery.types import Array, Rows, SampledBatch

if TYPE_CHECKING:
    from torch import Tensor


class Inserted(NamedTuple):
    """Rows [first, first + count) that were inserted into replay; `steps` of them have an action.

    A row without an action is the final observation of an episode.
    """

    first: int  # -1 where the rows are in several shards
    count: int  # type: ignore[assignment]  # tuple.count is not needed
    steps: int  # env steps
    parts: tuple["Inserted", ...] = ()  # by shard, where there are several
    agent_steps: int | None = None  # that can be learned from; None: each env step counts once


class Observed(NamedTuple):
    """Observations and returns of newly inserted rows, for running normalisation statistics."""

    leaves: dict[str, Array]  # raw observations by leaf, [N, *leaf] each
    returns: Array  # [N] discounted return of the episode so far


class Replay(Protocol):
    """Interface of a run's replay buffer. Only the learner process calls it."""

    version: int  # of the newest published weights; the learner sets it

    @property
    def stale(self) -> int:
        """Number of rows that arrived with weights older than `replay.max_policy_lag` versions.

        Such rows are never sampled.
        """

    @property
    def fill(self) -> float:
        """Share of the replay capacity that holds rows, 0 to 1."""

    @property
    def extents(self) -> Sequence[RowRange]:
        """Range of the stored row numbers of each shard, for a checkpoint.

        Empty for a replay whose rows are not saved in checkpoints.
        """

    def insert(self) -> Inserted:
        """Inserts the rows that actors have written since the last call."""

    def sample(self, batch: int, *, beta: float = ...) -> SampledBatch:
        """Samples a batch; `beta` is the exponent of the importance weights."""

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sets the priorities of the rows of the last batch from their TD errors."""

    def observed(self, inserted: Inserted) -> Observed | None:
        """Returns observations and returns of newly inserted rows; call once per insertion.

        Returns None for a replay on a GPU, whose rows are not copied to the host.
        """

    def newest_version(self, inserted: Inserted) -> int:
        """Returns the highest weights version with which newly inserted rows were collected."""

    def unsaved(self, saved: Sequence[int]) -> Sequence[RowBlock]:
        """Returns copies of the rows that no checkpoint file holds yet, one block for each shard.

        These are the rows of each shard from row number `saved[shard]` on.
        """

    def save(self, saved: Sequence[int]) -> ReplayState:
        """Returns the replay state for a checkpoint.

        It includes the rows of each shard from row number `saved[shard]` on.
        """

    def resume(self, saved: SavedReplay) -> None:
        """Restores replay from a checkpoint.

        If the number of shards has changed, the rows are distributed again over the shards.
        """

    def close(self) -> None: ...
