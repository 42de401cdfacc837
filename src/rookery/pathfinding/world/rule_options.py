"""Builds `WorldRules` from the keyword arguments of an environment."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from rookery.errors import ConfigError
from rookery.pathfinding.world.rules import Collision, Outside, Rewards, WorldRules

Word = TypeVar("Word", bound=StrEnum)


def make_rules(
    *,
    radius: int,
    steps: int,
    collision: str,
    outside: str,
    rewards: Mapping[str, float] | None,
) -> WorldRules:
    """Builds the rules of a grid world from numbers and strings.

    `rewards` holds only rewards other than the defaults, by name. Raises ConfigError for unknown
    names of rewards, collision rules or `outside`.
    """
    return WorldRules(
        radius=radius,
        steps=steps,
        collision=_member(Collision, "collision", collision),
        outside=_member(Outside, "outside", outside),
        rewards=_rewards(rewards or {}),
    )


def _member(words: type[Word], name: str, given: str) -> Word:
    if given not in list(words):
        allowed = ", ".join(words)
        raise ConfigError(f"{name} is one of {allowed}, got {given!r}; choose one of them")
    return words(given)


def _rewards(given: Mapping[str, float]) -> Rewards:
    known = Rewards.__dataclass_fields__
    if strange := [name for name in given if name not in known]:
        raise ConfigError(
            f"rewards are {', '.join(known)}, got {', '.join(strange)}; name those that change"
        )
    return Rewards(**{name: float(value) for name, value in given.items()})
