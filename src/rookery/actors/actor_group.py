"""The interface of all actors of a run, the same for every place where actors can run.

    for reports in group.collect(64, epsilons): ...     # sync: every actor plays 64 steps
    actors = group.asynchronous()                        # async: every actor plays by itself
    actors.start(); actors.allow(True, epsilons)
    for report in actors.reports(): ...

| implementation | where actors play |
|---|---|
| `SingleActor` (`worker.py`) | in the learner's process, one actor, called directly |
| `LocalActors` (`local_group.py`) | in processes on one host, or in turn in the learner's process |
| `ClusterActors` (`cluster/cluster_group.py`) | on the hosts of a cluster |
| `DeviceActors` (`pathfinding/curriculum_actors.py`) | on the learner's device |
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rookery.actors.env_progress import EnvProgress, Progress
from rookery.actors.messages import ActorReport, ActorState
from rookery.config.schema import Config, Exploration
from rookery.errors import CheckpointError
from rookery.runtime.supervision import LossTally
from rookery.types import Array, Arrays, Json, JsonObject, SavedState, below, prefixed

LADDER = 7.0  # Horgan et al. 2018: actor i of N explores with e**(1 + 7i/(N-1))


def epsilons_of(epsilon: float, config: Config) -> list[float]:
    """Returns the exploration epsilon of each actor, computed from the run's `epsilon`.

    All actors have the same epsilon, or each has its own as in Ape-X, which for actor i of N is
    epsilon ** (1 + 7 i / (N - 1)) (setting `actor.exploration`).
    """
    return [epsilon**power for power in epsilon_powers(config)]


def epsilon_powers(config: Config) -> list[float]:
    """Returns for each actor the exponent p: the actor explores with the run's epsilon ** p."""
    num = config.actor.num
    if config.actor.exploration is Exploration.SHARED or num == 1:
        return [1.0] * num
    return [1 + LADDER * i / (num - 1) for i in range(num)]


@dataclass(frozen=True)
class ActorGroupState:
    """The state of all actors of a run, for a checkpoint."""

    incarnations: Sequence[int]  # of each actor: how often it was started before
    actors: Sequence[ActorState] = ()  # none where actors play on while a checkpoint is made
    progress: Sequence[EnvProgress] = ()  # of the environments, where `actors` does not hold it

    @property
    def exact(self) -> bool:
        """Whether a run resumed from this state continues exactly like an uninterrupted run."""
        return all(actor.exact for actor in self.actors)

    def to_checkpoint(self) -> tuple[JsonObject, Arrays]:
        """Returns the actors' state as JSON-ready values and arrays, for `from_checkpoint`."""
        numbers: dict[str, Json] = {"incarnations": list(self.incarnations)}
        if self.actors:
            numbers["actors"] = [actor.numbers for actor in self.actors]
        else:
            numbers["progress"] = list(self.progress)
        arrays: dict[str, Array] = {}
        for i, actor in enumerate(self.actors):
            arrays |= prefixed(f"{i}.", actor.arrays)
        return numbers, arrays

    @classmethod
    def from_checkpoint(cls, numbers: SavedState, arrays: Arrays) -> "ActorGroupState":
        """Returns the actors' state from the values and arrays that `to_checkpoint` returned."""
        return cls(
            incarnations=tuple(numbers["incarnations"]),
            actors=[
                ActorState(own, below(f"{i}.", arrays), exact=own.get("envs") is not None)
                for i, own in enumerate(numbers.get("actors", ()))
            ],
            progress=[EnvProgress._make(saved) for saved in numbers.get("progress", ())],
        )


def refuse_other_actors(state: ActorGroupState, actors: int) -> None:
    """Raises CheckpointError if the saved state has another number of actors than this run."""
    if len(state.actors) != actors:
        raise CheckpointError(
            f"the checkpoint has {len(state.actors)} actors, this run has {actors}; resume with "
            f"--actors {len(state.actors)}"
        )


class AsyncActors(Protocol):
    """Interface of a run's actors in async mode: they play continuously, each at its own pace."""

    def start(self) -> None:
        """Makes every actor play continuously from now on, except while `allow` pauses it."""

    def allow(self, go: bool, epsilons: Sequence[float], room: int | None = None) -> None:
        """Lets all actors play if `go`, otherwise pauses them; sets their exploration epsilons.

        `room` is the number of rows (stored env steps) that actors may write until the next call.
        It keeps them from running ahead of a learner that is busy, or waits for a processor.
        """

    def wait(self, timeout_s: float, rows: int = 1) -> None:
        """Blocks until actors have written `rows` rows (env steps) for replay, at most `timeout_s`.

        An implementation may return earlier, with fewer rows.
        """

    def reports(self) -> Sequence[ActorReport]:
        """Returns the actors' reports since the last call, and restarts actors that failed."""

    def successors(self) -> ActorGroupState:
        """Returns the state from which a resumed run starts its actors; the present ones play on.

        It contains no episodes, only the environments' progress (state that outlives episodes) and
        the restart number of each new actor: one more than the number of the actor it replaces.
        """


class ActorGroup(Protocol):
    """Interface of all actors of a run; only the learner process calls it.

    What is not empty here is right for actors in the learner's process.
    """

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids of the group's processes on this host, by name, to measure resource use."""
        return {}

    @property
    def complete(self) -> bool:
        """Whether all actors and their stored env steps can be reached: no host is disconnected."""
        return True

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[Sequence[ActorReport]]:
        """Makes every actor play `env_steps` steps, or `episodes` whole episodes; yields reports.

        `epsilons` are the actors' probabilities of a random action. After each yield, replay must
        read the env steps from the actors' ring buffers. If the episodes do not fit into a ring
        buffer, the actors continue after the first yield and there are several.
        """

    def asynchronous(self) -> AsyncActors | None:
        """Returns the interface for async mode; None if these actors do not support it."""
        return None

    def metrics(self) -> dict[str, float]:
        """Returns the actors' metrics for the log, by name."""
        return {}

    def warnings(self) -> Iterator[str]:
        """Yields warnings for the user since the last call, such as about restarted actors."""
        return iter(())

    def save(self) -> ActorGroupState:
        """Returns the state of all actors, for a checkpoint."""

    def cut(self) -> None:
        """Truncates all episodes in progress, so that the next `save` can be resumed exactly."""

    def restore(self, state: ActorGroupState) -> None:
        """Restores all actors from the state that `save` returned."""

    def close(self) -> None: ...


class SupervisedActors(ActorGroup, AsyncActors):
    """Base of the groups whose actors have processes of their own and are replaced when they fail.

    `progress` is the newest progress of the actors' environments, in async mode.
    """

    def __init__(self, progress: Iterable[Sequence[object]]):
        self.progress = Progress(progress)
        self.restarts = 0
        self.tally = LossTally()  # of actors
        self._warnings: list[str] = []

    @property
    @abstractmethod
    def incarnations(self) -> list[int]:
        """How often each actor was restarted, in the order of actor numbers."""

    def asynchronous(self) -> AsyncActors:
        return self

    def warnings(self) -> Iterator[str]:
        while self._warnings:
            yield self._warnings.pop(0)

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of lost actors by kind."""
        return {f"faults/{kind}": float(count) for kind, count in self.tally.counts.items()}

    def successors(self) -> ActorGroupState:
        following = [incarnation + 1 for incarnation in self.incarnations]
        return ActorGroupState(following, progress=self.progress.state())
