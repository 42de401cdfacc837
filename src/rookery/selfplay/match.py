"""Matches: two players meet at many tables, in both seats equally often.

    outcome = play(games, (mine, theirs), count=100, rng=rng)
    results = table(games, {"random": ..., "v400": ...}, count=100, rng=rng)

Every game begins with a few random plies, the same kind for everybody: two players who always do
the same would otherwise play one game again and again. Whoever has earned more in a game has won.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rookery.envs.games.interface import Games, Player
from rookery.envs.tables import any_allowed
from rookery.errors import ConfigError
from rookery.selfplay.rating import Results
from rookery.types import Array, Bools, Rows

OPENING = 2  # random plies
TABLES = 128  # games at once, where nobody says
PATIENCE = 200  # openings in a row that end a game


class Outcome(NamedTuple):
    """How a match ended, as the first player sees it: by the seat in which it sat."""

    wins: Rows  # [2]
    draws: Rows  # [2]
    losses: Rows  # [2]
    lengths: Rows  # [count] plies of each game, its opening included

    @property
    def games(self) -> int:
        return len(self.lengths)

    @property
    def points(self) -> float:
        """Games won, and half of those drawn."""
        return float((self.wins + self.draws / 2).sum())


class Chance:
    """Any allowed action, all as likely."""

    def __init__(self, action_space: spaces.Space[Any]):
        self._space = action_space

    def act(self, obs: Any, rng: np.random.Generator) -> Array:
        return any_allowed(self._space, obs, rng)


def play(
    games: Games,
    players: Sequence[Player],
    *,
    count: int,
    rng: np.random.Generator,
    opening: int = OPENING,
) -> Outcome:
    """Plays `count` games, half of them with the first player in the first seat."""
    _refuse_odd(games, players, count)
    match = _Match(games, players, count, opening)
    match.seat(np.arange(min(games.num, count)), rng)
    while len(which := match.busy):
        match.step(which, rng)
        match.settle(which, rng)
    return match.outcome()


def table(
    games: Games,
    players: Mapping[str, Player],
    count: int,
    rng: np.random.Generator,
    *,
    opening: int = OPENING,
) -> Results:
    """Lets everybody play `count` games against everybody else."""
    names = tuple(players)
    wins = np.zeros((len(names), len(names)))
    pairs = [(i, j) for j in range(len(names)) for i in range(j)]
    for (i, j), own in zip(pairs, rng.spawn(len(pairs)), strict=True):
        pair = players[names[i]], players[names[j]]
        points = play(games, pair, count=count, rng=own, opening=opening).points
        wins[i, j], wins[j, i] = points, count - points
    return Results(names, wins, count * (1.0 - np.eye(len(names))))


class _Match:
    """Tables at which two players meet. A table takes the next game as soon as one is over."""

    def __init__(self, games: Games, players: Sequence[Player], count: int, opening: int):
        self.games, self.count, self.opening = games, count, opening
        self.players = (*players, Chance(games.action_space))
        space = games.action_space
        assert space.shape is not None, "an action has a shape"
        self.choices = np.zeros((games.num, 2, *space.shape), dtype=space.dtype)  # [E, S, ...]
        self.game = np.full(games.num, -1)  # [E] its number; -1: none
        self.plies = np.zeros(games.num, dtype=np.int64)  # [E]
        self.earned = np.zeros((games.num, 2))  # [E, S]
        self.failed = np.zeros(games.num, dtype=np.int64)  # [E] openings that ended the game
        self.score = np.zeros(count)  # [count] what the first player earned more than the other
        self.lengths = np.zeros(count, dtype=np.int64)
        self.begun = 0

    @property
    def busy(self) -> Rows:
        """The tables with a game."""
        return np.flatnonzero(self.game >= 0)

    def seat(self, which: Rows, rng: np.random.Generator) -> None:
        """Gives tables their next games, as long as there are any."""
        fresh = which[: self.count - self.begun]
        self.game[which] = -1
        self.game[fresh] = np.arange(self.begun, self.begun + len(fresh))
        self.begun += len(fresh)
        self.failed[fresh] = 0
        self._begin(fresh, rng)

    def step(self, which: Rows, rng: np.random.Generator) -> None:
        """Lets whoever is due at these tables act."""
        due, who = self.games.due, self._who()
        for number, player in enumerate(self.players):
            tables, seats = np.nonzero(due & (who == number) & (self.game >= 0)[:, None])
            if len(tables):
                seen = self.games.look(tables, seats)
                self.choices[tables, seats] = player.act(seen, rng)
        self.games.play(which, self.choices[which])
        self.plies[which] += 1
        self.earned[which] += self.games.reward[which]

    def settle(self, which: Rows, rng: np.random.Generator) -> None:
        """Notes the games that are over, and lets new ones begin."""
        over = which[self.games.over[which]]
        early = self.plies[over] <= self.opening
        if early.any():
            self._again(over[early], rng)
        ended = over[~early]
        if len(ended):
            number = self.game[ended]
            first = number % 2  # the seat of the first player
            ours, theirs = self.earned[ended, first], self.earned[ended, 1 - first]
            self.score[number], self.lengths[number] = ours - theirs, self.plies[ended]
            self.seat(ended, rng)

    def outcome(self) -> Outcome:
        def by_seat(chosen: Bools) -> Rows:
            return np.array([int(chosen[seat::2].sum()) for seat in range(2)], dtype=np.int64)

        score = self.score
        return Outcome(by_seat(score > 0), by_seat(score == 0), by_seat(score < 0), self.lengths)

    def _who(self) -> Array:
        """Returns [E, S]: which player sits there; in an opening, chance."""
        first = self.game[:, None] % 2
        who: Array = (np.arange(2) != first).astype(np.int64)
        who[self.plies < self.opening] = 2
        return who

    def _again(self, which: Rows, rng: np.random.Generator) -> None:
        self.failed[which] += 1
        if self.failed.max() >= PATIENCE:
            raise ConfigError(
                f"the opening has {self.opening} plies, and {PATIENCE} openings in a row ended the "
                f"game; {self.games.name} must last longer than its opening; lower it, or set 0"
            )
        self._begin(which, rng)

    def _begin(self, which: Rows, rng: np.random.Generator) -> None:
        self.plies[which], self.earned[which] = 0, 0.0
        if len(which):
            self.games.reset(which, rng)


def _refuse_odd(games: Games, players: Sequence[Player], count: int) -> None:
    if len(players) != 2 or games.seats != 2:
        raise ConfigError(
            f"{len(players)} players were given for {games.name}, which has {games.seats} seats; "
            "a match is between two players in a game for two; take others"
        )
    if count < 2 or count % 2:
        raise ConfigError(
            f"a match of {count} games was asked for; both seats are played equally often, so it "
            f"needs an even number above 0; ask for {max(2, count + 1)}"
        )
