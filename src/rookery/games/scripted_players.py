"""Scripted players of Ludo, Connect Four and tic-tac-toe, also for PettingZoo's versions.

    player = Minimax(depth=2)
    action = player.act(games.look(which, seats), rng)

A player's `act` gets a batch of its observations and chooses legal actions; among actions of equal
value it chooses at random.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.turn_based.game import MASK, OBSERVATION, among
from rookery.errors import ConfigError
from rookery.games.connect_four import ConnectFour
from rookery.games.line_game import bits, has_line, landing, words
from rookery.games.ludo import ACTIONS, BASE, DICE, HOME, OPPOSITE, RING, SAFE, SIX, TOKENS
from rookery.games.tictactoe import TicTacToe
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
        stones, (height, columns) = words(obs[OBSERVATION]), ConnectFour.size
        gates, depth = bits(ConnectFour.size)[:columns], np.full(len(stones), self.depth)
        return best(_minimax(stones, depth, gates, height, ConnectFour.length, True), obs, rng)


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


@njit(cache=True, nogil=True)
def _after(mine, theirs, gate, depth, gates, height, length, drops):  # type: ignore[no-untyped-def]
    """Returns the minimax value, for the player to move, of a stone that is put at `gate`.

    `mine` and `theirs` are the stones of both players as bit sets. The search has `depth` plies,
    this one included. The value is positive for a forced win and negative for a forced loss, larger
    in size the sooner it comes, and 0 if neither is found.
    """
    put = np.int64(1) << landing(mine | theirs, gate, height, drops)
    if has_line(mine | put, height, length):
        return depth
    if depth == 1:
        return 0
    reply, moves = -depth, 0
    for other in gates:
        if not (mine | theirs | put) >> other & 1:
            worth = _after(theirs, mine | put, other, depth - 1, gates, height, length, drops)
            reply = max(reply, worth)
            moves += 1
    return -reply if moves else 0


@njit(cache=True, nogil=True)
def _minimax(stones, depth, gates, height, length, drops):  # type: ignore[no-untyped-def]
    """Returns the minimax values of A actions in K positions of a game of lines, [K, A].

    `stones` [K, 2] are bit sets: the stones of the player to move, then the other's. `depth` [K]
    are the plies that are searched, `gates` [A] the bits of the cells where stones are put.
    Forbidden actions have the value 0.
    """
    worth = np.zeros((len(stones), gates.size), dtype=np.int64)
    for k in range(len(stones)):
        mine, theirs = stones[k]
        for i, gate in enumerate(gates):
            if not (mine | theirs) >> gate & 1:
                worth[k, i] = _after(mine, theirs, gate, depth[k], gates, height, length, drops)
    return worth


def outcome(obs: Any) -> npt.NDArray[np.int8]:
    """Returns the result of tic-tac-toe if both players play perfectly from a position on.

    It is 1 if the player to move wins, 0 for a draw, -1 if it loses. `obs` is one observation of
    the player to move, or a batch of them.
    """
    seen = obs[OBSERVATION]
    theirs = words(seen.reshape(-1, *seen.shape[-3:]))[:, 1].reshape(seen.shape[:-3])
    lost = np.vectorize(has_line)(theirs, TicTacToe.size[0], TicTacToe.length)
    taken = seen.any(-1).reshape(*seen.shape[:-3], -1)
    value = np.where(taken, -np.inf, worths(obs)).max(-1)
    value = np.where(lost, -1, np.where(taken.all(-1), 0, value))
    return np.asarray(np.sign(value), dtype=np.int8)


def worths(obs: Any) -> npt.NDArray[np.int8]:
    """Returns the value of each cell of tic-tac-toe for the player to move, [..., 9].

    The value is that of a stone in the cell, if both players play perfectly afterwards: 0 for a
    draw, positive for a win, negative for a loss. The absolute value of a win or loss is 1 plus the
    number of cells that are empty at the end. Occupied cells have the value 0.
    """
    seen = obs[OBSERVATION]
    boards, which = np.unique(seen.reshape(-1, *seen.shape[-3:]), axis=0, return_inverse=True)
    height, length = TicTacToe.size[0], TicTacToe.length
    empty = (boards == 0).all(-1).sum((1, 2))
    worth: Rows = _minimax(words(boards), empty, bits(TicTacToe.size), height, length, False)
    return worth[which.ravel()].reshape(*seen.shape[:-3], -1).astype(np.int8)
