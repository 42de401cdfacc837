"""The interfaces of a run's replay buffer, and of other runs' replay buffers to sample from.

    inserted = replay.insert()                      # rows that actors wrote since the last call
    batch = replay.sample(64, beta=0.4)             # rows → n-step batch
    replay.update_priorities(batch.rows, td_error)  # TD errors → priorities

A row is one stored env step, or the final observation of an episode.

| implementation | where rows are stored |
|---|---|
| `LocalReplay` (`buffer.py`) | in one ring buffer on the learner's host |
| `Rollouts` (`rollouts.py`) | in one ring buffer, until each rollout has been learned from |
| `ShardedReplay` (`shards.py`) | in several ring buffers (shards) on the learner's host |
| `RemoteReplay` (`cluster/remote_replay.py`) | in one shard on every host of a cluster |
| `DeviceReplay` (`actors/device_group.py`) | on the learner's device |
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rookery.replay.ring import Ring, Schema
from rookery.replay.saved_rows import ReplayState, RowBlock, RowRange, SavedReplay
from rookery.types import Array, Rows, SampledBatch

if TYPE_CHECKING:
    from torch import Tensor


class Inserted(NamedTuple):
    """Range of the rows that were inserted into replay: rows [first, first + count).

    A row is one env step or the final observation of an episode; `steps` of the rows are env steps.
    """

    first: int  # -1 where the rows are in several shards
    count: int  # type: ignore[assignment]  # tuple.count is not needed
    steps: int  # env steps
    parts: tuple["Inserted", ...] = ()  # by shard, where there are several
    agent_steps: int | None = None  # that can be learned from; None: each env step counts once


class Observed(NamedTuple):
    """Observations, and discounted returns so far, of env steps that were inserted into replay.

    They update the running statistics for normalisation.
    """

    leaves: dict[str, Array]  # raw observations by leaf, [N, *leaf] each
    returns: Array  # [N] discounted return of the episode so far


class Replay(Protocol):
    """Interface of a run's replay buffer. Only the learner process calls it.

    What is not empty here is right for a replay whose rows stay on a device and are not saved in
    checkpoints. Such a replay implements the rest: `version`, `fill`, `newest_version`, `insert`,
    `sample` and `update_priorities`.
    """

    version: int  # of the newest published weights; the learner sets it

    @property
    def stale(self) -> int:
        """Number of inserted rows (env steps) that were collected with weights that are too old.

        Too old is more than `replay.max_policy_lag` versions behind the newest weights at the time
        of insertion. Such rows are never sampled.
        """
        return 0

    @property
    def fill(self) -> float:
        """Share of the replay capacity that is filled with env steps, 0 to 1."""

    @property
    def extents(self) -> Sequence[RowRange]:
        """Range of stored row (env step) numbers of each shard (part of the replay buffer).

        It is for checkpoints, and empty for a replay whose rows are not saved in checkpoints.
        """
        return ()

    def insert(self) -> Inserted:
        """Inserts the env steps that actors have written since the last call; returns the range."""

    def sample(self, batch: int, *, beta: float = ...) -> SampledBatch:
        """Samples a batch; `beta` is the exponent of the importance weights."""

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sets the priorities of the last batch's rows (env steps) from their TD errors."""

    def observed(self, inserted: Inserted) -> Observed | None:
        """Returns observations and discounted returns so far of newly inserted env steps.

        It must be called once per insertion. Returns None if there are none, and for a replay on a
        GPU, whose steps are not copied to the host.
        """
        return None

    def newest_version(self, inserted: Inserted) -> int:
        """Returns the newest version of the weights with which inserted steps were collected."""

    def unsaved(self, saved: Sequence[int]) -> Sequence[RowBlock | None]:
        """Returns copies of rows (env steps) that no checkpoint file holds yet.

        There is one block of rows for each shard (part of the replay buffer), from row number
        `saved[shard]` on; None for a shard on a host that does not answer now.
        """
        return ()

    def save(self, saved: Sequence[int]) -> ReplayState:
        """Returns the replay state for a checkpoint.

        It includes the rows (env steps) of each shard (part of the replay buffer) from row number
        `saved[shard]` on.
        """
        return ReplayState({}, {}, ())

    def resume(self, saved: SavedReplay) -> None:
        """Restores replay from a checkpoint.

        If the number of shards (parts of the replay buffer) has changed, the rows are distributed
        again over the shards.
        """
        return

    def close(self) -> None:
        return


# Sampling from other runs' replay buffers; `rookery.sharing` implements these interfaces.


class ReplayPeers(Protocol):
    """The learner's access to other runs' replay buffers, to mix their steps into its batches."""

    def sample(self, pool: Replay, batch: int, beta: float) -> SampledBatch:
        """Samples a batch of env steps from the run's own replay `pool` and other runs' replay."""

    def update_priorities(self, pool: Replay, rows: Rows, td_error: "Array | Tensor") -> None:
        """Updates the priorities of those batch rows (env steps) that are in the run's own replay.

        `pool` is that replay. TD errors of other runs' rows are ignored.
        """

    def beat(self) -> None:
        """Writes a heartbeat, which tells other runs that this run's replay is still in use."""

    def stats(self) -> dict[str, float]:
        """Returns metrics of replay sharing, such as how many rows of other runs were sampled."""

    def close(self) -> None: ...


class LentRings(Protocol):
    """Interface of an object that creates replay ring buffers from which other runs may sample."""

    def ring(self, place: int, schema: Schema, capacity: int) -> Ring:
        """Creates the ring buffer of replay shard (part of a run's replay buffer) number `place`.

        Other runs may map and read it from now on.
        """


class LocalPeers(ReplayPeers, LentRings, Protocol):
    """Interface for replay sharing of a run whose replay buffer is on the learner's host.

    It creates the run's replay ring buffers, and mixes env steps of other runs into the learner's
    batches.
    """


class HostPeers(LentRings, Protocol):
    """Interface for replay sharing on one host of a cluster.

    The run's worker process on the host uses it to create the ring buffer of its replay shard (the
    part of the run's replay on this host), and to sample other runs' env steps for a learner on
    another host.
    """

    def answer(self, question: object) -> object:
        """Samples env steps of other runs' replay on this host for the learner; returns the reply.

        `question` is the request, a message from the learner's `ReplayPeers` object, which also
        reads the reply.
        """

    def beat(self) -> None:
        """Writes a heartbeat, which tells other runs that this run's replay is still in use."""

    def close(self) -> None: ...
