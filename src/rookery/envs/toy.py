"""Toy environments whose optimum is known exactly.

Each one is the smallest thing that goes wrong when one idea is broken: credit over many steps
(`Corridor`), credit in one step (`Echo`), time limits (`Loop`), pictures and frame stacks
(`Pictures`), continuous actions (`Reach`), several choices at once (`Dials`), several kinds of
observation at once (`Mixed`).
"""

from math import prod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rookery.types import Array, Floats

BRIGHT, DIM = 255, 128
TILE = 32  # pixels


class Toy(gym.Env[Any, Any]):
    """Keeps the attributes named in `MEMORY` for `export_state`: numbers, or lists of them."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it
    MEMORY: ClassVar[tuple[str, ...]] = ()

    @property
    def optimal_return(self) -> float:
        """The undiscounted return of the best policy."""
        raise NotImplementedError

    def export_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.MEMORY}

    def restore_state(self, state: dict[str, Any]) -> None:
        for name in self.MEMORY:
            setattr(self, name, state[name])


class Corridor(Toy):
    """A corridor with its door at the right end. Start at the left; 0 goes left, 1 goes right.

    Every step costs 0.01 and arriving adds 1. Truncated after 100 steps.

    Optimum: always right, `length - 1` steps, return 1 - 0.01 * (length - 1): 0.93 for length 8.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("position", "steps")
    LIMIT = 100

    def __init__(self, length: int = 8, render_mode: str | None = None) -> None:
        self.length, self.position, self.steps = length, 0, 0
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)

    @property
    def optimal_return(self) -> float:
        return (100 - (self.length - 1)) / 100  # 0.93, where 1 - 0.07 would be off in the last bit

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.steps = 0, 0
        return _one_hot(self.position, self.length), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self.position = max(0, self.position + (1 if action else -1))
        self.steps += 1
        arrived = self.position == self.length - 1
        truncated = not arrived and self.steps >= self.LIMIT
        reward = 1.0 - 0.01 if arrived else -0.01
        info = {"is_success": arrived} if arrived or truncated else {}
        return _one_hot(self.position, self.length), reward, arrived, truncated, info

    def render(self) -> Any:
        """Returns the corridor [32, 32 * length, 3]: where the walker is, and the door in grey."""
        if self.render_mode is None:
            return None
        tiles = np.zeros((1, self.length, 3), dtype=np.uint8)
        tiles[0, -1], tiles[0, self.position] = DIM, BRIGHT
        return tiles.repeat(TILE, axis=0).repeat(TILE, axis=1)


class Echo(Toy):
    """Shows one of `classes` cues, drawn anew each step; repeating it earns 1, anything else 0.

    Terminates after `length` steps. The next cue does not depend on the action, so all credit is
    within one step.

    Optimum: repeat the cue, return `length`.
    """

    MEMORY = ("cue", "steps")

    def __init__(self, classes: int = 4, length: int = 10) -> None:
        self.classes, self.length, self.cue, self.steps = classes, length, 0, 0
        self.observation_space = spaces.Box(0.0, 1.0, (classes,), np.float32)
        self.action_space = spaces.Discrete(classes)

    @property
    def optimal_return(self) -> float:
        return float(self.length)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._next_cue(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.cue)
        self.steps += 1
        return self._next_cue(), reward, self.steps >= self.length, False, {}

    def _next_cue(self) -> Floats:
        self.cue = int(self.np_random.integers(self.classes))
        return _one_hot(self.cue, self.classes)


class Loop(Toy):
    """A ring of `period` places walked round for ever; matching the place's parity earns 1.

    Never terminates, and is truncated after `limit` steps, which the observation does not show.
    An agent that learns the limit as death values the places too low, and differently.

    Optimum: action = place % 2, return `limit`; every place is worth 1 / (1 - gamma).
    """

    MEMORY = ("place", "steps")

    def __init__(self, period: int = 4, limit: int = 20) -> None:
        self.period, self.limit, self.place, self.steps = period, limit, 0, 0
        self.observation_space = spaces.Box(0.0, 1.0, (period,), np.float32)
        self.action_space = spaces.Discrete(2)

    @property
    def optimal_return(self) -> float:
        return float(self.limit)

    def value_of(self, gamma: float) -> float:
        """Returns what every place is worth to the best policy, time limits seen through."""
        return 1.0 / (1.0 - gamma)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return _one_hot(self.place, self.period), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.place % 2)
        self.place = (self.place + 1) % self.period
        self.steps += 1
        return _one_hot(self.place, self.period), reward, False, self.steps >= self.limit, {}


class Pictures(Toy):
    """A dot falls through a picture [1, size, size], a paddle on the bottom row must be under it.

    The dot moves down one row each step and sideways by a drift of -1, 0 or 1 that one frame does
    not show; walls turn the drift round. Actions: 0 left, 1 stay, 2 right. Terminates when the dot
    reaches the bottom row: 1 for a catch, -1 for a miss, 0 before.

    Optimum: with two frames the landing column is known after one step and always within reach,
    return 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("row", "column", "drift", "paddle")

    def __init__(self, size: int = 12, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        self.row, self.column, self.drift, self.paddle = 0, 0, 0, size // 2
        self.observation_space = spaces.Box(0, 255, (1, size, size), np.uint8)
        self.action_space = spaces.Discrete(3)

    @property
    def optimal_return(self) -> float:
        return 1.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.paddle = 0, self.size // 2
        self.column = int(self.np_random.integers(self.size))
        self.drift = int(self.np_random.integers(-1, 2))
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.size - 1)
        if not 0 <= self.column + self.drift < self.size:
            self.drift = -self.drift
        self.column, self.row = self.column + self.drift, self.row + 1
        landed, caught = self.row == self.size - 1, self.column == self.paddle
        reward = (1.0 if caught else -1.0) if landed else 0.0
        info = {"is_success": caught} if landed else {}
        return self._picture(), reward, landed, False, info

    def render(self) -> Any:
        """Returns the picture [8 * size, 8 * size, 3] in grey."""
        if self.render_mode is None:
            return None
        large = self._picture()[0].repeat(8, axis=0).repeat(8, axis=1)
        return np.stack([large] * 3, axis=-1)

    def _picture(self) -> npt.NDArray[np.uint8]:
        picture = np.zeros((1, self.size, self.size), dtype=np.uint8)
        picture[0, -1, self.paddle] = DIM
        picture[0, self.row, self.column] = BRIGHT
        return picture


class Reach(Toy):
    """A point on a line goes to a goal. Observes [position, goal]; the action is its velocity.

    Starts at 0; the goal is an eighth from [-5, 5], so that float32 holds it exactly; the velocity
    may be from -2 to 2; every step earns minus the distance that is left. Truncated after 20 steps.

    Optimum, for the goal of this episode: full speed until the goal is within one step, then onto
    it and rest, return -(d - 2) - (d - 4) - ... over the positive terms, d the first distance.
    """

    MEMORY = ("position", "goal", "steps")
    SPEED, FAR, LIMIT = 2.0, 5.0, 20

    def __init__(self) -> None:
        self.position, self.goal, self.steps = 0.0, 0.0, 0
        self.observation_space = spaces.Box(-self.FAR, self.FAR, (2,), np.float32)
        self.action_space = spaces.Box(-self.SPEED, self.SPEED, (1,), np.float32)

    @property
    def optimal_return(self) -> float:
        left = [abs(self.goal) - self.SPEED * step for step in range(1, self.LIMIT + 1)]
        return -sum(distance for distance in left if distance > 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.steps = 0.0, 0
        eighths = round(8 * self.FAR)
        self.goal = int(self.np_random.integers(-eighths, eighths + 1)) / 8
        return self._look(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        velocity = float(np.clip(np.asarray(action).item(), -self.SPEED, self.SPEED))
        self.position = min(max(self.position + velocity, -self.FAR), self.FAR)
        self.steps += 1
        reward = -abs(self.position - self.goal)
        return self._look(), reward, False, self.steps >= self.LIMIT, {}

    def _look(self) -> Floats:
        return np.array([self.position, self.goal], dtype=np.float32)


class Dials(Toy):
    """Shows a cue for each of several dials, drawn anew each step; all dials at theirs earn 1.

    Observes the cues one-hot, side by side; the action is a place for each dial. Anything but all
    of them right earns 0. Terminates after `length` steps.

    Optimum: copy the cues, return `length`. A policy that leaves one dial to chance is right once
    in that dial's size.
    """

    MEMORY = ("cue", "steps")

    def __init__(self, sizes: tuple[int, ...] = (3, 4), length: int = 10) -> None:
        self.sizes, self.length, self.cue, self.steps = tuple(sizes), length, 0, 0
        self.observation_space = spaces.Box(0.0, 1.0, (sum(self.sizes),), np.float32)
        self.action_space = spaces.MultiDiscrete(list(self.sizes))

    @property
    def optimal_return(self) -> float:
        return float(self.length)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._next_cues(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = float(np.array_equal(action, self._cues()))
        self.steps += 1
        return self._next_cues(), reward, self.steps >= self.length, False, {}

    def _cues(self) -> Array:
        return np.array(np.unravel_index(self.cue, self.sizes))

    def _next_cues(self) -> Floats:
        self.cue = int(self.np_random.integers(prod(self.sizes)))  # all cues as one number
        shown = zip(self._cues().tolist(), self.sizes, strict=True)
        return np.concatenate([_one_hot(cue, size) for cue, size in shown])


class Mixed(Toy):
    """Shows three bits in three ways; naming how many of them are on earns 1, anything else 0.

    "vector" has its first entry at 1 or -1, "image" [8, 8, 3] is bright or dark, "choice" is 2 or
    1. The bits are drawn anew each step; terminates after 8 steps.

    Optimum: count them, return 8. Without one of the three no policy is right more often than
    half of the time.
    """

    MEMORY = ("vector", "image", "choice", "steps")
    LENGTH = 8

    def __init__(self) -> None:
        self.vector, self.image, self.choice, self.steps = 0, 0, 0, 0
        self.observation_space = spaces.Dict(
            {
                "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "choice": spaces.Discrete(2, start=1),
            }
        )
        self.action_space = spaces.Discrete(4)

    @property
    def optimal_return(self) -> float:
        return float(self.LENGTH)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._next_bits(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward = float(action == self.vector + self.image + self.choice)
        self.steps += 1
        return self._next_bits(), reward, self.steps >= self.LENGTH, False, {}

    def _next_bits(self) -> dict[str, Any]:
        self.vector, self.image, self.choice = map(int, self.np_random.integers(2, size=3))
        return {
            "vector": np.array([2 * self.vector - 1, 0, 0], dtype=np.float32),
            "image": np.full((8, 8, 3), BRIGHT * self.image, dtype=np.uint8),
            "choice": np.int64(1 + self.choice),
        }


def _one_hot(index: int, size: int) -> npt.NDArray[np.float32]:
    hot = np.zeros(size, dtype=np.float32)
    hot[index] = 1.0
    return hot
