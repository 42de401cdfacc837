"""Opponent manager of self-play: weight snapshots, win rates, and opponents' probabilities.

    if manager.due(learner_steps):
        manager.keep(version, weights, learner_steps=..., env_steps=...)
    manager.record(who, points)            # a finished game: 1 won, 0.5 drawn, 0 lost
    weight_store.publish(weights | manager.announcement())

The learner process has one manager. A snapshot holds the weights of a past policy. The
probabilities of opponents (`announcement`) are published with the weights, and actors load
snapshots from the store. The manager's state, with the snapshots' weights, is part of a checkpoint.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.config.schema import Drop, Part, SelfplayConfig
from rookery.envs.turn_based.game import Who
from rookery.selfplay.matchmaking import Rival, odds
from rookery.selfplay.snapshot_files import TAG_BITS, LeagueSnapshot, SnapshotStore
from rookery.types import Array

WHO, ODDS = "selfplay.who", "selfplay.odds"  # arrays published with the weights
FIXED = 3  # opponents that are not snapshots: random, scripted, latest
MAX_LEAGUE = 64  # most snapshots of other runs that a run plays against
GRACE = 4  # dropped snapshots that stay on disk, since games against them may be in progress
PRIOR = 1.0  # games, half of them won, with which a win rate starts
NAMES = {Who.RANDOM: "random", Who.SCRIPTED: "scripted", Who.LATEST: "latest"}


@dataclass
class OpponentManager:
    """Self-play opponents of a run, in the learner process.

    Stores weight snapshots (past policies) and the results of games against them, and computes the
    probability of each opponent.
    """

    config: SelfplayConfig
    store: SnapshotStore
    snapshots: list[int] = field(default_factory=list)  # versions, oldest first
    dropped: list[int] = field(default_factory=list)  # versions still on disk
    records: dict[int, deque[float]] = field(default_factory=dict)  # points of recent games
    games: int = 0  # finished games against all opponents
    league_seen: list[list[int]] = field(default_factory=list)  # rivals, at the last updates

    @property
    def for_actors(self) -> SnapshotStore:
        """The store from which actor processes load weight snapshots of opponents."""
        return self.store

    @property
    def league_rivals(self) -> list[int]:
        """Ids of other runs' weight snapshots that may be opponents now; empty outside of a league.

        A league is a set of runs that play against each other.
        """
        return self.league_seen[-1] if self.league_seen else []

    @property
    def league_copies(self) -> list[int]:
        """Ids of other runs' weight snapshots of which this run keeps a copy.

        They are its present opponents, and recent ones, against which games may be in progress.
        """
        return sorted({who for look in self.league_seen for who in look})

    def due(self, learner_steps: int) -> bool:
        return learner_steps > 0 and learner_steps % self.config.snapshot_period == 0

    def keep(
        self, version: int, weights: Mapping[str, Array], *, learner_steps: int, env_steps: int
    ) -> None:
        """Stores a weight snapshot of the policy as a self-play opponent.

        If there are more than `selfplay.keep` snapshots, the one that the setting `selfplay.drop`
        selects (see `DROPS`) is no longer an opponent. In a league (runs that play against each
        other), also updates which snapshots of other runs are opponents.
        """
        about = {"version": version, "learner_steps": learner_steps, "env_steps": env_steps}
        self.store.put(version, weights, about)
        self.snapshots.append(version)
        while len(self.snapshots) > self.config.keep:
            gone = DROPS[self.config.drop](self)
            self.snapshots.remove(gone)
            self.dropped.append(gone)
        while len(self.dropped) > GRACE:
            self._forget(self.dropped.pop(0))
        self._update_league(weights)

    def _forget(self, who: int) -> None:
        self.store.drop(who)
        self.records.pop(who, None)

    def record(self, who: int, points: float) -> None:
        self.records.setdefault(who, deque(maxlen=self.config.memory)).append(points)
        self.games += 1

    def rate(self, who: int) -> float:
        """Returns the run's win rate against an opponent; a draw counts half.

        It is 0.5 before the first game, and shrunk towards 0.5 while there are few games.
        """
        points = self.records.get(who, ())
        return (sum(points) + PRIOR / 2) / (len(points) + PRIOR)

    def rivals(self) -> list[Rival]:
        """Returns the weight snapshots that may be opponents now, with the run's win rates.

        The kinds of opponent `past` and `prioritized` are sampled from these snapshots.
        """
        own = self.snapshots[-self.config.newest :] if self.config.newest else self.snapshots
        if self.config.league and self.config.part is Part.EXPLOITER:
            own = []
        return [Rival(who, self.rate(who)) for who in (*own, *self.league_rivals)]

    def _update_league(self, like: Mapping[str, Array]) -> None:
        """Chooses weight snapshots of other runs as opponents, and copies their files.

        The other runs are those of the league, which play against each other. Deletes older copies,
        except recent ones, against which games may still be in progress. Snapshots whose arrays
        differ in shape from `like` are not used.
        """
        found = LEAGUE_CHOICES[self.config.part](self.store.league_snapshots())
        met = [one.who for one in found if self.store.copy_from_league(one, like)]
        self.league_seen = [*self.league_seen, met][-1 - GRACE :]
        for who in {*self.store.league_copies()} - {*self.league_copies}:
            self._forget(who)

    def announcement(self) -> dict[str, Array]:
        """Returns the opponents' ids and probabilities, to be published with the weights.

        The arrays have constant length; unused entries have probability 0.
        """
        found = odds(self.config, self.rivals())
        announcement = blank(self.config)
        announcement[WHO][: len(found)], announcement[ODDS][: len(found)] = (
            list(found),
            list(found.values()),
        )
        return announcement

    def stats(self) -> dict[str, float]:
        """Returns metrics for the log: number of weight snapshots, games, win rates by opponent."""
        rates = {NAMES[who]: self.rate(who) for who in NAMES if who in self.records}
        met = [self.rate(who) for who in self.snapshots if who in self.records]
        if met:
            rates |= {"past": float(np.mean(met)), "worst": min(met)}
        league = [self.rate(who) for who in self.league_copies if who in self.records]
        if league:
            rates["league"] = float(np.mean(league))
        return {
            "selfplay/snapshots": float(len(self.snapshots)),
            "selfplay/games": float(self.games),
            **{f"selfplay/win_rate_{name}": rate for name, rate in rates.items()},
        }

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns the state for a checkpoint: JSON-ready numbers, and all weight snapshots."""
        numbers = {
            "snapshots": list(self.snapshots),
            "buried": list(self.dropped),
            "looks": [list(look) for look in self.league_seen],
            "records": [[who, list(points)] for who, points in self.records.items()],
            "games": self.games,
            "about": {str(who): self.store.about(who) for who in self._in_use()},
        }
        arrays = {
            f"{who}/{name}": array
            for who in self._in_use()
            for name, array in self.store.weights(who).items()
        }
        return numbers, arrays

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Restores a checkpoint's state: snapshots, game results, opponents.

        Writes the checkpoint's weight snapshots to files, and removes the files of other snapshots.
        """
        self.snapshots, self.dropped = list(numbers["snapshots"]), list(numbers["buried"])
        self.league_seen = [list(look) for look in numbers.get("looks", ())]
        self.records = {
            int(who): deque(points, maxlen=self.config.memory) for who, points in numbers["records"]
        }
        self.games = numbers["games"]
        for who in (*self.store.versions(), *self.store.league_copies()):
            if who not in self._in_use():
                self.store.drop(who)
        for who in self._in_use():
            prefix = f"{who}/"
            own = {n[len(prefix) :]: a for n, a in arrays.items() if n.startswith(prefix)}
            self.store.put(who, own, numbers["about"][str(who)])

    def _in_use(self) -> list[int]:
        return [*self.snapshots, *self.dropped, *self.league_copies]

    def _oldest(self) -> int:
        return self.snapshots[0]

    def _weakest(self) -> int:
        return max(self.snapshots[:-1], key=self.rate)

    def _crowded(self) -> int:
        """Returns the version of the weight snapshot to drop so that the others stay spread out.

        It is the one whose neighbours in version number are closest together. The oldest and the
        newest are not chosen, unless there are only two: then the oldest.
        """
        inner = range(1, len(self.snapshots) - 1)
        if not inner:
            return self.snapshots[0]
        versions = self.snapshots
        return versions[min(inner, key=lambda i: versions[i + 1] - versions[i - 1])]


DROPS: dict[Drop, Callable[[OpponentManager], int]] = {
    Drop.SPREAD: OpponentManager._crowded,
    Drop.OLDEST: OpponentManager._oldest,
    Drop.WEAKEST: OpponentManager._weakest,
}


def _newest_of_each(found: Sequence[LeagueSnapshot]) -> list[LeagueSnapshot]:
    """Chooses at most `MAX_LEAGUE` weight snapshots of other runs as self-play opponents.

    The newest of each run come first, then the second newest of each, and so on.
    """
    return sorted(one for _, one in sorted(_ranked(found))[:MAX_LEAGUE])


def _newest_mains(found: Sequence[LeagueSnapshot]) -> list[LeagueSnapshot]:
    mains = [one for one in found if one.part is Part.MAIN]
    return sorted(one for rank, one in _ranked(mains) if rank == 0)[:MAX_LEAGUE]


def _ranked(found: Sequence[LeagueSnapshot]) -> Iterator[tuple[int, LeagueSnapshot]]:
    """Yields each weight snapshot with the number of newer snapshots of the same run."""
    newer: dict[int, int] = {}
    for one in sorted(found, reverse=True):
        tag = one.who >> TAG_BITS
        newer[tag] = newer.get(tag, -1) + 1
        yield newer[tag], one


LEAGUE_CHOICES: dict[Part, Callable[[Sequence[LeagueSnapshot]], list[LeagueSnapshot]]] = {
    Part.MAIN: _newest_of_each,
    Part.EXPLOITER: _newest_mains,
}


def blank(config: SelfplayConfig) -> dict[str, Array]:
    """Returns arrays of opponents' ids and probabilities, with all probabilities 0.

    They have the shapes of those that the learner publishes with the weights.
    """
    size = FIXED + config.keep + (MAX_LEAGUE if config.league else 0)
    return {WHO: np.full(size, Who.RANDOM, dtype=np.int64), ODDS: np.zeros(size)}
