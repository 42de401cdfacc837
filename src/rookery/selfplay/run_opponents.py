"""Builds a run's self-play opponents: random and scripted players, and past policies.

Past policies are stored as weight snapshots. They are those of the run itself and, in a league (a
set of runs that play against each other), those of the other runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.algorithms import Algorithm
from rookery.config.schema import Config, Pick
from rookery.envs.make import Envs, Factory
from rookery.envs.turn_based.game import Who
from rookery.envs.turn_based.opponents import tables_of
from rookery.selfplay.opponent_seats import SeatedOpponents
from rookery.selfplay.opponents import ODDS, WHO, OpponentManager, blank
from rookery.selfplay.snapshot_files import FOLDER, SnapshotStore, claim
from rookery.sharing.pool_files import LEAGUE, make_private
from rookery.types import Array

if TYPE_CHECKING:
    from rookery.selfplay.evaluation_rating import SnapshotRater

READY = 0.25  # fraction of games in which the actor must be to move before it acts
PAIR = 2  # seats of games that can be rated


class RunOpponentsBuilder:
    """Builds a run's self-play opponents in the learner, actor and evaluation processes.

    Implements `OpponentsBuilder`, the library's interface to self-play. A league is a set of runs
    that play against each other's weight snapshots.
    """

    def opponents(self, config: Config, run_dir: Path) -> OpponentManager:
        return OpponentManager(config.selfplay, store_of(config, run_dir))

    def blank(self, config: Config) -> dict[str, Array]:
        return blank(config.selfplay)

    def seat(
        self, config: Config, envs: Envs, for_actors: SnapshotStore | None, latest: Algorithm
    ) -> SeatedOpponents:
        selfplay = config.selfplay
        tables, seated = tables_of(envs), SeatedOpponents(config, envs, for_actors, latest)
        tables.invite(
            seated,
            both_seats=selfplay.learn_from_both_seats,
            opening=selfplay.opening,
            vary=True,
            ready=READY,
        )
        return seated

    def seat_evaluation(self, config: Config, envs: Envs, latest: Algorithm) -> None:
        tables, seated = tables_of(envs), SeatedOpponents(config, envs, None, latest)
        who = {Pick.RANDOM: Who.RANDOM, Pick.SCRIPTED: Who.SCRIPTED}[config.selfplay.eval_opponent]
        seated.hear({WHO: np.array([who]), ODDS: np.ones(1)})
        tables.invite(seated, opening=config.selfplay.eval_opening)

    def rater(self, config: Config, factory: Factory | None, seats: int) -> "SnapshotRater | None":
        """Returns an object that rates weight snapshots by Elo, for a game of two players.

        Returns None for games with another number of players (`seats`).
        """
        if seats != PAIR:
            return None
        from rookery.selfplay.evaluation_rating import SnapshotRater  # not needed by actors

        return SnapshotRater(config, factory)


def store_of(config: Config, run_dir: Path) -> SnapshotStore:
    """Returns the store of this run's weight snapshots, which serve as self-play opponents.

    In a league (a set of runs that play against each other) it also reads other runs' snapshots.
    """
    if not config.selfplay.league:
        return SnapshotStore(run_dir / FOLDER)
    league = Path(str(config.sharing.pool)).absolute() / LEAGUE
    make_private(league.parent)
    make_private(league)
    tag = claim(league, str(run_dir.absolute()))
    return SnapshotStore(run_dir / FOLDER, league, tag, config.selfplay.part)


BUILDER = RunOpponentsBuilder()
