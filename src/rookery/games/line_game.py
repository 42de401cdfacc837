"""Compiled two-player games with lines of stones, such as Connect Four, on R x C cells.

The first player with `length` stones in a line wins. The stones of a player (seat) are the bits of
one integer: cell (row, column), rows counted from the top, is bit column * (R + 1) + R - 1 - row.
The bit above each column stays empty, so that shifting the integer never joins stones across an
edge.
"""

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from numba import njit

from rookery.envs.turn_based.compiled_game import SEATS, Turns, record, rows
from rookery.types import Array, Rows


class LineGame(Turns):
    """`num` parallel games in which the first player with `length` stones in a line wins.

    With `drops` an action is a column, in which the stone falls down; without, it is a cell.
    Observations are int8 [rows, columns, 2]: the player's own stones, then the other's. Player
    (seat) 0 begins. The winner gets reward 1, the loser -1; a full board without a line is a draw
    with reward 0.
    """

    size: tuple[int, int]  # rows and columns
    length: int
    drops: bool

    def __init__(self, num: int) -> None:
        self._bits = bits(self.size)
        self._gates = self._bits[: self.size[1]] if self.drops else self._bits
        table = record(len(self._gates), ("stones", "i8", (SEATS,)))
        super().__init__(num, table, spaces.Box(0, 1, (*self.size, SEATS), np.int8))

    def _begin(self, tables: Rows, rng: np.random.Generator) -> None:
        _begin(self.tables, tables)

    def _move(self, tables: Rows, chosen: Rows) -> None:
        _play(self.tables, tables, chosen, self._gates, self.size[0], self.length, self.drops)

    def _seen(self, tables: Rows, sides: Rows) -> Array:
        seen = np.empty((len(tables), *self.size, SEATS), dtype=np.int8)
        _look(self.tables, tables, sides, self._bits, seen.reshape(len(tables), -1, SEATS))
        return seen


def bits(size: tuple[int, int]) -> Rows:
    """Returns the bit number of each cell of a board, row by row.

    It is the cell's bit in the integer that stores all stones of a player.
    """
    row, column = np.divmod(np.arange(size[0] * size[1]), size[1])
    return rows(column * (size[0] + 1) + size[0] - 1 - row)


def words(seen: npt.NDArray[np.int8]) -> Rows:
    """Converts K observations [K, rows, columns, 2] to bit sets of stones [K, 2].

    The first is the player's own stones, the second the opponent's.
    """
    size = seen.shape[1], seen.shape[2]
    flat = seen.reshape(len(seen), -1, SEATS).astype(np.int64)
    return rows((flat << bits(size)[:, None]).sum(1))


@njit(cache=True, nogil=True)
def has_line(stones, height, length):  # type: ignore[no-untyped-def]
    """Returns whether the bit set `stones` has `length` stones in a line in any direction.

    `height` is the number of rows of the board.
    """
    for step in (1, height, height + 1, height + 2):
        line = stones
        for i in range(1, length):
            line &= stones >> (i * step)
        if line:
            return True
    return False


@njit(cache=True, nogil=True)
def landing(stones, gate, height, drops):  # type: ignore[no-untyped-def]
    """Returns the bit number of the cell in which a new stone ends.

    `gate` is the bit number of the cell where the player puts the stone, and `stones` the bit set
    of all stones. With `drops`, `gate` is the top cell of a column, and the stone falls down to the
    lowest empty cell.
    """
    floor = gate // (height + 1) * (height + 1) if drops else gate
    while gate > floor and not stones >> (gate - 1) & 1:
        gate -= 1
    return gate


@njit(cache=True, nogil=True)
def _begin(tables, which):  # type: ignore[no-untyped-def]
    for table in which:
        game = tables[table]
        game.stones[:], game.reward[:], game.turn, game.mask[:] = 0, 0, 0, 1
        game.due[0], game.due[1] = 1, 0
        game.over, game.truncated = False, False


@njit(cache=True, nogil=True)
def _play(tables, which, chosen, gates, height, length, drops):  # type: ignore[no-untyped-def]
    for k in range(which.size):
        game = tables[which[k]]
        seat, stones = game.turn, game.stones
        put = landing(stones[0] | stones[1], gates[chosen[k]], height, drops)
        stones[seat] |= np.int64(1) << put
        won = has_line(stones[seat], height, length)
        free = 0
        for action in range(gates.size):
            game.mask[action] = 1 - ((stones[0] | stones[1]) >> gates[action] & 1)
            free += game.mask[action]
        game.reward[seat], game.reward[1 - seat] = won, -np.float32(won)
        game.over, game.turn = won or free == 0, 1 - seat
        game.due[seat], game.due[1 - seat] = 0, not game.over


@njit(cache=True, nogil=True)
def _look(tables, which, sides, bits, seen):  # type: ignore[no-untyped-def]
    for k in range(which.size):
        game = tables[which[k]]
        for i in range(bits.size):
            seen[k, i, 0] = game.stones[sides[k]] >> bits[i] & 1
            seen[k, i, 1] = game.stones[1 - sides[k]] >> bits[i] & 1
