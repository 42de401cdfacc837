"""The ladder of a run: its snapshots play each other, and everybody gets a rating.

    ladder = climb(Path("runs/a"), games=100, seed=0, snapshots=12)
    ladder.answer(); report.ladder.write(path, ladder.chart())

Two players do not learn and hold the scale: random, which has 0 Elo, and the game's scripted one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rookery import seeding
from rookery.config.load import load_run
from rookery.config.schema import Config
from rookery.envs.games.interface import Games, Player
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.loops.company import scripted
from rookery.loops.hosted import refuse_to_open
from rookery.loops.snapshot import Seats, Snapshot, saved, taken
from rookery.loops.wiring import Factory
from rookery.report.ladder import Chart, Entry, remarks
from rookery.seeding import Role
from rookery.selfplay.match import TABLES, Chance, table
from rookery.selfplay.rating import Cycles, Ratings, Results, cycles, rate, spearman
from rookery.types import Rows

RANDOM, SCRIPTED = "random", "scripted"
SURE = 2.0  # standard deviations from which a pair counts as decided beyond chance


@dataclass(frozen=True)
class Ladder:
    """Who is how strong; the anchors come first, then snapshots in the order of training."""

    run: str
    game: str
    games: int  # of each pair
    seed: int
    snapshots: tuple[Snapshot, ...]
    results: Results

    @cached_property
    def ratings(self) -> Ratings:
        return rate(self.results, RANDOM)

    @property
    def anchors(self) -> int:
        """How many of the players do not learn."""
        return len(self.results.names) - len(self.snapshots)

    @property
    def order(self) -> list[int]:
        """The players' numbers, the strongest first."""
        return [int(i) for i in np.argsort(-self.ratings.elo, kind="stable")]

    @property
    def spearman(self) -> float | None:
        """Between snapshots' numbers and ratings; None where there are too few to have an order."""
        learned = self.ratings.elo[self.anchors :]
        found = spearman(range(len(learned)), learned.tolist())
        return None if isnan(found) else found

    def cycles(self, sure: float = 0.0) -> Cycles:
        """Counts circles among the snapshots."""
        own = slice(self.anchors, None)
        names, wins, games = self.results
        return cycles(Results(names[own], wins[own, own], games[own, own]), sure=sure)

    def answer(self) -> dict[str, Any]:
        """Returns everything, for programs; players from the strongest down."""
        return {
            "run": self.run,
            "game": self.game,
            "games": self.games,
            "seed": self.seed,
            "players": [self._player(i, place) for place, i in enumerate(self.order, 1)],
            "payoff": [[self._share(i, j) for j in self.order] for i in self.order],
            "spearman": self.spearman,
            "cycles": _told(self.cycles()),
            "sure_cycles": _told(self.cycles(SURE)),
        }

    def chart(self) -> Chart:
        """Returns what is drawn."""
        everybody = range(len(self.results.names))
        return Chart(
            title=f"{self.game}: {len(everybody)} players, {self.games} games for each pair",
            entries=[self._entry(i) for i in everybody],
            share=[[self._share(i, j) for j in everybody] for i in everybody],
            note="; ".join((self.run, *remarks(self.spearman, *self.cycles()))),
        )

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

    def _entry(self, i: int) -> Entry:
        snapshot = self._snapshot(i)
        steps = None if snapshot is None else snapshot.learner_steps
        elo, deviation = float(self.ratings.elo[i]), float(self.ratings.deviation[i])
        return Entry(self.results.names[i], elo, deviation, steps)

    def _snapshot(self, i: int) -> Snapshot | None:
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
    """Lets the snapshots of a run, at most so many, and the anchors play each other."""
    config = load_run(run_dir)
    refuse_to_open(config, run_dir)
    torch.set_num_threads(1)
    players: dict[str, Player] = dict(anchors(config, factory))
    chosen, seats = picked(run_dir, snapshots), Seats(config, factory)
    players |= {snapshot.name: seats.player(snapshot.read()) for snapshot in chosen}
    tables = games_of(config, factory)(min(games, TABLES))
    try:
        results = table(tables, players, games, seeding.generator(seed, Role.EVALUATOR))
    finally:
        tables.close()
    return Ladder(str(run_dir), tables.name, games, seed, tuple(chosen), results)


def picked(run_dir: Path, most: int) -> list[Snapshot]:
    """Returns snapshots evenly spread, the newest always; without any, latest and best."""
    if found := taken(run_dir):
        return [found[i] for i in spread(len(found), most)]
    latest, best = saved(run_dir, "latest"), saved(run_dir, "best")
    return [latest] if best.version == latest.version else [best, latest]


def spread(count: int, most: int) -> Rows:
    """Returns at most so many of `count` numbers, as evenly as can be, the last one always."""
    if most >= count:
        return np.arange(count)
    return np.rint(np.linspace(count - 1, 0, most)).astype(np.int64)[::-1]


def games_of(config: Config, factory: Factory | None = None) -> Callable[[int], Games]:
    """Returns what makes so many tables of a run's game."""

    def made(num: int) -> Games:
        games: Games = _seated(config, num, factory).tables.games
        return games

    return made


def anchors(config: Config, factory: Factory | None = None) -> dict[str, Player]:
    """Returns those who do not learn: random, and the game's scripted player where it has one."""
    envs = _seated(config, 1, factory)
    found: dict[str, Player] = {RANDOM: Chance(envs.tables.games.action_space)}
    known = scripted(config, envs)
    envs.close()
    return found if isinstance(known, Chance) else found | {SCRIPTED: known}


def _seated(config: Config, num: int, factory: Factory | None) -> Any:
    """Makes a run's game at `num` tables; what is no game is refused."""
    envs = make(config.judged_env, num, factory=factory)
    if envs.tables is None:
        envs.close()
        raise ConfigError(
            f"this run learned {envs.name}, which one plays alone; a game of several seats is "
            "needed; name a run of one, for example of `rookery train tictactoe`"
        )
    envs.tables.invite()  # one lane for each table: as many tables as lanes
    return envs


def _told(found: Cycles) -> dict[str, Any]:
    return {"cyclic": found.cyclic, "triples": found.triples, "share": found.share}
