"""Small games for two, whose best play is known: a heap of stones, and pennies."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.turn_based.game import MASK
from rookery.errors import EnvError
from rookery.plugins import Plugin

MOST = 3  # stones that may be taken at once
PLUGIN = Plugin(
    games={"heaps": "heap_games:Heaps"}, scripted_players={"heaps": "heap_games:Careful"}
)


class Heaps:
    """Players take 1 to 3 stones in turns; whoever takes the last one wins.

    Who leaves a multiple of four wins. `empty` is the reward of a game that comes to its limit.
    """

    name = "heaps"
    seats = 2

    def __init__(self, num: int, stones: int = 12, limit: int = 1_000):
        self.num, self.stones, self.limit = num, stones, limit
        view = spaces.Box(0.0, 1.0, (stones + 1,), np.float32)
        self.observation_space: Any = spaces.Dict(
            {"observation": view, MASK: spaces.Box(0, 1, (MOST,), np.int8)}
        )
        self.action_space: Any = spaces.Discrete(MOST)
        self.left = np.zeros(num, dtype=np.int64)
        self.turn, self.plies = np.zeros(num, dtype=np.int64), np.zeros(num, dtype=np.int64)
        self.due = np.zeros((num, 2), dtype=np.bool_)
        self.reward = np.zeros((num, 2), dtype=np.float32)
        self.over = np.ones(num, dtype=np.bool_)
        self.ended, self.truncated = (np.zeros((num, 2), dtype=np.bool_) for _ in range(2))
        self.begun = 0

    def reset(self, which, rng):
        self.begun += len(which)
        self.left[which], self.turn[which], self.plies[which] = self.stones, 0, 0
        self.reward[which] = 0.0
        self.over[which] = self.ended[which] = self.truncated[which] = False
        self.due[which] = (True, False)

    def look(self, which, seats):
        view = np.eye(self.stones + 1, dtype=np.float32)[self.left[which]]
        mask = (np.arange(1, MOST + 1) <= self.left[which][:, None]).astype(np.int8)
        return {"observation": view, MASK: mask}

    def play(self, which, action):
        seat = self.turn[which]
        took = action[np.arange(len(which)), seat] + 1
        if (took > self.left[which]).any() or (took < 1).any():
            raise EnvError("more stones were taken than there are")
        self.left[which] -= took
        self.plies[which] += 1
        self.turn[which] = 1 - seat
        won, late = self.left[which] == 0, self.plies[which] >= self.limit
        self.over[which] = won | late
        self.ended[which], self.truncated[which] = self.over[which, None], (late & ~won)[:, None]
        self.reward[which] = 0.0
        self.reward[which, seat] = won
        self.reward[which, 1 - seat] = -1.0 * won
        self.due[which] = np.eye(2, dtype=np.bool_)[1 - seat] & ~(won | late)[:, None]

    def export_state(self):
        return None

    def restore_state(self, state): ...

    def close(self): ...


class Pennies(Heaps):
    """Both show a side at once, three times; the first seat wins a round where they are equal."""

    name = "pennies"

    def __init__(self, num: int):
        super().__init__(num, stones=3)
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)

    def reset(self, which, rng):
        super().reset(which, rng)
        self.due[which] = True

    def look(self, which, seats):
        return self.left[which, None].astype(np.float32)

    def play(self, which, action):
        equal = np.where(action[:, 0] == action[:, 1], 1.0, -1.0)
        self.left[which] -= 1
        self.over[which] = self.left[which] == 0
        self.ended[which] = self.over[which, None]
        self.due[which] = ~self.ended[which]
        self.reward[which] = equal[:, None] * (1.0, -1.0)


class Careful:
    """Plays heaps perfectly; where every move loses, takes one stone."""

    def act(self, obs, rng):
        left = obs["observation"].argmax(1)
        return np.maximum(left % (MOST + 1) - 1, 0)


class Always:
    """Does the same whatever it sees."""

    def __init__(self, action: int):
        self.action = action

    def act(self, obs, rng):
        return np.full(len(next(iter(obs.values())) if isinstance(obs, dict) else obs), self.action)
