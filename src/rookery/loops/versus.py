"""A person against a policy: one table, of which one seat is the person's.

    versus = open_table(Path("runs/a"), against="best", seed=0)
    versus.begin(seat=0)
    while not versus.over:
        versus.ply(action if versus.due else None)      # what the others did

Nothing is read or printed here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rookery import seeding
from rookery.config.load import load_run
from rookery.envs.games.interface import MASK, Games, Player
from rookery.envs.games.picture import PICTURES
from rookery.errors import ConfigError
from rookery.loops.hosted import refuse_to_open
from rookery.loops.ladder import anchors, games_of
from rookery.loops.snapshot import Seats, allowed, find
from rookery.loops.wiring import Factory
from rookery.seeding import Role
from rookery.types import Array

TABLE = np.zeros(1, dtype=np.int64)  # the only one


class Versus:
    """A game in which everybody but one seat is the same player."""

    def __init__(self, games: Games, opponent: Player, rng: np.random.Generator):
        if not isinstance(games.action_space, spaces.Discrete):
            raise ConfigError(
                f"{games.name} has the actions {games.action_space}; a person can choose among "
                "Discrete ones; name a run of such a game"
            )
        self.games, self._opponent, self._rng = games, opponent, rng
        self._space = games.action_space
        self.seat, self._earned = 0, np.zeros(games.seats)

    @property
    def name(self) -> str:
        return self.games.name

    @property
    def seats(self) -> int:
        return self.games.seats

    def begin(self, seat: int | None = None) -> None:
        """Starts a new game; without a seat one is drawn for the person."""
        self.seat = int(self._rng.integers(self.seats)) if seat is None else seat
        self._earned[:] = 0.0
        self.games.reset(TABLE, self._rng)

    @property
    def over(self) -> bool:
        return bool(self.games.over[0])

    @property
    def due(self) -> bool:
        """Is it the person who has to act, perhaps with others?"""
        return bool(self.games.due[0, self.seat])

    @property
    def choices(self) -> list[int]:
        """What the person may do, as the game counts it."""
        legal = allowed(self._looked(self.seat), int(self._space.n))[0]
        return [int(self._space.start + i) for i in np.flatnonzero(legal)]

    @property
    def lead(self) -> float:
        """How much more the person has earned than the best of the others."""
        others = np.delete(self._earned, self.seat)
        return float(self._earned[self.seat] - others.max())

    def picture(self) -> str:
        """Draws the position as the person's seat sees it."""
        return self._drawn(self.seat)

    def ply(self, action: int | None = None) -> dict[int, str]:
        """Lets whoever is due act, the person by `action`; says what other seats did."""
        due = np.flatnonzero(self.games.due[0]).tolist()
        actions: Array = np.full((1, self.seats), self._space.start, dtype=np.int64)
        told: dict[int, str] = {}
        for seat in due:
            own = seat == self.seat
            assert not own or action is not None, "the person is due"
            actions[0, seat] = action if own else self._answer(seat)
            if not own:
                told[seat] = self._meaning(seat, int(actions[0, seat]))
        self.games.play(TABLE, actions)
        self._earned += self.games.reward[0]
        return told

    def _answer(self, seat: int) -> int:
        return int(self._opponent.act(self._looked(seat), self._rng)[0])

    def _meaning(self, seat: int, action: int) -> str:
        """Says an action as the seat's picture explains it: in a line that begins with it."""
        lines = (line.strip() for line in self._drawn(seat).splitlines())
        return next((line for line in lines if line.startswith(f"{action}: ")), str(action))

    def _drawn(self, seat: int) -> str:
        obs = self._looked(seat)
        if self.name in PICTURES:
            return PICTURES[self.name]({name: leaf[0] for name, leaf in obs.items()}, seat)
        return described(obs)

    def _looked(self, seat: int) -> Any:
        return self.games.look(TABLE, np.array([seat]))

    def close(self) -> None:
        self.games.close()


def open_table(
    run_dir: Path, *, against: str = "best", seed: int = 0, factory: Factory | None = None
) -> Versus:
    """Makes a table with a run's game; `against` is a snapshot, or one of those who never learn."""
    config = load_run(run_dir)
    refuse_to_open(config, run_dir)
    torch.set_num_threads(1)
    known = anchors(config, factory)
    if against == "scripted" and against not in known:
        raise ConfigError(
            f"--against is scripted, and nobody wrote a player for {config.env.id}; it may be "
            "latest, best, random or v and a version; take one of these"
        )
    opponent = known.get(against)
    if opponent is None:
        opponent = Seats(config, factory).player(find(run_dir, against).read())
    rng = seeding.generator(seed, Role.EVALUATOR, index=1)  # others than those of a ladder
    return Versus(games_of(config, factory)(1), opponent, rng)


def described(obs: Any) -> str:
    """Writes an observation down, a batch of one; for games that nobody draws."""
    if not isinstance(obs, Mapping):
        return np.array2string(np.asarray(obs)[0], precision=3, threshold=400)
    parts = [f"{name}:\n{described(leaf)}" for name, leaf in obs.items() if name != MASK]
    return "\n".join(parts)
