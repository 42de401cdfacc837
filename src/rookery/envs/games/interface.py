"""What a batch of games is, wherever it comes from.

    games.reset(which, rng)                  # new games at these tables
    obs = games.look(which, seats)           # what these seats see, each at its own table
    games.play(which, action)                # [K, S]: the choices of whoever is due

E tables with S seats each. In a game of turns one seat is due at a time; where everybody moves at
once, all are. A seat's part may end before the others'. Nothing resets by itself.
"""

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from rookery.types import MASK, OBSERVATION, Array, Bools, Floats, Rows

__all__ = ["MASK", "OBSERVATION", "Games", "Player", "Who"]


class Who(IntEnum):
    """Opponents that are nobody's snapshot; any larger number is a published version."""

    SCRIPTED = -2
    RANDOM = -1
    LATEST = 0  # our own present weights


class Games(Protocol):
    """E games of S seats, one observation space and one action space for all of them."""

    name: str
    num: int  # E
    seats: int  # S
    observation_space: spaces.Space[Any]  # of one seat
    action_space: spaces.Space[Any]
    due: Bools  # [E, S] who has to act now; nobody where a game is over
    reward: Floats  # [E, S] float32: what the latest `play` at that table brought each seat
    over: Bools  # [E] everybody's part has ended
    ended: Bools  # [E, S] by the rules or by a limit: this seat is never due again in this game
    truncated: Bools  # [E, S] by a limit

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        """Starts new games at tables `which` [K]; everything random in them comes from `rng`."""

    def look(self, which: Rows, seats: Rows) -> Any:
        """Returns what seat `seats[k]` of table `which[k]` sees: a batch, or a dict of batches."""

    def play(self, which: Rows, action: Array) -> None:
        """Plays at tables `which` [K] the actions [K, S]; those of seats that are not due are
        not looked at. An action that the mask forbids is an EnvError."""

    def export_state(self) -> dict[str, Any] | None:
        """Returns JSON-ready data to go on from exactly; None where that cannot be."""

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to where `export_state` looked."""

    def close(self) -> None: ...


class Player(Protocol):
    """Somebody who needs no learning: chooses by what can be seen."""

    def act(self, obs: Any, rng: np.random.Generator) -> Array:
        """Returns [K] actions for a batch of K observations, in the game's own form."""
