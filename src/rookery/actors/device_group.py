"""Environments, actors and replay of a run on one device (`run.mode device`).

A plugin registers a `BatchedEnv` for an algorithm. The training loop uses its actors through the
`ActorGroup` interface, and `DeviceReplay` through the `Replay` interface.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from rookery import plugins
from rookery.actors.actor_group import ActorGroup
from rookery.algorithms import Algorithm
from rookery.config.schema import Config
from rookery.errors import ConfigError
from rookery.replay.device_replay import DeviceRing, SampledWindows
from rookery.replay.replay import Inserted, Replay
from rookery.types import DeviceBatch, Rows

if TYPE_CHECKING:
    from rookery.types import Array


class BatchedEnv(Protocol):
    """Interface of an environment that runs on a GPU, thousands of instances in one batch."""

    without_gpu: str  # what to use where there is no GPU, as the end of a sentence

    def refuse(self, config: Config) -> None:
        """Raises ConfigError if this environment does not support the run's settings."""

    def build(self, config: Config, algorithm: Algorithm, device: torch.device) -> "OnDevice":
        """Builds the environments, the actors that step them, and the replay they write to."""

    def replay_bytes(self, config: Config, algorithm: Algorithm, device: torch.device) -> int:
        """Returns how many bytes of device memory replay needs."""

    def processes(self, config: Config) -> int:
        """Returns how many processes the actors of the run start."""


def batched_env_of(config: Config) -> BatchedEnv:
    """Returns the on-device environment that a plugin registers for the run's `algo.name`.

    Raises ConfigError if the algorithm has none.
    """
    row = plugins.algorithms().get(config.algo.name)
    if row is None or row.batched_env is None:
        raise ConfigError(
            f"algo.name {config.algo.name} has no environments that play on a device; use another "
            "--mode than device"
        )
    found: BatchedEnv = plugins.load(row.batched_env)
    return found


class Environments(Protocol):
    """Interface of a batch of on-device environments of equal tensor shapes, and their replay."""

    agents: int  # in each environment
    ring: DeviceRing

    def sample(self, batch: int, *, beta: float) -> tuple[DeviceBatch, SampledWindows]: ...

    def update_priorities(self, picks: SampledWindows, td_error: Tensor) -> None: ...


class EnvironmentGroup(Protocol):
    """Interface of all on-device environments of a run, which write into replay on that device."""

    version: int  # of the weights that they are played with

    @property
    def live(self) -> Sequence[Environments]: ...

    def take_written(self) -> Inserted:
        """Returns how many steps the environments wrote into replay since the last call."""


class DeviceReplay(Replay):
    """Replay in device memory: a ring buffer per batch of environments, which write into it.

    Samples come from the ring buffers in turn. Checkpoints do not contain this replay: a resumed
    run starts with an empty one. The environments own the rings.
    """

    def __init__(self, group: EnvironmentGroup):
        self._group, self._turn = group, 0
        self._sampled: tuple[Environments, SampledWindows] | None = None

    @property
    def ready(self) -> bool:
        """Whether replay holds at least one complete sequence of steps to sample."""
        return any(some.ring.complete > 0 for some in self._group.live)

    @property
    def version(self) -> int:
        return self._group.version

    @version.setter
    def version(self, version: int) -> None:
        self._group.version = version

    def insert(self) -> Inserted:
        """Inserts nothing, since environments write into replay themselves.

        Returns how many steps they wrote since the last call.
        """
        return self._group.take_written()

    def sample(self, batch: int, *, beta: float = 1.0) -> DeviceBatch:
        """Samples about `batch` training sequences from replay, one per agent of an environment.

        Each call samples from one group of environments; successive calls use the groups in turn.
        """
        able = [some for some in self._group.live if some.ring.complete > 0]
        self._turn += 1
        chosen = able[self._turn % len(able)]
        windows, picks = chosen.sample(batch // chosen.agents, beta=beta)
        self._sampled = chosen, picks
        return windows

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sets new priorities of the sequences that `sample` returned last; `rows` is ignored."""
        assert self._sampled is not None, "the loop samples first"
        environments, picks = self._sampled
        environments.update_priorities(picks, torch.as_tensor(td_error))

    @property
    def fill(self) -> float:
        """Mean fill level of the replay ring buffers, from 0 (empty) to 1 (full)."""
        shares = [min(1.0, some.ring.written / some.ring.capacity) for some in self._group.live]
        return sum(shares) / len(shares) if shares else 0.0

    def newest_version(self, inserted: Inserted) -> int:
        return self._group.version


class OnDevice(NamedTuple):
    """The actors and the replay of a run in device mode, as `BatchedEnv.build` returns them."""

    actors: ActorGroup
    replay: DeviceReplay
