"""The rules of path finding: moves, collisions, rewards and observations.

The defaults are those of the system DHC (Ma, Luo, Ma 2021, "Distributed heuristic multi-agent path
finding with communication"), except for cells outside of the map, which DHC shows as free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict, Unpack

import numpy as np

from rookery.errors import ConfigError

STAY, UP, DOWN, LEFT, RIGHT = range(5)
MOVES = np.array(((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)), dtype=np.int64)  # row, column
MOVES.setflags(write=False)

# Contents of a cell in a view: bits of its code, channels of its planes.
AGENT, BLOCKED = 1 << 0, 1 << 1  # another agent; an obstacle, or outside of the map
NEARER = 1 << 2  # UP shortens the agent's path from there; DOWN, LEFT, RIGHT are the next bits
CHANNELS = 6


class Collision(StrEnum):
    """Name of the rule that resolves conflicting moves; both let the same agents move.

    The reason is in `collisions`.
    """

    REFERENCE = "reference"  # swaps fail; of agents with one target cell the lowest number moves
    SOFT = "soft"  # POGEMA's rule of that name


class Outside(StrEnum):
    """How cells outside of the map appear in agents' views: as obstacles or as free cells."""

    BLOCKED = "blocked"
    FREE = "free"  # as in DHC; agents still cannot go there


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Rewards of one agent for one step, by the outcome of its action."""

    move: float = -0.075
    wait: float = -0.075  # stays off its goal
    home: float = 0.0  # stays on its goal
    collision: float = -0.5  # the move failed
    finish: float = 3.0  # to every agent instead of the above, when all are on their goals


@dataclass(frozen=True, kw_only=True)
class WorldRules:
    """Rules of a grid world: view radius, step limit, collisions, rewards."""

    radius: int = 4  # an agent sees 2 * radius + 1 rows and columns, itself in the middle
    steps: int = 256  # step limit of an episode
    collision: str = Collision.REFERENCE
    outside: str = Outside.BLOCKED
    rewards: Rewards = field(default_factory=Rewards)

    def __post_init__(self) -> None:
        for name in ("radius", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"pathfinding needs {name} of at least 1, got {getattr(self, name)}; raise it"
                )
        for name, words in (("collision", Collision), ("outside", Outside)):
            if (given := getattr(self, name)) not in list(words):
                raise ConfigError(
                    f"{name} is one of {', '.join(words)}, got {given!r}; choose one of them"
                )

    @property
    def sight(self) -> int:
        """Number of rows and columns of an agent's square view: 2 * radius + 1."""
        return 2 * self.radius + 1


class RuleOptions(TypedDict, total=False):
    """Keyword arguments of environments that set the rules; `WorldRules` has the defaults."""

    radius: int
    steps: int
    collision: str
    outside: str


def make_rules(
    rewards: Mapping[str, float] | None = None, **options: Unpack[RuleOptions]
) -> WorldRules:
    """Builds the rules of a grid world; `rewards` has only those other than the defaults, by name.

    Raises ConfigError for unknown names of rewards.
    """
    known, given = Rewards.__dataclass_fields__, rewards or {}
    if strange := [name for name in given if name not in known]:
        raise ConfigError(
            f"rewards are {', '.join(known)}, got {', '.join(strange)}; name those that change"
        )
    changed = {name: float(value) for name, value in given.items()}
    return WorldRules(rewards=Rewards(**changed), **options)
