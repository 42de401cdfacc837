"""Game of a person against a trained policy; terminal input and output are in `cli/play.py`.

game = open_table(Path("runs/a"), against="best", seed=0)
game.begin(seat=0)
while not game.over:
    game.ply(action if game.due else None)      # returns the other players' moves
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rookery import plugins, seeding
from rookery.checkpoints.load_weights import refuse_foreign
from rookery.config.load import load_run
from rookery.envs.make import Factory
from rookery.envs.turn_based.game import MASK, Games, Player
from rookery.errors import ConfigError
from rookery.seeding import Role
from rookery.selfplay.snapshot_ladder import anchors, games_of
from rookery.selfplay.snapshot_players import PlayerFactory, allowed, find
from rookery.types import Array

TABLE = np.zeros(1, dtype=np.int64)  # the only one


class HumanGame:
    """A game of a person against one opponent, which plays all other seats.

    A seat is the position of a player in the game, numbered from 0.
    """

    def __init__(self, games: Games, opponent: Player, rng: np.random.Generator):
        if not isinstance(games.action_space, spaces.Discrete):
            raise ConfigError(
                f"{games.name} has the actions {games.action_space}; playing in the terminal needs "
                "Discrete actions; name a run of such a game"
            )
        self.games, self._opponent, self._rng = games, opponent, rng
        self._space = games.action_space
        self.seat, self._earned = 0, np.zeros(games.seats)

    def begin(self, seat: int | None = None) -> None:
        """Starts a new game; `seat` is the person's player number, from 0 (default: random)."""
        self.seat = int(self._rng.integers(self.games.seats)) if seat is None else seat
        self._earned[:] = 0.0
        self.games.reset(TABLE, self._rng)

    @property
    def over(self) -> bool:
        return bool(self.games.over[0])

    @property
    def due(self) -> bool:
        """Whether the person has to act now."""
        return bool(self.games.due[0, self.seat])

    @property
    def choices(self) -> list[int]:
        """The person's legal actions, in the game's own numbering."""
        legal = allowed(self._looked(self.seat), int(self._space.n))[0]
        return [int(self._space.start + i) for i in np.flatnonzero(legal)]

    @property
    def lead(self) -> float:
        """The person's return minus that of the best opponent."""
        others = np.delete(self._earned, self.seat)
        return float(self._earned[self.seat] - others.max())

    def picture(self) -> str:
        """Returns the position as text, as the person's player observes it."""
        return self._drawn(self.seat)

    def ply(self, action: int | None = None) -> dict[int, str]:
        """Plays one move of every player that is to move; the person's move is `action`.

        Returns the other players' moves as text, by player number (seat).
        """
        due = np.flatnonzero(self.games.due[0]).tolist()
        actions: Array = np.full((1, self.games.seats), self._space.start, dtype=np.int64)
        replies: dict[int, str] = {}
        for seat in due:
            own = seat == self.seat
            assert not own or action is not None, "the person is due"
            actions[0, seat] = action if own else self._answer(seat)
            if not own:
                replies[seat] = self._meaning(seat, int(actions[0, seat]))
        self.games.play(TABLE, actions)
        self._earned += self.games.reward[0]
        return replies

    def _answer(self, seat: int) -> int:
        return int(self._opponent.act(self._looked(seat), self._rng)[0])

    def _meaning(self, seat: int, action: int) -> str:
        """Returns a player's action as text, for the person to read.

        If the position, printed as text, has a line `NUMBER: WORDS` for this action, returns that
        line, otherwise the action's number.
        """
        lines = (line.strip() for line in self._drawn(seat).splitlines())
        return next((line for line in lines if line.startswith(f"{action}: ")), str(action))

    def _drawn(self, seat: int) -> str:
        obs = self._looked(seat)
        board = plugins.names("text_boards").get(self.games.name)
        if board is None:
            return described(obs)
        text: str = plugins.load(board)({name: leaf[0] for name, leaf in obs.items()}, seat)
        return text

    def _looked(self, seat: int) -> Any:
        return self.games.look(TABLE, np.array([seat]))

    def close(self) -> None:
        self.games.close()


def open_table(
    run_dir: Path, *, against: str = "best", seed: int = 0, factory: Factory | None = None
) -> HumanGame:
    """Returns a game between a person and an opponent, in the environment of a training run.

    `against` names the opponent: `random`, `scripted`, a checkpoint of the run (`best`, `latest`),
    or a weight snapshot of the run by its version (`v400`).
    """
    config = load_run(run_dir)
    refuse_foreign(config, run_dir)
    torch.set_num_threads(1)
    known = anchors(config, factory)
    if against == "scripted" and against not in known:
        raise ConfigError(
            f"--against is scripted, and {config.env.id} has no scripted player; give latest, "
            "best, random, or v and a version"
        )
    opponent = known.get(against)
    if opponent is None:
        opponent = PlayerFactory(config, factory).player(find(run_dir, against).read())
    rng = seeding.generator(seed, Role.EVALUATOR, index=1)  # a ladder uses index 0
    return HumanGame(games_of(config, 1, factory), opponent, rng)


def described(obs: Any) -> str:
    """Returns an observation (a batch of one) as text, for games that cannot be drawn as text."""
    if not isinstance(obs, Mapping):
        return np.array2string(np.asarray(obs)[0], precision=3, threshold=400)
    parts = [f"{name}:\n{described(leaf)}" for name, leaf in obs.items() if name != MASK]
    return "\n".join(parts)
