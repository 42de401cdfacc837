"""Base class of two-player turn-based games with action masks and compiled (numba) rules.

The state of a game is one numpy record, called a table. Parallel games are an array of records,
which compiled code changes in place.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from numba import njit

from rookery.envs.turn_based.game import MASK, OBSERVATION
from rookery.errors import CheckpointError, ConfigError, EnvError, ProtocolError
from rookery.types import Array, Bools, Floats, Rows

SEATS = 2

Field: TypeAlias = tuple[str, str] | tuple[str, str, tuple[int, ...]]
Records: TypeAlias = npt.NDArray[np.void]


def record(actions: int, *more: Field) -> np.dtype[np.void]:
    """Returns the numpy record dtype of the state of a two-player game with `actions` actions.

    It has the fields `more`, which the game's own rules need, and those that all games have, such
    as rewards and the action mask.
    """
    fields: list[Field] = [
        *more,
        ("reward", "f4", (SEATS,)),
        ("turn", "i1"),  # the seat whose turn it is
        ("mask", "i1", (actions,)),  # the allowed actions of that seat
        ("due", "i1", (SEATS,)),  # not bool: numba has no arrays of bools in a record
        ("over", "?"),
        ("truncated", "?"),
    ]
    return np.dtype(fields, align=True)


class Turns(ABC):
    """Base class of a batch of two-player turn-based games; subclasses add the rules.

    Implements `Games`, the interface of E parallel games.
    """

    name = "turns"
    seats = SEATS

    def __init__(self, num: int, table: np.dtype[np.void], seen: spaces.Box) -> None:
        if num < 1:
            raise ConfigError(f"games take 1 table or more, got {num}; give a larger number")
        self.num = num
        self.tables: Records = np.zeros(num, dtype=table)
        self.due: Bools = self.tables["due"].view(np.bool_)
        self.reward: Floats = self.tables["reward"]
        self.over: Bools = self.tables["over"]
        self.ended: Bools = _of_both(self.over)
        self.truncated: Bools = _of_both(self.tables["truncated"])
        self.over[:] = True  # before the first reset
        actions = self.tables["mask"].shape[1]
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {OBSERVATION: seen, MASK: spaces.Box(0, 1, (actions,), np.int8)}
        )
        self.action_space: spaces.Space[Any] = spaces.Discrete(actions)

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        """Restarts the parallel games with the indices `which`, with random numbers from `rng`."""
        self._begin(self._at(which), rng)

    def look(self, which: Rows, seats: Rows) -> dict[str, Array]:
        """Returns observations as new arrays: the k-th is of seat `seats[k]` in game `which[k]`.

        A seat is a player, 0 or 1. Its action mask is all zeros if it is not to move.
        """
        tables, sides = self._at(which), _within(seats, SEATS, "seats")
        return {OBSERVATION: self._seen(tables, sides), MASK: _masks(self.tables, tables, sides)}

    def play(self, which: Rows, action: Array) -> None:
        """Plays one action in each of K games, those with the indices `which` [K].

        `action` [K, 2] has a number for both seats (players); that of the seat not to move is
        ignored. Raises `EnvError` for a forbidden action, before any game is changed.
        """
        tables, given = self._at(which), np.asarray(action)
        chosen = self._chosen(tables, given)
        if chosen.size and chosen.min() < 0:
            self._refuse(int(tables[chosen.argmin()]), given[chosen.argmin()])
        self._move(tables, chosen)

    def export_state(self) -> dict[str, Any]:
        return {name: self.tables[name].tolist() for name in _names(self.tables)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restores the state of all games that `export_state` returned.

        Raises `CheckpointError` if it was saved with another number of games.
        """
        for name in _names(self.tables):
            here = self.tables[name]
            saved = np.asarray(state.get(name, ()), dtype=here.dtype)
            if saved.shape != here.shape:
                raise CheckpointError(
                    f"the saved {name!r} of {self.name} is {list(saved.shape)}, here it is "
                    f"{list(here.shape)}; restore into as many tables as were saved"
                )
            here[...] = saved

    def close(self) -> None: ...  # noqa: B027 - there is nothing to close

    def _at(self, which: Rows) -> Rows:
        """Returns game indices as int64; raises `ProtocolError` if one is out of range.

        Compiled code does not check bounds itself.
        """
        return _within(which, self.num, "tables")

    def _chosen(self, tables: Rows, action: Array) -> Rows:
        """Returns the action of the player to move in each game, or -1 if it is forbidden.

        `tables` are the indices of the games, `action` has an action for both players of each.
        """
        if action.shape != (len(tables), SEATS) or action.dtype.kind not in "iu":
            raise EnvError(
                f"{self.name} takes whole numbers [{len(tables)}, {SEATS}], one for each seat of "
                f"each table, got {action.dtype} {list(action.shape)}; give every seat a number"
            )
        return _allowed(self.tables, tables, rows(action))  # type: ignore[no-any-return]

    def _refuse(self, table: int, action: Array) -> None:
        if self.over[table]:
            raise ProtocolError(
                f"the game of {self.name} at table {table} is over, but it was played; reset it"
            )
        seat, mask = int(self.tables["turn"][table]), self.tables["mask"][table]
        raise EnvError(
            f"seat {seat} at table {table} of {self.name} may do {np.flatnonzero(mask).tolist()}, "
            f"got {action[seat]}; choose an action whose {MASK} is 1"
        )

    @abstractmethod
    def _begin(self, tables: Rows, rng: np.random.Generator) -> None: ...

    @abstractmethod
    def _move(self, tables: Rows, chosen: Rows) -> None:
        """Plays the allowed action `chosen[k]` in the game with index `tables[k]`, for each k."""

    @abstractmethod
    def _seen(self, tables: Rows, sides: Rows) -> Array:
        """Returns observations as a new array [K, *shape].

        The k-th is that of seat (player) `sides[k]` in the game with index `tables[k]`.
        """


def rows(numbers: Any) -> Rows:
    """Converts integers to a contiguous int64 array, the type that compiled code expects."""
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _within(numbers: Any, count: int, what: str) -> Rows:
    checked = rows(numbers)
    if _beyond(checked, count):
        raise ProtocolError(
            f"there are {what} 0 to {count - 1}, got {checked.min()} to {checked.max()}; use "
            f"existing {what}"
        )
    return checked


def _of_both(flag: Bools) -> Bools:
    """Returns a view [E, 2] that repeats the flag of each of E games for both of its players.

    A game ends for both players at the same time.
    """
    return np.broadcast_to(flag[:, None], (len(flag), SEATS))


def _names(tables: Records) -> tuple[str, ...]:
    return tables.dtype.names or ()


@njit(cache=True, nogil=True)
def _beyond(numbers, count):  # type: ignore[no-untyped-def]
    beyond = False
    for number in numbers:
        beyond |= number < 0 or number >= count
    return beyond


@njit(cache=True, nogil=True)
def _allowed(tables, which, action):  # type: ignore[no-untyped-def]
    chosen = np.full(which.size, -1, dtype=np.int64)
    for k in range(which.size):
        game = tables[which[k]]
        own = action[k, game.turn]
        if not game.over and 0 <= own < game.mask.size and game.mask[own]:
            chosen[k] = own
    return chosen


@njit(cache=True, nogil=True)
def _masks(tables, which, seats):  # type: ignore[no-untyped-def]
    shown = np.zeros((which.size, tables[0].mask.size), dtype=np.int8)
    for k in range(which.size):
        game = tables[which[k]]
        if seats[k] == game.turn:
            shown[k] = game.mask
    return shown
