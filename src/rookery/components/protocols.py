"""What loops ask of the components. An object of yours that has these methods will do.

environment.generate_experiences(agent, num_episodes, max_steps) → replay_buffer.add_experiences
→ replay_buffer.sample_batch → agent.compute_gradients → parameter_server.push_gradients
→ parameter_server.get_parameters → agent.set_policy_parameters
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from rookery.server.server_rules import checked_methods as checked_methods
from rookery.types import Array

Arrays: TypeAlias = dict[str, Array]  # by the parameters' names, float32
Experience: TypeAlias = Mapping[str, Any]  # one step, by the keys of `experience.KEYS`


class Evaluation(NamedTuple):
    """How well a policy did, without exploring."""

    reward: float  # mean return
    deviation: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


@runtime_checkable
class Environment(Protocol):
    """Where experience comes from."""

    def generate_experiences(
        self, policy: Any, num_episodes: int, max_steps_per_episode: int = 1000
    ) -> list[dict[str, Any]]:
        """Plays whole episodes; returns their steps, those of an episode one after another."""


@runtime_checkable
class ReplayComponent(Protocol):
    """Where it is kept. Rows of batches get priorities, where it has `update_priorities`."""

    def add_experiences(self, experiences: Sequence[Experience]) -> None: ...
    def sample_batch(self, batch_size: int) -> Mapping[str, Any]:
        """Returns [B, ...] arrays by key."""

    def get_total_experiences(self) -> int: ...


@runtime_checkable
class LearningAgent(Protocol):
    """What learns from it. `batch_size` and `update_frequency` are looked for too.

    An attribute `exploring`, if there is one, is True while a loop collects experience.
    """

    def compute_gradients(self, batch: Any) -> Mapping[str, Array]:
        """Returns the batch's gradients by name; nothing where the batch is to be left out."""

    def get_policy_parameters(self) -> Arrays: ...
    def set_policy_parameters(self, parameters: Mapping[str, Array]) -> None: ...
    def evaluate_policy(self, num_episodes: int = 10) -> Any: ...


@runtime_checkable
class Server(Protocol):
    """What turns gradients into parameters: a `ParameterServer`, one on another host, or yours."""

    def register_worker(self, worker: str) -> int: ...
    def get_parameters(self, newer_than: int = -1) -> Any | None:
        """Returns something with `version` and `arrays`, or None where there is nothing newer."""

    def push_gradients(
        self,
        worker: str,
        grads: Arrays,
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Any:
        """Returns something with `accepted`, `code` and `version`."""
