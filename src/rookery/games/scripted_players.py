"""Scripted players of Ludo, Connect Four and tic-tac-toe, also for PettingZoo's versions.

    player = Minimax(depth=2)
    action = player.act(games.look(which, seats), rng)

A player's `act` gets a batch of its observations and chooses legal actions; among actions of equal
value it chooses at random.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.turn_based.game import MASK, OBSERVATION, among
from rookery.errors import ConfigError
from rookery.games import connect_four, tictactoe
from rookery.games.line_game import bits, has_line, landing, words
from rookery.games.ludo import ACTIONS, BASE, DICE, HOME, OPPOSITE, RING, SAFE, SIX, TOKENS
from rookery.types import Array, Rows


def best(worth: Array, obs: Any, rng: np.random.Generator) -> Rows:
    """Returns for each of K observations the legal action with the largest value, [K].

    `worth` [K, A] are the values of all A actions. Ties are broken at random.
    """
    allowed = obs[MASK] > 0
    finite = np.where(allowed, worth, -np.inf)
    return among(allowed & (finite == finite.max(axis=1, keepdims=True)), rng)


class Random:
    """Player that chooses a random legal action, in any game with action masks."""

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return among(obs[MASK] > 0, rng)


class LudoScript:
    """Ludo player that chooses the move with the largest sum of hand-set weights.

    The weights are, in falling order, for reaching home, capturing, leaving the base, getting out
    of the opponent's reach and reaching a safe square. Among equal moves it prefers to move the
    token that has advanced furthest.
    """

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(ludo_worth(np.ascontiguousarray(obs[OBSERVATION])), obs, rng)


class Minimax:
    """Connect Four player with minimax search to a `depth` of plies.

    It prefers the fastest forced win, and delays a forced loss; all other positions that the search
    reaches have the value 0.
    """

    def __init__(self, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"depth must be 1 ply or more, got {depth}; give a larger depth")
        self.depth = depth

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(_four_worth(words(obs[OBSERVATION]), self.depth), obs, rng)


class Perfect:
    """Perfect player of tic-tac-toe: wins if it can, as early as possible, otherwise draws.

    In a lost position it loses as late as possible.
    """

    def act(self, obs: Any, rng: np.random.Generator) -> Rows:
        return best(worths(obs), obs, rng)


# Weights of the Ludo script.
_ARRIVES, _CAPTURES, _LEAVES, _FLEES, _SAFE, _FAR = 100.0, 80.0, 60.0, 40.0, 20.0, 10.0


@njit(cache=True, nogil=True)
def _threatened(square, theirs):  # type: ignore[no-untyped-def]
    """Returns whether the opponent could capture a token on `square` with a single die.

    `theirs` are the positions of the opponent's tokens; tokens in the base are not considered.
    """
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
    """Returns the values that the scripted player `LudoScript` gives to actions, [K, 12].

    `seen` are K observations of Ludo. All 12 actions have a value, legal or not.
    """
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
    """Returns the minimax value, for the player to move, of a Connect Four stone in `column`.

    `mine` and `theirs` are the stones of both players as bit sets. The search has `depth` plies,
    this one included. The value is positive for a forced win and negative for a forced loss, larger
    in size the sooner it comes, and 0 if neither is found.
    """
    put = np.int64(1) << landing(mine | theirs, _GATES[column], _HEIGHT, True)
    if has_line(mine | put, _HEIGHT, _LENGTH):
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
    """Returns the minimax value of each column in K positions of Connect Four, [K, 7].

    `stones` [K, 2] are bit sets: the stones of the player to move, then the other's. Full columns
    have the value 0.
    """
    worth = np.zeros((len(stones), _GATES.size), dtype=np.int64)
    for k in range(len(stones)):
        for column in range(_GATES.size):
            if not (stones[k, 0] | stones[k, 1]) >> _GATES[column] & 1:
                worth[k, column] = _after(stones[k, 0], stones[k, 1], column, depth)
    return worth


def outcome(obs: Any) -> npt.NDArray[np.int8]:
    """Returns the result of tic-tac-toe if both players play perfectly from a position on.

    It is 1 if the player to move wins, 0 for a draw, -1 if it loses. `obs` is one observation of
    the player to move, or a batch of them.
    """
    return np.sign(_solved()[_codes(obs[OBSERVATION])])


def worths(obs: Any) -> npt.NDArray[np.int8]:
    """Returns the value of each cell of tic-tac-toe for the player to move, [..., 9].

    The value is that of a stone in the cell, if both players play perfectly afterwards: 0 for a
    draw, positive for a win, negative for a loss. The absolute value of a win or loss is 1 plus the
    number of cells that are empty at the end. Occupied cells have the value 0.
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
    """Returns tic-tac-toe positions with the two players' stones exchanged.

    A position is a number of nine base-3 digits: 0 empty, 1 own stone, 2 the other's.
    """
    digits = codes[..., None] // _PLACES % 3
    return np.asarray((-digits % 3) @ _PLACES)


@cache
def _solved() -> npt.NDArray[np.int8]:
    """Returns the value of every tic-tac-toe position for the player to move.

    Values are computed by backward induction. The index is the position as a base-3 number. 0 is a
    draw, positive a win, negative a loss; the absolute value of a win or loss is 1 plus the number
    of cells that are empty at the end.
    """
    codes = np.arange(3**_CELLS)
    digits = codes[:, None] // _PLACES % 3
    swapped, empties = _swapped(codes), (digits == 0).sum(1)
    lost = np.array(
        [has_line(word, tictactoe.SIZE[0], tictactoe.LENGTH) for word in _theirs(digits)]
    )
    worth = np.where(lost, -1 - empties, 0).astype(np.int8)
    for left in range(1, _CELLS + 1):
        rows = np.flatnonzero((empties == left) & ~lost)
        empty = digits[rows] == 0
        after = -worth[swapped[codes[rows, None] + empty * _PLACES]]
        worth[rows] = np.where(empty, after, -_CELLS - 2).max(1)
    return worth


def _theirs(digits: Rows) -> Rows:
    """Returns the other player's stones in each tic-tac-toe position as a bit set.

    `digits` are the cells of the positions: 0 empty, 1 own, 2 the other's.
    """
    return words((digits == 2).reshape(-1, *tictactoe.SIZE, 1).repeat(2, axis=-1).astype(np.int8))[
        :, 0
    ]
