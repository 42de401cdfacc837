"""The rating of a snapshot while its run goes on: seeded matches against those who do not learn.

Random has 0 Elo, and the scripted player, where a game has one, what matches between the two say.
So a rating depends on the snapshot alone, and ratings of different runs can be compared. How a
run's snapshots do against each other is what `rookery ladder` finds out (`ladder.py`).
"""

from collections.abc import Mapping

import numpy as np

from rookery import seeding
from rookery.config.schema import Config
from rookery.loops.ladder import RANDOM, anchors, games_of
from rookery.loops.snapshot import Seats
from rookery.loops.wiring import Factory
from rookery.seeding import Role
from rookery.selfplay.match import TABLES, play, table
from rookery.selfplay.rating import Results, rate
from rookery.types import Array

KNOWN = 400  # games by which the anchors are rated once
OWN = "snapshot"


class Rater:
    """Plays with one set of weights after another."""

    def __init__(self, config: Config, factory: Factory | None = None):
        self._anchors, self._seats = anchors(config, factory), Seats(config, factory)
        self._games = games_of(config, factory)(TABLES)
        self._between = table(
            self._games, self._anchors, KNOWN, seeding.generator(0, Role.EVALUATOR)
        )

    def rate(self, arrays: Mapping[str, Array], *, games: int, seed: int) -> tuple[float, float]:
        """Plays so many games against each anchor, both seats equally often; Elo, deviation."""
        count, player = games + games % 2, self._seats.player(arrays)
        rng = np.random.default_rng(seed)
        points = np.array(
            [
                play(self._games, (player, anchor), count=count, rng=rng).points
                for anchor in self._anchors.values()
            ]
        )
        rated = rate(_with_one_more(self._between, points, count), RANDOM)
        return float(rated.elo[-1]), float(rated.deviation[-1])

    def close(self) -> None:
        self._games.close()


def _with_one_more(between: Results, points: Array, count: int) -> Results:
    """Adds a player who took these points from the others, in so many games with each."""
    size = len(between.names)
    wins, games = np.zeros((size + 1, size + 1)), np.zeros((size + 1, size + 1))
    wins[:size, :size], games[:size, :size] = between.wins, between.games
    wins[size, :size], wins[:size, size] = points, count - points
    games[size, :size] = games[:size, size] = count
    return Results((*between.names, OWN), wins, games)
