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
    """The learner's access to other runs' replay buffers, to mix their rows into its batches."""

    def sample(self, pool: OwnReplay, batch: int, beta: float) -> SampledBatch:
        """Samples a batch that mixes rows of the run's own replay and of other runs' replay."""

    def update_priorities(self, pool: OwnReplay, rows: Rows, td_error: "Array | Tensor") -> None:
        """Updates the priorities of the batch rows that come from the run's own replay."""

    def beat(self) -> None:
        """Writes a heartbeat, which tells other runs that this run's replay is still in use."""

    def stats(self) -> dict[str, float]:
        """Returns how many rows were sampled from other runs so far, as metrics."""

    def close(self) -> None: ...


class LentRings(Protocol):
    """Interface of an object that creates replay rings from which other runs may sample."""

    def ring(self, place: int, schema: Schema, capacity: int) -> Ring:
        """Creates the ring of replay shard `place`; other runs may map and read it from now on."""


class LocalPeers(ReplayPeers, LentRings, Protocol):
    """Interface for replay sharing of a run whose replay buffer is on the learner's host.

    It creates the run's replay rings, and mixes rows of other runs into the learner's batches.
    """


class HostPeers(LentRings, Protocol):
    """Interface for replay sharing on one host of a cluster.

    The run's worker process on the host uses it to create the ring of its replay shard, and to
    sample other runs' rows for a learner on another host.
    """

    def answer(self, question: object) -> object:
        """Samples rows of other runs on this host, as the learner has requested; returns the reply.

        `question` is the request, a message of the learner's `ReplayPeers`, which also reads the
        reply.
        """

    def beat(self) -> None:
        """Writes a heartbeat, which tells other runs that this run's replay is still in use."""

    def close(self) -> None: ...
