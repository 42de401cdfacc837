"""Ludo for two, compiled: many games at once.

    games = Ludo(256)
    games.reset(np.arange(256), rng)
    games.play(which, action)                # [K, 2], die * 4 + token of whoever has the turn
    games.play_out(which)                    # to the end, by random choices

Each seat has four tokens. A position counts from the seat's own start: -1 in the base, 0 to 50 on
the ring, 51 to 55 in the home column where nobody else comes, 56 at home. The ring has 52 squares
and the seats sit opposite: square p of one is square p + 26 (mod 52) of the other.

A turn. The seat rolls a die; a 6 is rolled again, up to three dice, and three sixes void the turn.
The dice are then used one by one, in any order: an action is a die and a token. A 6 brings a token
from the base to square 0; any die moves a token on by its number, but not beyond 56. A used die is
gone and those after it move up. Capturing and arriving at home earn another roll each, taken when
the dice are used up or what is left of them moves nobody; three sixes then void the rest. A turn
without anything to choose passes by itself, so whoever is due always has a choice. Seat 0 rolls
first. Four tokens at home win.

Capturing. A token that ends its move where tokens of the other seat stand sends all of them back to
their base, unless the square is safe; there are no blocks. Safe are 0, 8, 13, 21, 26, 34, 39, 47:
the same eight squares of the ring from either side, for shifting them by 26 gives them again. So
are 25, which would be the other's 51 if that one had not left the ring after its 50, and 51 to 56:
nobody else comes there.

What a seat sees, each from 0 to 1: (position + 1) / 57 of its own four tokens and of the other's
four (these count from the other's start), dice / 6 with 0 for none, whether it is its turn.
"""

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from numba import njit

from rookery.envs.games.turns import SEATS, Turns, record
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
    ("luck", "u8"),  # where its stream of random numbers is
    ("place", "i1", (SEATS, TOKENS)),  # positions
    ("dice", "i1", (DICE,)),  # to be used, the first ones first; 0: none
    ("extra", "i1"),  # rolls that the turn has earned and not had
    ("plies", "i4"),  # actions played
)


class Ludo(Turns):
    """Ludo at `num` tables; implements `Games`.

    Winning earns 1 and losing -1; each action costs `step_cost` whoever took it. A game of `limit`
    actions that nobody has won is truncated.
    """

    name = "ludo"

    def __init__(self, num: int, *, limit: int = 1000, step_cost: float = 0.0) -> None:
        if limit < 1:
            raise ConfigError(f"limit must be 1 action or more, got {limit}; give a larger limit")
        super().__init__(num, TABLE, spaces.Box(0, 1, (SEEN,), np.float32))
        self.limit, self.step_cost = limit, np.float32(step_cost)

    def play_out(self, which: Rows) -> None:
        """Plays on to the end at tables `which`, by uniform choices of the tables' own luck."""
        _play_out(self.tables, self._at(which), self.limit, self.step_cost)

    def _begin(self, tables: Rows, rng: np.random.Generator) -> None:
        _begin(self.tables, tables, rng.integers(2**64, size=len(tables), dtype=np.uint64))

    def _move(self, tables: Rows, chosen: Rows) -> None:
        _play(self.tables, tables, chosen, self.limit, self.step_cost)

    def _seen(self, tables: Rows, sides: Rows) -> Floats:
        return _seen(self.tables, tables, sides)  # type: ignore[no-any-return]


def _moving() -> Iterator[int]:
    """Yields for each position, the base first, a word with bit d where a die d moves a token."""
    yield 1 << SIX
    for at in range(HOME + 1):
        yield sum(1 << die for die in range(1, SIX + 1) if at + die <= HOME)


_MOVING = np.array(list(_moving()))

# A table's numbers are those of SplitMix64 (Steele, Lea, Flood 2014): a counter, scrambled.
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF = np.uint64(32)  # bits


@njit(cache=True, nogil=True)
def _draw(game, count):  # type: ignore[no-untyped-def]
    """Draws a number from 0 to `count` - 1."""
    game.luck += _STRIDE
    word = game.luck
    word = (word ^ (word >> _SHIFT[0])) * _MIX[0]
    word = (word ^ (word >> _SHIFT[1])) * _MIX[1]
    word ^= word >> _SHIFT[2]
    return np.int64(((word >> _HALF) * np.uint64(count)) >> _HALF)


@njit(cache=True, nogil=True)
def _roll(game):  # type: ignore[no-untyped-def]
    """Rolls; returns False for three sixes, which leave no dice."""
    game.dice[:] = 0
    for i in range(DICE):
        game.dice[i] = 1 + _draw(game, SIX)
        if game.dice[i] != SIX:
            return True
    game.dice[:] = 0
    return False


@njit(cache=True, nogil=True)
def _allow(game, seat):  # type: ignore[no-untyped-def]
    """Writes what a seat may do; returns how many actions that is."""
    place, dice, mask, count = game.place, game.dice, game.mask, 0
    for token in range(TOKENS):
        moving = _MOVING[place[seat, token] + 1]
        for i in range(DICE):
            may = moving >> dice[i] & 1
            mask[i * TOKENS + token] = may
            count += may
    return count


@njit(cache=True, nogil=True)
def _settle(game):  # type: ignore[no-untyped-def]
    """Rolls and passes until somebody has a choice."""
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
        game.turn = 1  # has no dice, so it passes and seat 0 rolls
        game.extra, game.plies = 0, 0
        game.over, game.truncated = False, False
        game.due[:], game.reward[:] = 0, 0
        _settle(game)


@njit(cache=True, nogil=True)
def _capture(game, seat, square):  # type: ignore[no-untyped-def]
    """Sends back whom a seat finds on a square of its own; returns whether that is anybody."""
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
    """Uses a die for a token; returns whether that earns another roll."""
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
        _settle(game)


@njit(cache=True, nogil=True)
def _play(tables, which, chosen, limit, cost):  # type: ignore[no-untyped-def]
    for k in range(which.size):
        _ply(tables[which[k]], chosen[k], limit, cost)


@njit(cache=True, nogil=True)
def _any(game):  # type: ignore[no-untyped-def]
    """Draws one of the allowed actions."""
    mask, count = game.mask, 0
    for action in range(ACTIONS):
        count += mask[action]
    rank, passed, before = _draw(game, count), 0, 0
    for action in range(ACTIONS):
        passed += mask[action]
        before += passed <= rank  # no branch: none could be foreseen
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
