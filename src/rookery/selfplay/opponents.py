"""The opponents of a run: its snapshots, how it does against each, and whom to meet next.

    if manager.due(learner_steps):
        manager.keep(version, weights, learner_steps=..., env_steps=...)
    manager.record(who, points)            # a finished game: 1 won, 0.5 drawn, 0 lost
    board.publish(weights | manager.announcement())

The learner's process has one of these; actors hear from it through the board, and load what they
play against from the gallery. Everything it knows, the snapshots' weights too, is in a checkpoint.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.config.schema import Drop, Part, SelfplayConfig
from rookery.envs.games.interface import Who
from rookery.selfplay.gallery import TAG_BITS, Found, Gallery
from rookery.selfplay.matchmaking import Rival, odds
from rookery.types import Array

WHO, ODDS = "selfplay.who", "selfplay.odds"  # what a published version says beside its weights
FIXED = 3  # opponents that are nobody's snapshot
FOREIGNERS = 64  # of a league that a run may meet
GRACE = 4  # snapshots that were dropped last stay on disk: games against them may still be on
PRIOR = 1.0  # games, half of them won, that a win rate begins with
NAMES = {Who.RANDOM: "random", Who.SCRIPTED: "scripted", Who.LATEST: "latest"}


@dataclass
class Record:
    """What is remembered of the games against one opponent."""

    points: deque[float]

    @property
    def rate(self) -> float:
        """Our share of the points, drawn towards a half while games are few."""
        return (sum(self.points) + PRIOR / 2) / (len(self.points) + PRIOR)


@dataclass
class OpponentManager:
    """Keeps snapshots and records, and says how likely each opponent is."""

    config: SelfplayConfig
    gallery: Gallery
    snapshots: list[int] = field(default_factory=list)  # versions, oldest first
    buried: list[int] = field(default_factory=list)  # dropped, and still on disk
    records: dict[int, Record] = field(default_factory=dict)
    games: int = 0  # all of them
    looks: list[list[int]] = field(default_factory=list)  # whom of the league, when last looked

    @property
    def foreigners(self) -> list[int]:
        """Those of the league that may be met now."""
        return self.looks[-1] if self.looks else []

    @property
    def guests(self) -> list[int]:
        """Those and the ones before them: games against these may still be on."""
        return sorted({who for look in self.looks for who in look})

    def due(self, learner_steps: int) -> bool:
        return learner_steps > 0 and learner_steps % self.config.snapshot_period == 0

    def keep(
        self, version: int, weights: Mapping[str, Array], *, learner_steps: int, env_steps: int
    ) -> None:
        """Takes a snapshot, and lets go of another where there are too many."""
        about = {"version": version, "learner_steps": learner_steps, "env_steps": env_steps}
        self.gallery.put(version, weights, about)
        self.snapshots.append(version)
        while len(self.snapshots) > self.config.keep:
            gone = DROPS[self.config.drop](self)
            self.snapshots.remove(gone)
            self.buried.append(gone)
        while len(self.buried) > GRACE:
            self._forget(self.buried.pop(0))
        self._look_around(weights)

    def _forget(self, who: int) -> None:
        self.gallery.drop(who)
        self.records.pop(who, None)

    def record(self, who: int, points: float) -> None:
        found = self.records.get(who)
        if found is None:
            found = self.records[who] = Record(deque(maxlen=self.config.memory))
        found.points.append(points)
        self.games += 1

    def rate(self, who: int) -> float:
        """Returns our win rate against somebody, a half before the first game."""
        return self.records[who].rate if who in self.records else 0.5

    def rivals(self) -> list[Rival]:
        """Returns the snapshots that past and prioritized choose among."""
        own = self.snapshots[-self.config.newest :] if self.config.newest else self.snapshots
        return [Rival(who, self.rate(who)) for who in (*self._kin(own), *self.foreigners)]

    def _kin(self, own: Sequence[int]) -> Sequence[int]:
        return () if self.config.league and self.config.part is Part.EXPLOITER else own

    def _look_around(self, like: Mapping[str, Array]) -> None:
        """Sees who is in the league now, and lets those go that were met long ago."""
        found = MEETS[self.config.part](self.gallery.foreign())
        met = [one.who for one in found if self.gallery.adopt(one, like)]
        self.looks = [*self.looks, met][-1 - GRACE :]
        for who in {*self.gallery.guests()} - {*self.guests}:
            self._forget(who)

    def announcement(self) -> dict[str, Array]:
        """Returns who may be met and how likely, as arrays of one length for the whole run."""
        found = odds(self.config, self.rivals())
        said = blank(self.config)
        said[WHO][: len(found)], said[ODDS][: len(found)] = list(found), list(found.values())
        return said

    def stats(self) -> dict[str, float]:
        """Returns what is worth logging: our win rate against each kind, and the newest few."""
        rates = {NAMES[who]: self.rate(who) for who in NAMES if who in self.records}
        met = [self.rate(who) for who in self.snapshots if who in self.records]
        if met:
            rates |= {"past": float(np.mean(met)), "worst": min(met)}
        league = [self.rate(who) for who in self.guests if who in self.records]
        if league:
            rates["league"] = float(np.mean(league))
        return {
            "selfplay/snapshots": float(len(self.snapshots)),
            "selfplay/games": float(self.games),
            **{f"selfplay/win_rate_{name}": rate for name, rate in rates.items()},
        }

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns JSON-ready numbers, and the weights of every snapshot in use."""
        numbers = {
            "snapshots": list(self.snapshots),
            "buried": list(self.buried),
            "looks": [list(look) for look in self.looks],
            "records": [[who, list(record.points)] for who, record in self.records.items()],
            "games": self.games,
            "about": {str(who): self.gallery.about(who) for who in self._in_use()},
        }
        arrays = {
            f"{who}/{name}": array
            for who in self._in_use()
            for name, array in self.gallery.weights(who).items()
        }
        return numbers, arrays

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Goes back to a checkpoint; files that are gone since are written again, later ones go."""
        self.snapshots, self.buried = list(numbers["snapshots"]), list(numbers["buried"])
        self.looks = [list(look) for look in numbers.get("looks", ())]
        self.records = {
            int(who): Record(deque(points, maxlen=self.config.memory))
            for who, points in numbers["records"]
        }
        self.games = numbers["games"]
        for who in (*self.gallery.versions(), *self.gallery.guests()):
            if who not in self._in_use():
                self.gallery.drop(who)
        for who in self._in_use():
            prefix = f"{who}/"
            own = {n[len(prefix) :]: a for n, a in arrays.items() if n.startswith(prefix)}
            self.gallery.put(who, own, numbers["about"][str(who)])

    def _in_use(self) -> list[int]:
        return [*self.snapshots, *self.buried, *self.guests]

    def _oldest(self) -> int:
        return self.snapshots[0]

    def _weakest(self) -> int:
        return max(self.snapshots[:-1], key=self.rate)

    def _crowded(self) -> int:
        """The one between whose neighbours the gap would be the smallest; the ends stay."""
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


def _everybody(found: Sequence[Found]) -> list[Found]:
    """Chooses all, or as many of each run's newest as there is room for."""
    return sorted(one for _, one in sorted(_ranked(found))[:FOREIGNERS])


def _newest_mains(found: Sequence[Found]) -> list[Found]:
    mains = [one for one in found if one.part is Part.MAIN]
    return sorted(one for rank, one in _ranked(mains) if rank == 0)[:FOREIGNERS]


def _ranked(found: Sequence[Found]) -> Iterator[tuple[int, Found]]:
    """Yields each with how many newer ones there are of its run."""
    newer: dict[int, int] = {}
    for one in sorted(found, reverse=True):
        tag = one.who >> TAG_BITS
        newer[tag] = newer.get(tag, -1) + 1
        yield newer[tag], one


MEETS: dict[Part, Callable[[Sequence[Found]], list[Found]]] = {
    Part.MAIN: _everybody,
    Part.EXPLOITER: _newest_mains,
}


def blank(config: SelfplayConfig) -> dict[str, Array]:
    """Returns an announcement of nobody, as long as any of the run's."""
    size = FIXED + config.keep + (FOREIGNERS if config.league else 0)
    return {WHO: np.full(size, Who.RANDOM, dtype=np.int64), ODDS: np.zeros(size)}
