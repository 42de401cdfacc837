"""Positions as text, from what a seat sees.

print(PICTURES["ludo"](obs, seat))

`obs` is one observation, not a batch. Seat 0's stones are X and its tokens small letters, seat 1's
are O and capitals, whoever looks.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from rookery.envs.games.interface import MASK, OBSERVATION
from rookery.envs.games.ludo import BASE, DICE, HOME, OPPOSITE, RING, SIX, TOKENS

Picture: TypeAlias = Callable[[Any, int], str]
Cell: TypeAlias = tuple[int, int]  # row and column

STONES = ("X", "O")
NAMES = ("abcd", "ABCD")
SIDE = 15  # of Ludo's board


def connect_four(obs: Any, seat: int) -> str:
    """Shows the columns' numbers, which are the actions, below them."""
    rows = [" ".join(mark or "." for mark in row) for row in _stones(obs, seat)]
    return "\n".join([*rows, " ".join(str(column) for column in range(len(rows) + 1))])


def tictactoe(obs: Any, seat: int) -> str:
    """Shows the numbers of empty cells, which are the actions."""
    rows = _stones(obs, seat)
    width = len(rows[0])
    return "\n".join(
        " ".join(mark or str(row * width + column) for column, mark in enumerate(marks))
        for row, marks in enumerate(rows)
    )


def ludo(obs: Any, seat: int) -> str:
    """Shows the board, who waits in the bases and who is home, the dice, and what may be done."""
    seen = np.asarray(obs[OBSERVATION], dtype=np.float64)
    place = np.rint(seen[: 2 * TOKENS] * (HOME + 1)).astype(int).reshape(2, TOKENS) - 1
    dice = np.rint(seen[2 * TOKENS : 2 * TOKENS + DICE] * SIX).astype(int).tolist()
    tokens = [place[seat].tolist(), place[1 - seat].tolist()]  # of seat 0, of seat 1
    lines = [*_board(tokens), *_aside(tokens), "dice " + " ".join(str(die) for die in dice if die)]
    return "\n".join([*lines, *_choices(obs[MASK], tokens[seat], dice, NAMES[seat])]).rstrip()


PICTURES: dict[str, Picture] = {
    "ludo": ludo,
    "connect_four": connect_four,
    "connect_four_v3": connect_four,
    "tictactoe": tictactoe,
    "tictactoe_v3": tictactoe,
}


def _stones(obs: Any, seat: int) -> list[list[str]]:
    """Returns the mark in each cell, "" where there is none."""
    own, other = STONES[seat], STONES[1 - seat]
    marks = np.where(obs[OBSERVATION][..., 0], own, np.where(obs[OBSERVATION][..., 1], other, ""))
    rows: list[list[str]] = marks.tolist()
    return rows


def _quarter() -> Iterator[Cell]:
    """Yields 13 squares of the ring, from an entry on: right, up, and round the corner."""
    yield from ((6, column) for column in range(1, 6))
    yield from ((row, 6) for row in range(5, -1, -1))
    yield from ((0, 7), (0, 8))


def _turned(cell: Cell, quarters: int) -> Cell:
    """Turns a cell clockwise about the middle of the board."""
    for _ in range(quarters):
        cell = cell[1], SIDE - 1 - cell[0]
    return cell


_RING = [_turned(cell, quarters) for quarters in range(4) for cell in _quarter()]


def _cell(seat: int, position: int) -> Cell:
    """Returns where a position of a seat is drawn: on the ring, or in its column to the middle."""
    if position <= RING - 2:
        return _RING[(position + seat * OPPOSITE) % RING]
    return _turned((7, position - RING + 2), 2 * seat)


def _board(tokens: list[list[int]]) -> list[str]:
    """Draws two characters a cell: a token's name, and + where there are more; * is safe."""
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
