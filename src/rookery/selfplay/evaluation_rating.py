"""Elo rating of a weight snapshot during training: matches against random and scripted players.

The matches are seeded. The random player has 0 Elo. The scripted player, if the game has one, is
rated by matches against the random player. A rating therefore depends only on the snapshot's
weights, and ratings of different runs can be compared. `rookery ladder` rates a run's snapshots
against each other (`snapshot_ladder.py`).
"""

from collections.abc import Mapping

import numpy as np

from rookery import seeding
from rookery.config.schema import Config
from rookery.envs.make import Factory
from rookery.seeding import Role
from rookery.selfplay.match import TABLES, play, table
from rookery.selfplay.rating import Results, rate
from rookery.selfplay.snapshot_ladder import RANDOM, anchors, games_of
from rookery.selfplay.snapshot_players import PlayerFactory
from rookery.types import Array

KNOWN = 400  # games between the anchors, played once
OWN = "snapshot"


class SnapshotRater:
    """Rates weight snapshots by Elo, in matches against the random player.

    If the game has a scripted player, there are also matches against it.
    """

    def __init__(self, config: Config, factory: Factory | None = None):
        self._anchors, self._seats = anchors(config, factory), PlayerFactory(config, factory)
        self._games = games_of(config, TABLES, factory)
        self._between = table(
            self._games, self._anchors, KNOWN, seeding.generator(0, Role.EVALUATOR)
        )

    def rate(self, arrays: Mapping[str, Array], *, games: int, seed: int) -> tuple[float, float]:
        """Returns the Elo rating of the policy weights `arrays`, and its standard error.

        Plays `games` games (rounded up to an even number) against the random player, and as many
        against the scripted player if there is one.
        """
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

    def figures(self, arrays: Mapping[str, Array], *, games: int, seed: int) -> dict[str, float]:
        """Rates policy weights by matches; returns the metrics `elo` and `elo_deviation`."""
        elo, deviation = self.rate(arrays, games=games, seed=seed)
        return {"elo": elo, "elo_deviation": deviation}

    def close(self) -> None:
        self._games.close()


def _with_one_more(between: Results, points: Array, count: int) -> Results:
    """Adds a player to a tournament's results: its `points` in `count` games with each player."""
    size = len(between.names)
    wins, games = np.zeros((size + 1, size + 1)), np.zeros((size + 1, size + 1))
    wins[:size, :size], games[:size, :size] = between.wins, between.games
    wins[size, :size], wins[:size, size] = points, count - points
    games[size, :size] = games[:size, size] = count
    return Results((*between.names, OWN), wins, games)
