"""Progress: how far the environments of actors have come, whoever plays them.

In async actors are not in a checkpoint, and in no mode are those that were lost. What their
environments keep from episode to episode they tell of now and then, with the episodes that ended;
the training process has the newest, saves it, and hands it to whoever begins.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Standing(NamedTuple):
    """How far one actor's environments have come."""

    actor: int  # its number in the run
    envs: list[Any]  # JSON, as `Envs.export_progress` gave it


class Progress:
    """The newest standing of every actor."""

    def __init__(self, saved: Iterable[Sequence[Any]] = ()):
        """`saved` are standings, or what JSON has made of them."""
        self._envs: dict[int, list[Any]] = {}
        for one in saved:
            self.take(Standing._make(one))

    def take(self, standing: Standing) -> None:
        self._envs[standing.actor] = standing.envs

    def of(self, actor: int) -> list[Any] | None:
        """Returns an actor's own; those without one take turns at the others'."""
        known = sorted(self._envs)
        if not known:
            return None
        return self._envs[actor if actor in self._envs else known[actor % len(known)]]

    def share(self, actors: Iterable[int]) -> list[Standing]:
        """Returns what these actors begin with, where there is something."""
        found = {actor: self.of(actor) for actor in actors}
        return [Standing(actor, envs) for actor, envs in found.items() if envs is not None]

    def state(self) -> list[Standing]:
        """Returns JSON that another one can be made from."""
        return [Standing(actor, self._envs[actor]) for actor in sorted(self._envs)]
