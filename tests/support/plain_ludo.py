"""Ludo played slowly, by its rules and nothing else: squares of the board, lists of dice."""

from dataclasses import dataclass, field

import numpy as np

from rookery.games.ludo import Ludo, _allow

RING, HOME, BASE = 52, 56, -1
ENTRIES = (0, 26)  # squares of the board on which the seats begin
ONE = np.array([0])  # the only table
SAFE = {0, 13, 26, 39} | {8, 21, 34, 47}  # squares of the board: entries of four colours, and stars


@dataclass
class Luck:
    """The table's stream of numbers, by its published definition."""

    word: int

    def below(self, count):
        self.word = (self.word + 0x9E3779B97F4A7C15) % 2**64
        mixed = self.word
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
        return ((mixed >> 32) * count) >> 32

    def die(self):
        return 1 + self.below(6)


def square(seat, position):
    """Returns where on the board a token stands, None where nobody else comes."""
    return (ENTRIES[seat] + position) % RING if 0 <= position <= 50 else None


@dataclass
class Table:
    luck: Luck
    limit: int = 1000
    seat: int = 0
    places: list = field(default_factory=lambda: [[BASE] * 4, [BASE] * 4])
    dice: list = field(default_factory=list)
    owed: int = 0
    plies: int = 0
    winner: int | None = None

    @property
    def truncated(self):
        return self.winner is None and self.plies >= self.limit

    @property
    def over(self):
        return self.winner is not None or self.truncated

    def begin(self):
        self._roll()
        self._go_on()
        return self

    def choices(self):
        """Returns the allowed actions, as numbers."""
        if self.over:
            return []
        return [
            index * 4 + token
            for index, die in enumerate(self.dice)
            for token, position in enumerate(self.places[self.seat])
            if self._target(position, die) is not None
        ]

    def play(self, action):
        index, token = divmod(action, 4)
        mine = self.places[self.seat]
        mine[token] = self._target(mine[token], self.dice.pop(index))
        self.plies += 1
        if mine[token] == HOME or self._captured(square(self.seat, mine[token])):
            self.owed += 1
        if mine == [HOME] * 4:
            self.winner = self.seat
        if self.over:
            self.dice, self.owed = [], 0
        else:
            self._go_on()

    def _target(self, position, die):
        if position == BASE:
            return 0 if die == 6 else None
        return position + die if position + die <= HOME else None

    def _captured(self, where):
        if where is None or where in SAFE:
            return False
        other = 1 - self.seat
        hit = [t for t, at in enumerate(self.places[other]) if square(other, at) == where]
        for token in hit:
            self.places[other][token] = BASE
        return bool(hit)

    def _go_on(self):
        while not self.choices():
            if self.owed:
                self.owed -= 1
            else:
                self.seat = 1 - self.seat
            self._roll()

    def _roll(self):
        self.dice = [self.luck.die()]
        while self.dice[-1] == 6 and len(self.dice) < 3:
            self.dice.append(self.luck.die())
        if self.dice == [6, 6, 6]:
            self.dice, self.owed = [], 0


def taken(games, action):
    """Plays one action for whoever is due at the only table."""
    games.play(ONE, np.full((1, 2), action))


def laid(table, **settings):
    """Returns a compiled game in the position of a slow one."""
    games = Ludo(1, limit=table.limit, **settings)
    games.reset(ONE, np.random.default_rng(0))
    record = games.tables[0]
    record["place"], record["turn"], record["extra"] = table.places, table.seat, table.owed
    record["dice"] = table.dice + [0] * (3 - len(table.dice))
    _allow(record, table.seat)
    record["due"] = [table.seat == seat for seat in range(2)]
    record["luck"], record["plies"] = table.luck.word, table.plies
    return games
