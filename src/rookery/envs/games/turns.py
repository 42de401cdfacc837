"""What our compiled games for two have in common: one seat at a time, and a mask of its choices.

A table is one record of numbers, the tables of a batch an array of them; compiled code takes a
record and changes it in place.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from numba import njit

from rookery.envs.games.interface import MASK, OBSERVATION
from rookery.errors import CheckpointError, ConfigError, EnvError, ProtocolError
from rookery.types import Array, Bools, Floats, Rows

SEATS = 2

Field: TypeAlias = tuple[str, str] | tuple[str, str, tuple[int, ...]]
Records: TypeAlias = npt.NDArray[np.void]


def record(actions: int, *more: Field) -> np.dtype[np.void]:
    """Returns a table's record: what every game has, and the fields of one game's own."""
    fields: list[Field] = [
        *more,
        ("reward", "f4", (SEATS,)),
        ("turn", "i1"),  # whose choice it is, or would be
        ("mask", "i1", (actions,)),  # what that seat may do
        ("due", "i1", (SEATS,)),  # not bool: numba knows no rows of bools in a record
        ("over", "?"),
        ("truncated", "?"),
    ]
    return np.dtype(fields, align=True)


class Turns(ABC):
    """E games of two seats that take turns; implements `Games` but for the rules."""

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
        self.over[:] = True  # nobody has begun
        actions = self.tables["mask"].shape[1]
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {OBSERVATION: seen, MASK: spaces.Box(0, 1, (actions,), np.int8)}
        )
        self.action_space: spaces.Space[Any] = spaces.Discrete(actions)

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        """Starts new games at tables `which` [K]; everything random in them comes from `rng`."""
        self._begin(self._at(which), rng)

    def look(self, which: Rows, seats: Rows) -> dict[str, Array]:
        """Returns what seat `seats[k]` of table `which[k]` sees; without the turn none is allowed.

        The arrays are the caller's to keep.
        """
        tables, sides = self._at(which), _within(seats, SEATS, "seats")
        return {OBSERVATION: self._seen(tables, sides), MASK: _masks(self.tables, tables, sides)}

    def play(self, which: Rows, action: Array) -> None:
        """Plays the actions [K, 2] of whoever has the turn at tables `which` [K], all different.

        One that is not allowed is an EnvError, and then nothing at all has been played.
        """
        tables, given = self._at(which), np.asarray(action)
        chosen = self._chosen(tables, given)
        if chosen.size and chosen.min() < 0:
            self._refuse(int(tables[chosen.argmin()]), given[chosen.argmin()])
        self._move(tables, chosen)

    def export_state(self) -> dict[str, Any]:
        return {name: self.tables[name].tolist() for name in _names(self.tables)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to where `export_state` looked, in as many games of the same name."""
        for name in _names(self.tables):
            here = self.tables[name]
            saved = np.asarray(state.get(name, ()), dtype=here.dtype)
            if saved.shape != here.shape:
                raise CheckpointError(
                    f"the saved {name!r} of {self.name} is {list(saved.shape)}, here it is "
                    f"{list(here.shape)}; restore into as many tables as were saved"
                )
            here[...] = saved

    def close(self) -> None: ...  # noqa: B027 - nothing is held

    def _at(self, which: Rows) -> Rows:
        """Returns the numbers of tables, checked: compiled code writes wherever it is told to."""
        return _within(which, self.num, "tables")

    def _chosen(self, tables: Rows, action: Array) -> Rows:
        """Returns the choice at each table, -1 where it is not allowed."""
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
        """Plays allowed actions, one at each table."""

    @abstractmethod
    def _seen(self, tables: Rows, sides: Rows) -> Array:
        """Returns a fresh [K, *seen]: the position as these seats see it."""


def rows(numbers: Any) -> Rows:
    """Returns whole numbers as compiled code takes them: one layout, one compilation."""
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _within(numbers: Any, count: int, what: str) -> Rows:
    checked = rows(numbers)
    if _beyond(checked, count):
        raise ProtocolError(
            f"there are {what} 0 to {count - 1}, got {checked.min()} to {checked.max()}; "
            f"name {what} that there are"
        )
    return checked


def _of_both(flag: Bools) -> Bools:
    """Returns [E, 2] of what is written [E] times: both seats end together."""
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
        wanted = action[k, game.turn]
        if not game.over and 0 <= wanted < game.mask.size and game.mask[wanted]:
            chosen[k] = wanted
    return chosen


@njit(cache=True, nogil=True)
def _masks(tables, which, seats):  # type: ignore[no-untyped-def]
    shown = np.zeros((which.size, tables[0].mask.size), dtype=np.int8)
    for k in range(which.size):
        game = tables[which[k]]
        if seats[k] == game.turn:
            shown[k] = game.mask
    return shown
