"""The interface of a batch of games with several players.

    games.reset(which, rng)                  # restarts the games with the indices `which`
    obs = games.look(which, seats)           # observations of seat seats[k] in game which[k]
    games.play(which, action)                # [K, S]: an action for each seat of K games

There are E parallel games (tables) with S seats (players) each. A seat that must act now is due:
one seat at a time in a turn-based game, all seats in a simultaneous game. `play` ignores the
actions of all other seats. The game may end for one seat before the others. There is no autoreset.
"""

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from rookery.errors import EnvError
from rookery.types import MASK, OBSERVATION, Array, Bools, Floats, Rows

__all__ = ["MASK", "OBSERVATION", "Games", "Player", "Who"]


class Who(IntEnum):
    """Integer codes of the opponents in self-play that are not weight snapshots.

    A code above 0 stands for a weight snapshot: an earlier policy of this run, whose code is its
    weight version, or a policy of another run of the league.
    """

    SCRIPTED = -2
    RANDOM = -1
    LATEST = 0  # the run's own present weights


class Games(Protocol):
    """Interface of E parallel games with S seats (players) each.

    All seats have the same observation and action space.
    """

    name: str
    num: int  # E
    seats: int  # S
    observation_space: spaces.Space[Any]  # of one seat
    action_space: spaces.Space[Any]
    due: Bools  # [E, S] which seats must act now; none where a game is over
    reward: Floats  # [E, S] float32: rewards of the latest `play` of that game
    over: Bools  # [E] the game has ended for all seats
    ended: Bools  # [E, S] the game has ended for this seat, by the rules or by a limit
    truncated: Bools  # [E, S] it ended by a limit

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        """Restarts the parallel games with the indices `which`, with random numbers from `rng`."""

    def look(self, which: Rows, seats: Rows) -> Any:
        """Returns a batch of observations.

        The k-th is that of seat (player) `seats[k]` in the game with index `which[k]`.
        """

    def play(self, which: Rows, action: Array) -> None:
        """Plays actions [K, S], one for each of S seats (players), in the K games `which`.

        `which` are indices of the parallel games. Actions of seats that are not to move are
        ignored. Raises `EnvError` for an action that the mask forbids.
        """

    def export_state(self) -> dict[str, Any] | None:
        """Returns the exact state of all games as JSON, or None if it cannot be saved."""

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restores a state that `export_state` returned."""

    def close(self) -> None: ...


class Player(Protocol):
    """Interface of a player whose policy does not change, such as a scripted player."""

    def act(self, obs: Any, rng: np.random.Generator) -> Array:
        """Returns the player's actions [K] for a batch of K observations.

        Observations and actions are elements of the game's spaces, not converted for replay.
        """


def among(marked: Bools, rng: np.random.Generator) -> Rows:
    """Samples a uniformly random action among those that are True, for each row of `marked`.

    `marked` is [K, A]: K players to move, A actions. Returns action indices [K]. Raises `EnvError`
    if a row has no True.
    """
    if not marked.any(axis=1).all():
        raise EnvError(
            f"a player needs at least one allowed action, got none in row "
            f"{int(marked.any(axis=1).argmin())}; only seats whose {MASK} has a 1 may be due"
        )
    drawn: Rows = (marked * (1.0 - rng.random(marked.shape))).argmax(axis=1)
    return drawn
