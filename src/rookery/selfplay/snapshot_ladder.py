"""Ladder: a tournament of a run's weight snapshots that gives every player an Elo rating.

    ladder = climb(Path("runs/a"), games=100, seed=0, snapshots=12)
    ladder_page(ladder.answer()).html()

The random player, with 0 Elo, and the game's scripted player take part as fixed references
(anchors).
"""

from dataclasses import dataclass
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rookery import seeding
from rookery.checkpoints.load_weights import refuse_foreign
from rookery.config.load import load_run
from rookery.config.schema import Config
from rookery.envs.make import Factory, make
from rookery.envs.turn_based.game import Games, Player
from rookery.errors import ConfigError
from rookery.seeding import Role
from rookery.selfplay.match import TABLES, RandomPlayer, table
from rookery.selfplay.opponent_seats import scripted
from rookery.selfplay.rating import Cycles, Ratings, Results, cycles, rate, spearman
from rookery.selfplay.snapshot_players import PlayerFactory, PolicySnapshot, saved, taken
from rookery.types import Rows

RANDOM, SCRIPTED = "random", "scripted"
SURE = 2.0  # standard deviations by which a side must win to count in `sure_cycles`


@dataclass(frozen=True)
class Ladder:
    """Results of a tournament of a run's weight snapshots (past policies).

    Players that do not learn (anchors) come first, then snapshots in the order of training.
    """

    run: str
    game: str
    games: int  # of each pair
    seed: int
    snapshots: tuple[PolicySnapshot, ...]
    results: Results

    @cached_property
    def ratings(self) -> Ratings:
        return rate(self.results, RANDOM)

    @property
    def anchors(self) -> int:
        """Number of players that do not learn: random, and scripted if the game has one."""
        return len(self.results.names) - len(self.snapshots)

    @property
    def order(self) -> list[int]:
        """Indices of the tournament's players, the strongest first."""
        return [int(i) for i in np.argsort(-self.ratings.elo, kind="stable")]

    @property
    def spearman(self) -> float | None:
        """Spearman's rank correlation of training order and rating of weight snapshots.

        None for fewer than two snapshots, or if all have the same rating.
        """
        learned = self.ratings.elo[self.anchors :]
        found = spearman(range(len(learned)), learned.tolist())
        return None if isnan(found) else found

    def cycles(self, sure: float = 0.0) -> Cycles:
        """Counts intransitive triples of weight snapshots: i beats j, j beats k, k beats i.

        With `sure` above 0, only clear wins count, as in `rating.cycles`.
        """
        own = slice(self.anchors, None)
        names, wins, games = self.results
        return cycles(Results(names[own], wins[own, own], games[own, own]), sure=sure)

    def answer(self) -> dict[str, Any]:
        """Returns the JSON output of `rookery ladder`; players are sorted by rating."""
        return {
            "run": self.run,
            "game": self.game,
            "games": self.games,
            "seed": self.seed,
            "players": [self._player(i, place) for place, i in enumerate(self.order, 1)],
            "payoff": [[self._share(i, j) for j in self.order] for i in self.order],
            "spearman": self.spearman,
            "cycles": _cycles_dict(self.cycles()),
            "sure_cycles": _cycles_dict(self.cycles(SURE)),
        }

    def _player(self, i: int, place: int) -> dict[str, Any]:
        snapshot = self._snapshot(i)
        known = {RANDOM: 0, SCRIPTED: 1} if self.anchors == 2 else {RANDOM: 0}
        return {
            "place": place,
            "name": self.results.names[i],
            "version": snapshot and snapshot.version,
            "learner_steps": snapshot and snapshot.learner_steps,
            "env_steps": snapshot and snapshot.env_steps,
            "elo": float(self.ratings.elo[i]),
            "deviation": float(self.ratings.deviation[i]),
            **{f"against_{name}": self._share(i, j) for name, j in known.items()},
            "games": int(self.results.games[i].sum()),
        }

    def _snapshot(self, i: int) -> PolicySnapshot | None:
        return None if i < self.anchors else self.snapshots[i - self.anchors]

    def _share(self, i: int, j: int) -> float | None:
        return None if i == j else float(self.results.share[i, j])


def climb(
    run_dir: Path,
    *,
    games: int = 100,
    seed: int = 0,
    snapshots: int = 12,
    factory: Factory | None = None,
) -> Ladder:
    """Plays a tournament of a run's weight snapshots, the random player and the scripted player.

    At most `snapshots` snapshots take part. Every pair of players plays `games` games. Raises
    `ConfigError` if the run's environment has a single agent.
    """
    config = load_run(run_dir)
    refuse_foreign(config, run_dir)
    torch.set_num_threads(1)
    players: dict[str, Player] = dict(anchors(config, factory))
    chosen, seats = picked(run_dir, snapshots), PlayerFactory(config, factory)
    players |= {snapshot.name: seats.player(snapshot.read()) for snapshot in chosen}
    tables = games_of(config, min(games, TABLES), factory)
    try:
        results = table(tables, players, games, seeding.generator(seed, Role.EVALUATOR))
    finally:
        tables.close()
    return Ladder(str(run_dir), tables.name, games, seed, tuple(chosen), results)


def picked(run_dir: Path, most: int) -> list[PolicySnapshot]:
    """Returns at most `most` evenly spaced weight snapshots of a run, the newest included.

    For a run without snapshots, returns its checkpoints best and latest instead.
    """
    if found := taken(run_dir):
        return [found[i] for i in spread(len(found), most)]
    latest, best = saved(run_dir, "latest"), saved(run_dir, "best")
    return [latest] if best.version == latest.version else [best, latest]


def spread(count: int, most: int) -> Rows:
    """Returns at most `most` evenly spaced indices below `count`, the last one included."""
    if most >= count:
        return np.arange(count)
    return np.rint(np.linspace(count - 1, 0, most)).astype(np.int64)[::-1]


def games_of(config: Config, num: int, factory: Factory | None = None) -> Games:
    """Makes `num` parallel games of the kind that a run trains on."""
    games: Games = _seated(config, num, factory).tables.games
    return games


def anchors(config: Config, factory: Factory | None = None) -> dict[str, Player]:
    """Returns the players that do not learn, by name: random, and scripted if the game has one.

    They are the fixed references of Elo ratings.
    """
    envs = _seated(config, 1, factory)
    found: dict[str, Player] = {RANDOM: RandomPlayer(envs.tables.games.action_space)}
    known = scripted(config, envs)
    envs.close()
    return found if isinstance(known, RandomPlayer) else found | {SCRIPTED: known}


def _seated(config: Config, num: int, factory: Factory | None) -> Any:
    """Makes `num` parallel games of a run; raises `ConfigError` if the game has a single agent."""
    envs = make(config.eval_env, num, factory=factory)
    if envs.tables is None:
        envs.close()
        raise ConfigError(
            f"this run learned {envs.name}, an environment for one agent; name a run of a game "
            "with several seats"
        )
    envs.tables.invite()  # one environment slot per game
    return envs


def _cycles_dict(found: Cycles) -> dict[str, Any]:
    return {"cyclic": found.cyclic, "triples": found.triples, "share": found.share}
