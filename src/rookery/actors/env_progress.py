"""Progress of environments: state that outlives an episode, such as a curriculum's level.

In async mode a checkpoint does not hold the state of actors, and the state of a crashed actor is
lost. Async actors therefore report the progress of their environments about once a second. The
learner process keeps the newest report of each actor, saves it in checkpoints, and gives it to
actors that start.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rookery.types import Json


class EnvProgress(NamedTuple):
    """The progress (state that outlives episodes) of one actor's environments."""

    actor: int  # its number in the run
    envs: list[Json]  # JSON, as `Envs.export_progress` returned it


class Progress:
    """Stores the newest environment progress that each actor has reported."""

    def __init__(self, saved: Iterable[Sequence[object]] = ()):
        """Starts from `saved`: `EnvProgress` tuples, or the lists that JSON turns them into."""
        self._envs: dict[int, list[Json]] = {}
        for one in saved:
            self.take(EnvProgress._make(one))

    def take(self, progress: EnvProgress) -> None:
        """Stores the environment progress that an actor reported; replaces its previous report."""
        self._envs[progress.actor] = progress.envs

    def of(self, actor: int) -> list[Json] | None:
        """Returns the environment progress with which an actor starts: the last it reported.

        An actor that has reported none gets that of another actor, chosen round-robin by actor
        number. Returns None if no actor has reported any.
        """
        known = sorted(self._envs)
        if not known:
            return None
        return self._envs[actor if actor in self._envs else known[actor % len(known)]]

    def share(self, actors: Iterable[int]) -> list[EnvProgress]:
        """Returns the environment progress (such as a curriculum level) with which `actors` start.

        Each actor gets what it reported last, or what another actor reported if it has reported
        nothing. The list is empty if no actor of the run has reported anything.
        """
        found = {actor: self.of(actor) for actor in actors}
        return [EnvProgress(actor, envs) for actor, envs in found.items() if envs is not None]

    def state(self) -> list[EnvProgress]:
        """Returns the environment progress of all actors, JSON-ready, for the constructor."""
        return [EnvProgress(actor, self._envs[actor]) for actor in sorted(self._envs)]
