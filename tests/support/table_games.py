"""Games small enough to play by hand, for tables and those who sit at them."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.turn_based.game import MASK
from rookery.errors import EnvError
from rookery.types import Array, Rows

TARGET = 5


class Count:
    """Two seats add 1 or 2 (actions 0 and 1) to a total by turns; whoever reaches 5 has won.

    Who adds 2 earns 0.25 at once and the other loses as much; who wins earns 1 and the other
    loses 1. Who makes it exactly 3 has another turn. At 4 only adding 1 is allowed. A game
    observes (seat, total, how many games there were at this table before), and is truncated after
    `limit` plies.
    """

    name, seats = "count", 2

    def __init__(self, num: int, limit: int = 100):
        self.num, self.limit = num, limit
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "observation": spaces.Box(-1e6, 1e6, (3,), np.float32),
                MASK: spaces.Box(0, 1, (2,), np.int8),
            }
        )
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.total, self.turn, self.plies = (np.zeros(num, dtype=np.int64) for _ in range(3))
        self.game = np.full(num, -1)
        self.due = np.zeros((num, 2), dtype=np.bool_)
        self.reward = np.zeros((num, 2), dtype=np.float32)
        self.over = np.ones(num, dtype=np.bool_)
        self.ended, self.truncated = (np.zeros((num, 2), dtype=np.bool_) for _ in range(2))
        self.closed = False

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        self.total[which] = self.turn[which] = self.plies[which] = 0
        self.game[which] += 1
        self.over[which] = self.ended[which] = self.truncated[which] = False
        self._settle(which)

    def _settle(self, which: Rows) -> None:
        self.due[which] = np.arange(2) == self.turn[which, None]
        self.due[self.over] = False

    def look(self, which: Rows, seats: Rows) -> dict[str, Array]:
        seen = np.stack([seats, self.total[which], self.game[which]], 1).astype(np.float32)
        mask = np.ones((len(which), 2), dtype=np.int8)
        mask[self.total[which] == TARGET - 1, 1] = 0
        mask[~self.due[which, seats]] = 0
        return {"observation": seen, MASK: mask}

    def play(self, which: Rows, action: Array) -> None:
        for table, chosen in zip(which.tolist(), action, strict=True):
            self._play(table, int(chosen[self.turn[table]]))
        self._settle(which)

    def _play(self, table: int, action: int) -> None:
        seat = int(self.turn[table])
        if action not in (0, 1) or self.total[table] + action >= TARGET:
            raise EnvError(f"table {table}: {action} is forbidden; the mask says so")
        self.total[table] += action + 1
        self.plies[table] += 1
        self.reward[table] = 0.0
        self.reward[table, seat] += 0.25 * action
        self.reward[table, 1 - seat] -= 0.25 * action
        won = self.total[table] == TARGET
        self.reward[table, seat] += won
        self.reward[table, 1 - seat] -= won
        self.truncated[table] = not won and self.plies[table] >= self.limit
        self.over[table] = self.ended[table] = won or self.truncated[table].all()
        if self.total[table] != 3:
            self.turn[table] = 1 - seat

    def export_state(self) -> dict[str, Any] | None:
        return {name: value.tolist() for name, value in self._state().items()}

    def restore_state(self, state: dict[str, Any]) -> None:
        for name, value in self._state().items():
            value[...] = state[name]

    def _state(self) -> dict[str, Array]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def close(self) -> None:
        self.closed = True


class Bids:
    """Three seats show a number from 0 to 2 at once, for two rounds; the highest earns 1.

    Of equals all earn it. Observes (seat, round); nothing is ever forbidden, and there is no mask.
    """

    name, seats = "bids", 3

    def __init__(self, num: int):
        self.num = num
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 10, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.round = np.zeros(num, dtype=np.int64)
        self.due = np.zeros((num, 3), dtype=np.bool_)
        self.reward = np.zeros((num, 3), dtype=np.float32)
        self.over = np.ones(num, dtype=np.bool_)
        self.ended, self.truncated = (np.zeros((num, 3), dtype=np.bool_) for _ in range(2))

    def reset(self, which: Rows, rng: np.random.Generator) -> None:
        self.round[which], self.due[which] = 0, True
        self.over[which] = self.ended[which] = False

    def look(self, which: Rows, seats: Rows) -> Array:
        return np.stack([seats, self.round[which]], 1).astype(np.float32)

    def play(self, which: Rows, action: Array) -> None:
        self.reward[which] = action == action.max(1, keepdims=True)
        self.round[which] += 1
        self.over[which] = self.round[which] == 2
        self.ended[which] = self.over[which, None]
        self.due[which] = ~self.ended[which]

    def export_state(self) -> dict[str, Any] | None:
        return None

    def restore_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class Named:
    """A company of people with numbers: each always does what its number says, if it may.

    An even one adds 1, an odd one 2. It writes down who was asked, and about how many.
    """

    def __init__(self, *numbers: int):
        self.numbers, self.invited = numbers, 0
        self.asked: list[tuple[int, int]] = []

    def invite(self, count: int, rng: np.random.Generator) -> Rows:
        first, self.invited = self.invited, self.invited + count
        return np.array([self.numbers[i % len(self.numbers)] for i in range(first, first + count)])

    def act(self, who: Rows, obs: Any, rng: np.random.Generator) -> Array:
        mask = obs[MASK] if isinstance(obs, dict) else np.ones((len(obs), 2))
        self.asked += [(one, int((who == one).sum())) for one in np.unique(who).tolist()]
        return np.where(mask[:, 1] > 0, who % 2, 0)
