"""Text boards: the position of a game drawn as text, from a player's observation.

    print(ludo(obs, seat))

`obs` is one observation, not a batch, and `seat` the player that observes it. Seat 0 is always
drawn with stones X and tokens in small letters, seat 1 with stones O and tokens in capitals.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from rookery.envs.turn_based.game import MASK, OBSERVATION
from rookery.games.ludo import BASE, DICE, HOME, OPPOSITE, RING, SIX, TOKENS

Picture: TypeAlias = Callable[[Any, int], str]
Cell: TypeAlias = tuple[int, int]  # row and column

STONES = ("X", "O")
NAMES = ("abcd", "ABCD")
SIDE = 15  # rows and columns of Ludo's board


def connect_four(obs: Any, seat: int) -> str:
    """Returns the board of Connect Four as text, with the action numbers below the columns."""
    rows = [" ".join(mark or "." for mark in row) for row in _stones(obs, seat)]
    return "\n".join([*rows, " ".join(str(column) for column in range(len(rows) + 1))])


def tictactoe(obs: Any, seat: int) -> str:
    """Returns the board of tic-tac-toe as text, with the action numbers in the empty cells."""
    rows = _stones(obs, seat)
    width = len(rows[0])
    return "\n".join(
        " ".join(mark or str(row * width + column) for column, mark in enumerate(marks))
        for row, marks in enumerate(rows)
    )


def ludo(obs: Any, seat: int) -> str:
    """Returns the board of Ludo as text.

    Below the board are the positions of the tokens, the dice, and the legal actions.
    """
    seen = np.asarray(obs[OBSERVATION], dtype=np.float64)
    place = np.rint(seen[: 2 * TOKENS] * (HOME + 1)).astype(int).reshape(2, TOKENS) - 1
    dice = np.rint(seen[2 * TOKENS : 2 * TOKENS + DICE] * SIX).astype(int).tolist()
    tokens = [place[seat].tolist(), place[1 - seat].tolist()]  # of seat 0, of seat 1
    lines = [*_board(tokens), *_aside(tokens), "dice " + " ".join(str(die) for die in dice if die)]
    return "\n".join([*lines, *_choices(obs[MASK], tokens[seat], dice, NAMES[seat])]).rstrip()


def _stones(obs: Any, seat: int) -> list[list[str]]:
    """Returns the rows of a board of stones, with "X", "O" or "" (empty) for each cell.

    `obs` is an observation of player `seat`; player 0 has the stones X.
    """
    own, other = STONES[seat], STONES[1 - seat]
    marks = np.where(obs[OBSERVATION][..., 0], own, np.where(obs[OBSERVATION][..., 1], other, ""))
    rows: list[list[str]] = marks.tolist()
    return rows


def _quarter() -> Iterator[Cell]:
    """Yields the board cells (row, column) of the first 13 squares of Ludo's ring of 52."""
    yield from ((6, column) for column in range(1, 6))
    yield from ((row, 6) for row in range(5, -1, -1))
    yield from ((0, 7), (0, 8))


def _turned(cell: Cell, quarters: int) -> Cell:
    """Rotates a cell clockwise about the centre of Ludo's board, by quarter turns."""
    for _ in range(quarters):
        cell = cell[1], SIDE - 1 - cell[0]
    return cell


_RING = [_turned(cell, quarters) for quarters in range(4) for cell in _quarter()]


def _cell(seat: int, position: int) -> Cell:
    """Returns the board cell (row, column) of a Ludo token of player `seat`.

    `position` counts from the player's own start; it is on the ring or in the home column.
    """
    if position <= RING - 2:
        return _RING[(position + seat * OPPOSITE) % RING]
    return _turned((7, position - RING + 2), 2 * seat)


def _board(tokens: list[list[int]]) -> list[str]:
    """Returns the lines of text of a Ludo board, two characters per cell.

    `tokens` are the positions of both players' tokens. A token is a letter, followed by + if more
    tokens are in its cell. An empty cell is . or, on a safe square, *.
    """
    drawn = {_cell(seat, position): "." for seat in range(2) for position in range(HOME)}
    drawn |= dict.fromkeys(_RING[0::13] + _RING[8::13], "*")
    for seat, places in enumerate(tokens):
        for name, position in zip(NAMES[seat], places, strict=True):
            if BASE < position < HOME:
                cell = _cell(seat, position)
                drawn[cell] = name if drawn[cell] in ".*" else drawn[cell][0] + "+"
    return [
        "".join(f"{drawn.get((row, column), ''):2}" for column in range(SIDE)).rstrip()
        for row in range(SIDE)
    ]


def _aside(tokens: list[list[int]]) -> Iterator[str]:
    for names, places in zip(NAMES, tokens, strict=True):
        parts = (
            (word, "".join(n for n, at in zip(names, places, strict=True) if at == where) or "-")
            for word, where in (("base", BASE), ("home", HOME))
        )
        track = [f"{n} {at}" for n, at in zip(names, places, strict=True) if BASE < at < HOME]
        yield "  ".join([*(f"{word} {who}" for word, who in parts), *track])


def _choices(mask: Any, places: list[int], dice: list[int], names: str) -> Iterator[str]:
    for action in np.flatnonzero(mask).tolist():
        die, token = divmod(action, TOKENS)
        to = 0 if places[token] == BASE else places[token] + dice[die]
        start = "the base" if places[token] == BASE else str(places[token])
        yield f"{action:>2}: {names[token]} by {dice[die]}, from {start} to {to}"
