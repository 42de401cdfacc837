"""Parallel games of Ludo for two players (seats) in compiled code.

    games = Ludo(256)
    games.reset(np.arange(256), rng)
    games.play(which, action)                # [K, 2]; the seat to move plays die * 4 + token
    games.play_out(which)                    # plays to the end with random actions

Each seat has four tokens. A position counts from the seat's own start: -1 is the base, 0 to 50 are
on the ring, 51 to 55 in the seat's own home column, 56 is home. The ring has 52 squares and the
seats are opposite: square p of one seat is square p + 26 (mod 52) of the other.

Turns. The seat rolls a die. After a 6 it rolls again, up to three dice; three sixes void the turn.
The dice are then used one by one, in any order: an action is the index of a die and of a token. A 6
moves a token from the base to square 0; any die moves a token on by its number, but not beyond 56.
A used die is removed from the list of dice, so later dice get the next lower index. A capture or an
arrival at home earns another roll, which follows when no die is left that can move a token; if that
roll has three sixes, all remaining earned rolls are void. A seat without a legal action passes, so
that the seat to move always has a legal action. Seat 0 rolls first. The first seat with four tokens
at home wins.

Captures. A token that ends its move on tokens of the other seat sends all of them back to their
base, unless the square is safe; tokens do not block. Squares 0, 8, 13, 21, 26, 34, 39 and 47 are
safe, the same eight squares of the ring for both seats. Squares 25 and 51 to 56 are safe because
the other seat's tokens never stand there.

Observations are 12 numbers from 0 to 1: (position + 1) / 57 of the seat's own four tokens and of
the other's four (counted from the other's start), three dice / 6 with 0 for a missing die, and 1 if
the seat is to move, else 0.
"""

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from numba import njit

from rookery.envs.turn_based.compiled_game import SEATS, Turns, record
from rookery.errors import ConfigError
from rookery.types import Floats, Rows

TOKENS, DICE = 4, 3
BASE, HOME = -1, 56
RING = 52  # squares, of which a seat visits 51
OPPOSITE = RING // 2
SIX = 6
ACTIONS = DICE * TOKENS
SEEN = SEATS * TOKENS + DICE + 1
SAFE = np.zeros(HOME + 1, dtype=np.bool_)
SAFE[[0, 8, 13, 21, 25, 26, 34, 39, 47, 51, 52, 53, 54, 55, 56]] = True

TABLE = record(
    ACTIONS,
    ("luck", "u8"),  # state of the table's random numbers
    ("place", "i1", (SEATS, TOKENS)),  # positions
    ("dice", "i1", (DICE,)),  # unused dice, at the front; 0: none
    ("extra", "i1"),  # earned rolls that are left
    ("plies", "i4"),  # actions played
)


class Ludo(Turns):
    """`num` parallel games of Ludo for two players (seats); implements `Games`.

    The winner gets reward 1, the loser -1; each action costs its player `step_cost`. A game without
    a winner after `limit` actions is truncated.
    """

    name = "ludo"

    def __init__(self, num: int, *, limit: int = 1000, step_cost: float = 0.0) -> None:
        if limit < 1:
            raise ConfigError(f"limit must be 1 action or more, got {limit}; give a larger limit")
        super().__init__(num, TABLE, spaces.Box(0, 1, (SEEN,), np.float32))
        self.limit, self.step_cost = limit, np.float32(step_cost)

    def play_out(self, which: Rows) -> None:
        """Plays the games with the indices `which` to the end, with uniformly random actions."""
        _play_out(self.tables, self._at(which), self.limit, self.step_cost)

    def _begin(self, tables: Rows, rng: np.random.Generator) -> None:
        _begin(self.tables, tables, rng.integers(2**64, size=len(tables), dtype=np.uint64))

    def _move(self, tables: Rows, chosen: Rows) -> None:
        _play(self.tables, tables, chosen, self.limit, self.step_cost)

    def _seen(self, tables: Rows, sides: Rows) -> Floats:
        return _seen(self.tables, tables, sides)  # type: ignore[no-any-return]


def _moving() -> Iterator[int]:
    """Yields which dice can move a Ludo token, as a bit set for each position of the token.

    Positions are -1 (base) to 56 (home); bit d is set if a die of d can move the token.
    """
    yield 1 << SIX
    for at in range(HOME + 1):
        yield sum(1 << die for die in range(1, SIX + 1) if at + die <= HOME)


_MOVING = np.array(list(_moving()))

# Random numbers of a table are those of SplitMix64 (Steele, Lea, Flood 2014).
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF = np.uint64(32)  # bits


@njit(cache=True, nogil=True)
def _draw(game, count):  # type: ignore[no-untyped-def]
    """Returns a random number from 0 to `count` - 1, from the game's own generator."""
    game.luck += _STRIDE
    word = game.luck
    word = (word ^ (word >> _SHIFT[0])) * _MIX[0]
    word = (word ^ (word >> _SHIFT[1])) * _MIX[1]
    word ^= word >> _SHIFT[2]
    return np.int64(((word >> _HALF) * np.uint64(count)) >> _HALF)


@njit(cache=True, nogil=True)
def _roll(game):  # type: ignore[no-untyped-def]
    """Rolls one to three dice of a Ludo turn: another one after each 6.

    Returns whether there are dice to use; three sixes are void and return False.
    """
    game.dice[:] = 0
    for i in range(DICE):
        game.dice[i] = 1 + _draw(game, SIX)
        if game.dice[i] != SIX:
            return True
    game.dice[:] = 0
    return False


@njit(cache=True, nogil=True)
def _allow(game, seat):  # type: ignore[no-untyped-def]
    """Writes the action mask of a player (`seat`) into the game's state.

    Returns the number of legal actions.
    """
    place, dice, mask, count = game.place, game.dice, game.mask, 0
    for token in range(TOKENS):
        moving = _MOVING[place[seat, token] + 1]
        for i in range(DICE):
            may = moving >> dice[i] & 1
            mask[i * TOKENS + token] = may
            count += may
    return count


@njit(cache=True, nogil=True)
def _next_choice(game):  # type: ignore[no-untyped-def]
    """Rolls dice and passes turns until a player has a legal action; that player is to move."""
    seat, extra = game.turn, game.extra
    while _allow(game, seat) == 0:
        if extra > 0:
            extra -= 1
        else:
            seat = 1 - seat
        if not _roll(game):
            extra = 0
    game.turn, game.extra = seat, extra
    game.due[seat] = 1


@njit(cache=True, nogil=True)
def _begin(tables, which, luck):  # type: ignore[no-untyped-def]
    for k in range(which.size):
        game = tables[which[k]]
        game.luck = luck[k]
        game.place[:], game.dice[:] = BASE, 0
        game.turn = 1  # without dice it passes, and seat 0 rolls
        game.extra, game.plies = 0, 0
        game.over, game.truncated = False, False
        game.due[:], game.reward[:] = 0, 0
        _next_choice(game)


@njit(cache=True, nogil=True)
def _capture(game, seat, square):  # type: ignore[no-untyped-def]
    """Sends the opponent's tokens on `square` back to their base, unless the square is safe.

    `seat` is the player that moved to the square, which counts from this player's start. Returns
    whether any token was sent back.
    """
    hit = False
    if not SAFE[square]:
        place, theirs = game.place, (square + OPPOSITE) % RING
        for token in range(TOKENS):
            if place[1 - seat, token] == theirs:
                place[1 - seat, token] = BASE
                hit = True
    return hit


@njit(cache=True, nogil=True)
def _advance(game, seat, action):  # type: ignore[no-untyped-def]
    """Plays an action of player `seat`: moves a token by a die, captures, and removes the die.

    Returns whether the move earns another roll.
    """
    place, dice = game.place, game.dice
    die, token = action // TOKENS, action % TOKENS
    to = 0 if place[seat, token] == BASE else place[seat, token] + dice[die]
    place[seat, token] = to
    for i in range(die, DICE - 1):
        dice[i] = dice[i + 1]
    dice[DICE - 1] = 0
    return to == HOME or _capture(game, seat, to)


@njit(cache=True, nogil=True)
def _won(game, seat):  # type: ignore[no-untyped-def]
    home = 0
    for token in range(TOKENS):
        home += game.place[seat, token] == HOME
    return home == TOKENS


@njit(cache=True, nogil=True)
def _ply(game, action, limit, cost):  # type: ignore[no-untyped-def]
    seat = game.turn
    game.extra += _advance(game, seat, action)
    game.plies += 1
    won = _won(game, seat)
    game.truncated = not won and game.plies >= limit
    game.over = won or game.truncated
    game.reward[seat], game.reward[1 - seat] = won - cost, -np.float32(won)
    game.due[seat] = 0
    if game.over:
        game.dice[:], game.mask[:], game.extra = 0, 0, 0
    else:
        _next_choice(game)


@njit(cache=True, nogil=True)
def _play(tables, which, chosen, limit, cost):  # type: ignore[no-untyped-def]
    for k in range(which.size):
        _ply(tables[which[k]], chosen[k], limit, cost)


@njit(cache=True, nogil=True)
def _any(game):  # type: ignore[no-untyped-def]
    """Returns a random legal action of the player to move."""
    mask, count = game.mask, 0
    for action in range(ACTIONS):
        count += mask[action]
    rank, passed, before = _draw(game, count), 0, 0
    for action in range(ACTIONS):
        passed += mask[action]
        before += passed <= rank  # without a branch, which could not be predicted
    return before


@njit(cache=True, nogil=True)
def _play_out(tables, which, limit, cost):  # type: ignore[no-untyped-def]
    for table in which:
        game = tables[table]
        while not game.over:
            _ply(game, _any(game), limit, cost)


@njit(cache=True, nogil=True)
def _seen(tables, which, sides):  # type: ignore[no-untyped-def]
    seen = np.empty((which.size, SEEN), dtype=np.float32)
    for k in range(which.size):
        game, side = tables[which[k]], sides[k]
        for token in range(TOKENS):
            seen[k, token] = (game.place[side, token] + 1) / (HOME + 1)
            seen[k, TOKENS + token] = (game.place[1 - side, token] + 1) / (HOME + 1)
        for i in range(DICE):
            seen[k, SEATS * TOKENS + i] = game.dice[i] / SIX
        seen[k, SEEN - 1] = game.due[side]
    return seen
