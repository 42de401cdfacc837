"""Interfaces for sampling from other runs' replay buffers; `rookery.sharing` implements them."""

from typing import TYPE_CHECKING, Protocol

from rookery.replay.ring import Ring, Schema
from rookery.types import Array, Rows, SampledBatch

if TYPE_CHECKING:
    from torch import Tensor


class OwnReplay(Protocol):
    """The methods of a run's own replay buffer that `ReplayPeers` calls."""

    def sample(self, batch: int, *, beta: float = ...) -> SampledBatch: ...
    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None: ...


class ReplayPeers(Protocol):
    """The learner's access to other runs' replay buffers, to mix their steps into its batches."""

    def sample(self, pool: OwnReplay, batch: int, beta: float) -> SampledBatch:
        """Samples a batch of env steps from the run's own replay `pool` and other runs' replay."""

    def update_priorities(self, pool: OwnReplay, rows: Rows, td_error: "Array | Tensor") -> None:
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
