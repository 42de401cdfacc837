"""Settings: rules as users write them, in words and numbers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from rookery.envs.pathfinding.rules import Collision, Outside, Rewards, Rules
from rookery.errors import ConfigError

Word = TypeVar("Word", bound=StrEnum)


def ruled(
    *,
    radius: int,
    steps: int,
    collision: str,
    outside: str,
    rewards: Mapping[str, float] | None,
) -> Rules:
    """Returns the rules; `rewards` has those that differ from the defaults."""
    return Rules(
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
