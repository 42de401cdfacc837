"""The rules of path finding: moves, collisions, rewards, and what an agent sees.

The defaults are those of the system DHC (Ma, Luo, Ma 2021, "Distributed heuristic multi-agent path
finding with communication"), but for the outside of the map, which it shows as free.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from rookery.errors import ConfigError

STAY, UP, DOWN, LEFT, RIGHT = range(5)
MOVES = np.array(((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)), dtype=np.int64)  # row, column
MOVES.setflags(write=False)

# What an agent sees of a cell: one bit each in a view's code, one channel each in its planes.
AGENT, BLOCKED = 1 << 0, 1 << 1  # somebody else stands there; an obstacle, or outside of the map
NEARER = 1 << 2  # UP from there shortens my own way; DOWN, LEFT, RIGHT are the next three bits
CHANNELS = 6


class Collision(StrEnum):
    """Who may go where, when several want to."""

    REFERENCE = "reference"  # swaps fail; the lowest number gets a free cell; all others stay
    SOFT = "soft"  # POGEMA's rule of that name


class Outside(StrEnum):
    """What lies beyond the edge of the map, to those who look at it."""

    BLOCKED = "blocked"
    FREE = "free"  # as the reference shows it; nobody can go there all the same


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """What one step earns one agent."""

    move: float = -0.075
    wait: float = -0.075  # stays where its goal is not
    home: float = 0.0  # stays on its goal
    collision: float = -0.5  # wanted to move and was not able to
    finish: float = 3.0  # instead of all others: to every agent, when all are on their goals


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a world goes."""

    radius: int = 4  # an agent sees 2 * radius + 1 rows and columns, itself in the middle
    steps: int = 256  # an episode's limit
    collision: Collision = Collision.REFERENCE
    outside: Outside = Outside.BLOCKED
    rewards: Rewards = field(default_factory=Rewards)

    def __post_init__(self) -> None:
        for name in ("radius", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"pathfinding needs {name} of at least 1, got {getattr(self, name)}; raise it"
                )

    @property
    def sight(self) -> int:
        """Rows, and columns, that an agent sees."""
        return 2 * self.radius + 1
