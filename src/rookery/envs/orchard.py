"""A small game in pictures: catch what is ripe, let go what is rotten."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rookery.envs.toy import BRIGHT, Toy

SIZE = 10  # rows and columns
FALL = SIZE - 1  # steps from the top row to the bottom row
GAP = 3  # steps between two drops
APART = 2  # columns between two drops, at most
FOUR = 4  # drops of which one is rotten
BASKET, RIPE, ROTTEN = 0, 1, 2  # channels
COLOURS = ((90, 60, 30), (220, 40, 40), (90, 110, 40))


class Orchard(Toy):
    """Apples fall, several at once; a basket on the bottom row is moved under the ripe ones.

    Observes a picture [3, 10, 10]: the basket, the ripe and the rotten apples, a channel each.
    Actions: 0 left, 1 stay, 2 right. Every third step an apple leaves the top row, at most two
    columns from the one before, and falls one row a step. A ripe one in the basket earns 1, a
    rotten one -1. One in each four is rotten. Terminates when the last of 4 * `fours` has landed.

    Optimum: every ripe one and none that is rotten, return 3 * `fours`: 12. It is always there,
    for the basket moves three columns while the next apple is at most two away, which leaves one
    column to step aside from a rotten one, to the same side of two in a row.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("columns", "rotten", "basket", "steps")

    def __init__(self, fours: int = 4, render_mode: str | None = None) -> None:
        self.fours, self.render_mode = fours, render_mode
        self.drops, self.basket, self.steps = FOUR * fours, SIZE // 2, 0
        self.columns: list[int] = [0] * self.drops
        self.rotten: list[int] = [0] * self.drops
        self.observation_space = spaces.Box(0, 255, (3, SIZE, SIZE), np.uint8)
        self.action_space = spaces.Discrete(3)

    @property
    def optimal_return(self) -> float:
        return float((FOUR - 1) * self.fours)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.basket, self.steps = SIZE // 2, 0
        self.columns, self.rotten = self._columns(), [0] * self.drops
        for four, which in enumerate(self.np_random.integers(FOUR, size=self.fours).tolist()):
            self.rotten[FOUR * four + which] = 1
        return self._picture(), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.basket = min(max(self.basket + int(action) - 1, 0), FALL)
        self.steps += 1
        landed, between = divmod(self.steps - FALL, GAP)
        reward = self._caught(landed) if landed >= 0 and between == 0 else 0.0
        over = self.steps == FALL + GAP * (self.drops - 1)
        return self._picture(), reward, over, False, {}

    def render(self) -> Any:
        """Returns the picture [80, 80, 3] in colour."""
        if self.render_mode is None:
            return None
        colours = np.array(COLOURS, dtype=np.uint8)
        seen = self._picture() > 0  # [3, 10, 10]
        small = (seen[..., None] * colours[:, None, None]).max(0).astype(np.uint8)
        return small.repeat(8, axis=0).repeat(8, axis=1)

    def _columns(self) -> list[int]:
        """Draws where apples leave: a walk that turns back at the walls."""
        column = int(self.np_random.integers(SIZE))
        columns = []
        for shift in self.np_random.integers(-APART, APART + 1, size=self.drops).tolist():
            column = column + shift if 0 <= column + shift < SIZE else column - shift
            columns.append(column)
        return columns

    def _caught(self, drop: int) -> float:
        if self.columns[drop] != self.basket:
            return 0.0
        return -1.0 if self.rotten[drop] else 1.0

    def _picture(self) -> npt.NDArray[np.uint8]:
        picture = np.zeros((3, SIZE, SIZE), dtype=np.uint8)
        picture[BASKET, FALL, self.basket] = BRIGHT
        first = max(0, -((FALL - self.steps) // GAP))  # the lowest that is still in the picture
        for drop in range(first, min(self.steps // GAP + 1, self.drops)):
            row = self.steps - GAP * drop
            picture[ROTTEN if self.rotten[drop] else RIPE, row, self.columns[drop]] = BRIGHT
        return picture
