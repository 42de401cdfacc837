"""Matches: many games of two players, each the first player in half of the games.

    result = play(games, (mine, theirs), count=100, rng=rng)                      # a match
    results = table(games, {"random": ..., "v400": ...}, count=100, rng=rng)      # a tournament

Every game begins with a few random moves, since two deterministic players would otherwise repeat
one game. The player with the larger return wins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rookery.envs.turn_based.game import Games, Player
from rookery.envs.turn_based.tables import any_allowed
from rookery.errors import ConfigError
from rookery.selfplay.rating import Results
from rookery.types import Array, Bools, Rows

OPENING = 2  # random plies at the start of a game
TABLES = 128  # games played at once by default
PATIENCE = 200  # failed openings in a row before an error


class MatchResult(NamedTuple):
    """Result of a match of two players: wins, draws, losses of the first, and lengths of the games.

    They are counted by seat, the position (0 or 1) that the first player had in a game.
    """

    wins: Rows  # [2]
    draws: Rows  # [2]
    losses: Rows  # [2]
    lengths: Rows  # [count] plies of each game, its opening included

    @property
    def games(self) -> int:
        return len(self.lengths)

    @property
    def points(self) -> float:
        """Points of the first player: 1 for a win, 0.5 for a draw."""
        return float((self.wins + self.draws / 2).sum())


class RandomPlayer:
    """Player that chooses uniformly at random among the legal actions."""

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
) -> MatchResult:
    """Plays `count` games of two players, who swap seats (positions 0 and 1) after every game."""
    _check_request(games, players, count)
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
    """Plays a tournament with `count` games of every pair of players; returns all results.

    Every game begins with `opening` random moves. Raises `ConfigError` if `count` is odd or below
    2.
    """
    names = tuple(players)
    wins = np.zeros((len(names), len(names)))
    pairs = [(i, j) for j in range(len(names)) for i in range(j)]
    for (i, j), own in zip(pairs, rng.spawn(len(pairs)), strict=True):
        pair = players[names[i]], players[names[j]]
        points = play(games, pair, count=count, rng=own, opening=opening).points
        wins[i, j], wins[j, i] = points, count - points
    return Results(names, wins, count * (1.0 - np.eye(len(names))))


class _Match:
    """A match of two players in progress: parallel games, restarted as soon as they are over."""

    def __init__(self, games: Games, players: Sequence[Player], count: int, opening: int):
        self.games, self.count, self.opening = games, count, opening
        self.players = (*players, RandomPlayer(games.action_space))
        space = games.action_space
        assert space.shape is not None, "an action has a shape"
        self.choices = np.zeros((games.num, 2, *space.shape), dtype=space.dtype)  # [E, S, ...]
        self.game = np.full(games.num, -1)  # [E] number of the game at a table; -1: none
        self.plies = np.zeros(games.num, dtype=np.int64)  # [E]
        self.earned = np.zeros((games.num, 2))  # [E, S]
        self.failed = np.zeros(games.num, dtype=np.int64)  # [E] openings that ended the game
        self.score = np.zeros(count)  # [count] return of the first player minus the other's
        self.lengths = np.zeros(count, dtype=np.int64)
        self.begun = 0

    @property
    def busy(self) -> Rows:
        """Indices of the parallel games that are in progress."""
        return np.flatnonzero(self.game >= 0)

    def seat(self, which: Rows, rng: np.random.Generator) -> None:
        """Starts new games of the match in place of the finished parallel games `which` (indices).

        Once all `count` games of the match have begun, no further game is started.
        """
        fresh = which[: self.count - self.begun]
        self.game[which] = -1
        self.game[fresh] = np.arange(self.begun, self.begun + len(fresh))
        self.begun += len(fresh)
        self.failed[fresh] = 0
        self._begin(fresh, rng)

    def step(self, which: Rows, rng: np.random.Generator) -> None:
        """Plays one move in each of the parallel games with indices `which`."""
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
        """Records the results of those parallel games among `which` (indices) that are over.

        Starts the next games in their place. A game that ended within its random opening moves is
        not recorded but played again.
        """
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

    def outcome(self) -> MatchResult:
        def by_seat(chosen: Bools) -> Rows:
            return np.array([int(chosen[seat::2].sum()) for seat in range(2)], dtype=np.int64)

        score = self.score
        return MatchResult(
            by_seat(score > 0), by_seat(score == 0), by_seat(score < 0), self.lengths
        )

    def _who(self) -> Array:
        """Returns which player moves in each of E parallel games for each of S = 2 seats, [E, S].

        0 and 1 are the players of the match, 2 is the random player, which plays the opening moves.
        """
        first = self.game[:, None] % 2
        who: Array = (np.arange(2) != first).astype(np.int64)
        who[self.plies < self.opening] = 2
        return who

    def _again(self, which: Rows, rng: np.random.Generator) -> None:
        self.failed[which] += 1
        if self.failed.max() >= PATIENCE:
            raise ConfigError(
                f"{PATIENCE} openings of {self.opening} plies in a row ended a game of "
                f"{self.games.name}; use a shorter opening, or 0"
            )
        self._begin(which, rng)

    def _begin(self, which: Rows, rng: np.random.Generator) -> None:
        self.plies[which], self.earned[which] = 0, 0.0
        if len(which):
            self.games.reset(which, rng)


def _check_request(games: Games, players: Sequence[Player], count: int) -> None:
    if len(players) != 2 or games.seats != 2:
        raise ConfigError(
            f"got {len(players)} players for {games.name}, which has {games.seats} seats; a match "
            "needs two players and a game of two seats"
        )
    if count < 2 or count % 2:
        raise ConfigError(
            f"got a match of {count} games; half are played in each seat, so give an even number "
            f"above 0, such as {max(2, count + 1)}"
        )
