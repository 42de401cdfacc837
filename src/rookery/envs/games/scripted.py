"""Players that need no learning: they see what their seat sees, in PettingZoo's games too.

    player = SCRIPTED["connect_four"]()
    action = player.act(games.look(which, seats), rng)

All choose among what the mask allows, and what looks equally good to them is chosen by chance.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.games import connect_four, tictactoe
from rookery.envs.games.interface import MASK, OBSERVATION, Player
from rookery.envs.games.lines import bits, landing, lined, words
from rookery.envs.games.ludo import ACTIONS, BASE, DICE, HOME, OPPOSITE, RING, SAFE, SIX, TOKENS
from rookery.errors import ConfigError, EnvError
from rookery.types import Array, Bools, Rows


def among(marked: Bools, rng: np.random.Generator) -> Rows:
    """Draws one of the marked actions of each row, [K, A] → [K]."""
    if not marked.any(axis=1).all():
        raise EnvError(
            f"a player must have something to choose, got no allowed action in row "
            f"{int(marked.any(axis=1).argmin())}; a game asks only seats whose {MASK} has a 1"
        )
    drawn: Rows = (marked * (1.0 - rng.random(marked.shape))).argmax(axis=1)
    return drawn


def best(worth: Array, obs: Any, rng: np.random.Generator) -> Rows:
    """Draws one of the allowed actions that are worth most, [K, A] → [K]."""
    allowed = obs[MASK] > 0
    finite = np.where(allowed, worth, -np.inf)
    return among(allowed & (finite == finite.max(axis=1, keepdims=True)), rng)


class Random:
    """Chooses any allowed action, in any game with masks."""

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return among(obs[MASK] > 0, rng)


class LudoScript:
    """Goes home, captures, leaves the base, flees and seeks safety, in this order of weight; of
    equals it moves who is furthest."""

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(ludo_worth(np.ascontiguousarray(obs[OBSERVATION])), obs, rng)


class Minimax:
    """Connect Four to a `depth` of plies; 2 is an own move and the reply to it.

    A line that can be forced within it is worth more the sooner it comes, one that cannot be
    avoided costs more; everything else is worth nothing.
    """

    def __init__(self, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"depth must be 1 ply or more, got {depth}; give a larger depth")
        self.depth = depth

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(_four_worth(words(obs[OBSERVATION]), self.depth), obs, rng)


class Perfect:
    """Tic-tac-toe without a fault: the game's value, sooner won and later lost."""

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(worths(obs), obs, rng)


SCRIPTED: dict[str, Callable[[], Player]] = {
    "ludo": LudoScript,
    "connect_four": partial(Minimax, 2),
    "connect_four_v3": partial(Minimax, 2),
    "tictactoe": Perfect,
    "tictactoe_v3": Perfect,
}


# What a move of Ludo is worth to the script.
_ARRIVES, _CAPTURES, _LEAVES, _FLEES, _SAFE, _FAR = 100.0, 80.0, 60.0, 40.0, 20.0, 10.0


@njit(cache=True, nogil=True)
def _threatened(square, theirs):  # type: ignore[no-untyped-def]
    """Says whether one die of the other could capture who stands on a square of one's own."""
    if square == BASE or SAFE[square]:
        return False
    there = (square + OPPOSITE) % RING
    near = False
    for token in range(TOKENS):
        near |= theirs[token] >= 0 and 1 <= there - theirs[token] <= SIX
    return near


@njit(cache=True, nogil=True)
def _move_worth(at, to, theirs):  # type: ignore[no-untyped-def]
    hit = False
    for token in range(TOKENS):
        hit |= not SAFE[to] and theirs[token] == (to + OPPOSITE) % RING
    saved = int(_threatened(at, theirs)) - int(_threatened(to, theirs))
    gained = _ARRIVES * (to == HOME) + _CAPTURES * hit + _LEAVES * (at == BASE)
    return gained + _FLEES * saved + _SAFE * SAFE[to] + _FAR * at / HOME


@njit(cache=True, nogil=True)
def ludo_worth(seen):  # type: ignore[no-untyped-def]
    """Returns what the script thinks of each action, [K, 12], allowed or not."""
    worth = np.empty((len(seen), ACTIONS))
    place = np.empty(2 * TOKENS, dtype=np.int64)
    for k in range(len(seen)):
        for token in range(2 * TOKENS):
            place[token] = round(seen[k, token] * (HOME + 1)) - 1
        for i in range(DICE):
            die = round(seen[k, 2 * TOKENS + i] * SIX)
            for token in range(TOKENS):
                at = place[token]
                to = 0 if at == BASE else min(at + die, HOME)
                worth[k, i * TOKENS + token] = _move_worth(at, to, place[TOKENS:])
    return worth


_GATES = bits(connect_four.SIZE)[: connect_four.SIZE[1]]
_HEIGHT, _LENGTH = connect_four.SIZE[0], connect_four.LENGTH


@njit(cache=True, nogil=True)
def _after(mine, theirs, column, depth):  # type: ignore[no-untyped-def]
    """Returns what a stone in a column is worth to whoever lets it go, `depth` plies deep."""
    put = np.int64(1) << landing(mine | theirs, _GATES[column], _HEIGHT, True)
    if lined(mine | put, _HEIGHT, _LENGTH):
        return depth
    if depth == 1:
        return 0
    reply, moves = -depth, 0
    for other in range(_GATES.size):
        if not (mine | theirs | put) >> _GATES[other] & 1:
            reply = max(reply, _after(theirs, mine | put, other, depth - 1))
            moves += 1
    return -reply if moves else 0


@njit(cache=True, nogil=True)
def _four_worth(stones, depth):  # type: ignore[no-untyped-def]
    """Returns what each column is worth, [K, 7], in positions [K, 2]."""
    worth = np.zeros((len(stones), _GATES.size), dtype=np.int64)
    for k in range(len(stones)):
        for column in range(_GATES.size):
            if not (stones[k, 0] | stones[k, 1]) >> _GATES[column] & 1:
                worth[k, column] = _after(stones[k, 0], stones[k, 1], column, depth)
    return worth


def outcome(obs: Any) -> npt.NDArray[np.int8]:
    """Returns how tic-tac-toe ends for the seat that sees this and is to move, if nobody errs:
    1, 0 or -1; for one observation or a batch of them."""
    return np.sign(_solved()[_codes(obs[OBSERVATION])])


def worths(obs: Any) -> npt.NDArray[np.int8]:
    """Returns what each cell is worth to the seat that is to move, [..., 9]; taken ones 0.

    The sign is how the game ends, the size grows with the cells that are empty then, plus 1.
    """
    codes = _codes(obs[OBSERVATION])[..., None]
    empty = codes // _PLACES % 3 == 0
    swapped = _swapped(codes + empty * _PLACES)
    return np.where(empty, -_solved()[swapped], 0).astype(np.int8)


# A position of tic-tac-toe is a number of nine digits to base 3: 0 empty, 1 own, 2 the other's.
_CELLS = tictactoe.SIZE[0] * tictactoe.SIZE[1]
_PLACES = 3 ** np.arange(_CELLS)


def _codes(seen: Array) -> Rows:
    flat = seen.reshape(*seen.shape[:-3], _CELLS, 2).astype(np.int64)
    return np.asarray((flat @ np.array([1, 2])) @ _PLACES)


def _swapped(codes: Rows) -> Rows:
    """Returns the positions as the other sees them."""
    digits = codes[..., None] // _PLACES % 3
    return np.asarray((-digits % 3) @ _PLACES)


@cache
def _solved() -> npt.NDArray[np.int8]:
    """Returns the worth of every position to whoever is to move, fuller boards first."""
    codes = np.arange(3**_CELLS)
    digits = codes[:, None] // _PLACES % 3
    swapped, empties = _swapped(codes), (digits == 0).sum(1)
    lost = np.array([lined(word, tictactoe.SIZE[0], tictactoe.LENGTH) for word in _theirs(digits)])
    worth = np.where(lost, -1 - empties, 0).astype(np.int8)
    for left in range(1, _CELLS + 1):
        rows = np.flatnonzero((empties == left) & ~lost)
        empty = digits[rows] == 0
        after = -worth[swapped[codes[rows, None] + empty * _PLACES]]
        worth[rows] = np.where(empty, after, -_CELLS - 2).max(1)
    return worth


def _theirs(digits: Rows) -> Rows:
    """Returns the other's stones as the bits of words."""
    return words((digits == 2).reshape(-1, *tictactoe.SIZE, 1).repeat(2, axis=-1).astype(np.int8))[
        :, 0
    ]
