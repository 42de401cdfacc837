"""A toy environment with images: catch ripe apples, avoid rotten ones."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rookery.envs.toy.basic import BRIGHT, Toy

SIZE = 10  # rows and columns
FALL = SIZE - 1  # steps from the top row to the bottom row
GAP = 3  # steps between two drops
APART = 2  # columns between two drops, at most
FOUR = 4  # drops of which one is rotten
BASKET, RIPE, ROTTEN = 0, 1, 2  # channels
COLOURS = ((90, 60, 30), (220, 40, 40), (90, 110, 40))


class Orchard(Toy):
    """Environment: move a basket on the bottom row under falling ripe apples.

    Observes an image [3, 10, 10]: the basket, the ripe and the rotten apples, a channel each.
    Actions move the basket: 0 left, 1 stay, 2 right. Every third step an apple appears in the top
    row, at most two columns from the previous apple, and falls one row a step. There are `fours`
    groups of four apples; in each group one apple is rotten. Catching a ripe apple earns 1, a
    rotten one -1. The episode terminates when the last apple has landed.

    Optimum: catch every ripe apple and no rotten one, return 3 * `fours`: 12 by default. This is
    always possible: between two apples, at most two columns apart, the basket can move three
    columns, which leaves one column to avoid a rotten apple.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("columns", "rotten", "basket", "steps")

    def __init__(self, fours: int = 4, render_mode: str | None = None) -> None:
        self.fours, self.render_mode = fours, render_mode
        self.drops, self.basket = FOUR * fours, SIZE // 2
        self.columns: list[int] = [0] * self.drops
        self.rotten: list[int] = [0] * self.drops
        self.observation_space = spaces.Box(0, 255, (3, SIZE, SIZE), np.uint8)
        self.action_space = spaces.Discrete(3)

    @property
    def optimal_return(self) -> float:
        return float((FOUR - 1) * self.fours)

    def begin(self) -> npt.NDArray[np.uint8]:
        self.basket = SIZE // 2
        self.columns, self.rotten = self._columns(), [0] * self.drops
        for four, which in enumerate(self.np_random.integers(FOUR, size=self.fours).tolist()):
            self.rotten[FOUR * four + which] = 1
        return self._picture()

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.basket = min(max(self.basket + int(action) - 1, 0), FALL)
        self.steps += 1
        landed, between = divmod(self.steps - FALL, GAP)
        reward = self._caught(landed) if landed >= 0 and between == 0 else 0.0
        over = self.steps == FALL + GAP * (self.drops - 1)
        return self._picture(), reward, over, False, {}

    def render(self) -> Any:
        """Returns the scene as an RGB frame [80, 80, 3], or None without a render mode."""
        if self.render_mode is None:
            return None
        colours = np.array(COLOURS, dtype=np.uint8)
        seen = self._picture() > 0  # [3, 10, 10]
        small = (seen[..., None] * colours[:, None, None]).max(0).astype(np.uint8)
        return small.repeat(8, axis=0).repeat(8, axis=1)

    def _columns(self) -> list[int]:
        """Samples the columns of all apples by a random walk that is reflected at the walls."""
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
        first = max(0, -((FALL - self.steps) // GAP))  # the lowest apple that is still visible
        for drop in range(first, min(self.steps // GAP + 1, self.drops)):
            row = self.steps - GAP * drop
            picture[ROTTEN if self.rotten[drop] else RIPE, row, self.columns[drop]] = BRIGHT
        return picture
