"""Toy environments with a known optimum, each of which tests one ability of an agent.

The abilities are credit assignment over many steps (`Corridor`) or one step (`Echo`), time limits
(`Loop`), images and frame stacks (`Pictures`), continuous actions (`Reach`), multi-discrete actions
(`Dials`) and Dict observations (`Mixed`).
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
    """Base class of toy environments with a known optimum.

    A subclass defines `begin` instead of `reset`. Its saved state is the attributes whose names are
    in `MEMORY`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it
    MEMORY: ClassVar[tuple[str, ...]] = ()
    steps = 0  # of the present episode

    @property
    def optimal_return(self) -> float:
        """The undiscounted return of the optimal policy in an episode; read it after `reset`."""
        raise NotImplementedError

    def begin(self) -> Any:
        """Draws a new episode with `self.np_random`; returns the first observation."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.begin(), {}

    def export_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.MEMORY}

    def restore_state(self, state: dict[str, Any]) -> None:
        for name in self.MEMORY:
            setattr(self, name, state[name])


class Corridor(Toy):
    """Environment: walk from the left to the right end of a corridor (action 0 left, 1 right).

    Every step costs 0.01; reaching the right end earns 1 and terminates the episode. Other episodes
    are truncated after 100 steps.

    Optimum: always right, `length - 1` steps, return 1 - 0.01 * (length - 1): 0.93 for length 8.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("position", "steps")
    LIMIT = 100

    def __init__(self, length: int = 8, render_mode: str | None = None) -> None:
        self.length, self.position = length, 0
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)

    @property
    def optimal_return(self) -> float:
        return (100 - (self.length - 1)) / 100  # exactly 0.93; 1 - 0.07 differs in the last bit

    def begin(self) -> Floats:
        self.position = 0
        return _one_hot(self.position, self.length)

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self.position = max(0, self.position + (1 if action else -1))
        self.steps += 1
        arrived = self.position == self.length - 1
        truncated = not arrived and self.steps >= self.LIMIT
        reward = 1.0 - 0.01 if arrived else -0.01
        info = {"is_success": arrived} if arrived or truncated else {}
        return _one_hot(self.position, self.length), reward, arrived, truncated, info

    def render(self) -> Any:
        """Returns an RGB frame [32, 32 * length, 3]: the agent in white, the goal in grey.

        Returns None without a render mode.
        """
        if self.render_mode is None:
            return None
        tiles = np.zeros((1, self.length, 3), dtype=np.uint8)
        tiles[0, -1], tiles[0, self.position] = DIM, BRIGHT
        return tiles.repeat(TILE, axis=0).repeat(TILE, axis=1)


class Echo(Toy):
    """Environment: repeat the observed cue, a random class at each step, as the action.

    The right action earns 1, any other 0.

    Terminates after `length` steps. The next cue does not depend on the action, so an action only
    affects the reward of its own step.

    Optimum: repeat the cue, return `length`.
    """

    MEMORY = ("cue", "steps")

    def __init__(self, classes: int = 4, length: int = 10) -> None:
        self.classes, self.length, self.cue = classes, length, 0
        self.observation_space = spaces.Box(0.0, 1.0, (classes,), np.float32)
        self.action_space = spaces.Discrete(classes)

    @property
    def optimal_return(self) -> float:
        return float(self.length)

    def begin(self) -> Floats:
        return self._next_cue()

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.cue)
        self.steps += 1
        return self._next_cue(), reward, self.steps >= self.length, False, {}

    def _next_cue(self) -> Floats:
        self.cue = int(self.np_random.integers(self.classes))
        return _one_hot(self.cue, self.classes)


class Loop(Toy):
    """Environment: walk round a ring of `period` states; action `state % 2` earns 1, the other 0.

    Every step leads to the next state, whatever the action. Episodes never terminate, and are
    truncated after `limit` steps, which the observation does not show. An agent that treats
    truncation as termination learns values that are too low, and different for each state.

    Optimum: action = state % 2, return `limit`; the value of every state is 1 / (1 - gamma).
    """

    MEMORY = ("place", "steps")

    def __init__(self, period: int = 4, limit: int = 20) -> None:
        self.period, self.limit, self.place = period, limit, 0
        self.observation_space = spaces.Box(0.0, 1.0, (period,), np.float32)
        self.action_space = spaces.Discrete(2)

    @property
    def optimal_return(self) -> float:
        return float(self.limit)

    def value_of(self, gamma: float) -> float:
        """Returns the optimal value, without time limit, which is the same for all states."""
        return 1.0 / (1.0 - gamma)

    def begin(self) -> Floats:
        self.place = 0
        return _one_hot(self.place, self.period)

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.place % 2)
        self.place = (self.place + 1) % self.period
        self.steps += 1
        return _one_hot(self.place, self.period), reward, False, self.steps >= self.limit, {}


class Pictures(Toy):
    """Environment: catch a falling dot with a paddle on the bottom row of an image.

    Observes an image [1, size, size]. The dot moves down one row each step and sideways by a drift
    of -1, 0 or 1 that one frame does not show; a wall reverses the drift. Actions move the paddle:
    0 left, 1 stay, 2 right. The episode terminates when the dot reaches the bottom row, with reward
    1 for a catch and -1 for a miss; all earlier rewards are 0.

    Optimum: return 1. Two frames show the drift, and so the column in which the dot will land,
    which the paddle can always reach.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    MEMORY = ("row", "column", "drift", "paddle")
    optimal_return = 1.0

    def __init__(self, size: int = 12, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        self.row, self.column, self.drift, self.paddle = 0, 0, 0, size // 2
        self.observation_space = spaces.Box(0, 255, (1, size, size), np.uint8)
        self.action_space = spaces.Discrete(3)

    def begin(self) -> Array:
        self.row, self.paddle = 0, self.size // 2
        self.column = int(self.np_random.integers(self.size))
        self.drift = int(self.np_random.integers(-1, 2))
        return self._picture()

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
        """Returns the image as an RGB frame, 8 times enlarged, or None without a render mode."""
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
    """Environment: move a point on a line to a goal; the action is the velocity.

    Observes [position, goal]. The point starts at 0; the goal is a multiple of 1/8 in [-5, 5],
    which float32 holds exactly; the velocity is in [-2, 2]; the reward is minus the distance after
    the step. Episodes are truncated after 20 steps.

    Optimum, which depends on the goal of the episode: move at full speed until the goal is within
    one step, then move onto it and stay. With the goal at distance d from the start, the return is
    -(d - 2) - (d - 4) - ..., summed as long as the terms in parentheses are positive.
    """

    MEMORY = ("position", "goal", "steps")
    SPEED, FAR, LIMIT = 2.0, 5.0, 20

    def __init__(self) -> None:
        self.position, self.goal = 0.0, 0.0
        self.observation_space = spaces.Box(-self.FAR, self.FAR, (2,), np.float32)
        self.action_space = spaces.Box(-self.SPEED, self.SPEED, (1,), np.float32)

    @property
    def optimal_return(self) -> float:
        left = [abs(self.goal) - self.SPEED * step for step in range(1, self.LIMIT + 1)]
        return -sum(distance for distance in left if distance > 0)

    def begin(self) -> Floats:
        self.position = 0.0
        eighths = round(8 * self.FAR)
        self.goal = int(self.np_random.integers(-eighths, eighths + 1)) / 8
        return self._look()

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        velocity = float(np.clip(np.asarray(action).item(), -self.SPEED, self.SPEED))
        self.position = min(max(self.position + velocity, -self.FAR), self.FAR)
        self.steps += 1
        reward = -abs(self.position - self.goal)
        return self._look(), reward, False, self.steps >= self.LIMIT, {}

    def _look(self) -> Floats:
        return np.array([self.position, self.goal], dtype=np.float32)


class Dials(Toy):
    """Environment: set several dials (multi-discrete actions) to cues, random at each step.

    Observes the concatenated one-hot cues; the action is a position for each dial. A step in which
    every dial equals its cue earns 1, any other step 0. Terminates after `length` steps.

    Optimum: copy the cues, return `length`. A policy that sets one dial at random, and copies the
    other cues, earns 1 / size of that dial in each step on average.
    """

    MEMORY = ("cue", "steps")

    def __init__(self, sizes: tuple[int, ...] = (3, 4), length: int = 10) -> None:
        self.sizes, self.length, self.cue = tuple(sizes), length, 0
        self.observation_space = spaces.Box(0.0, 1.0, (sum(self.sizes),), np.float32)
        self.action_space = spaces.MultiDiscrete(list(self.sizes))

    @property
    def optimal_return(self) -> float:
        return float(self.length)

    def begin(self) -> Floats:
        return self._next_cues()

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
    """Environment: count how many of three bits are 1; each is an entry of a Dict observation.

    Bit 1 or 0 is shown by a first component of 1 or -1 in "vector", a bright or dark "image"
    [8, 8, 3], and the number 2 or 1 in "choice". The bits are random at each step. The action that
    equals their sum earns 1, any other 0. Terminates after 8 steps.

    Optimum: return 8. A policy that ignores one of the three entries can be right in at most half
    of the steps on average.
    """

    MEMORY = ("vector", "image", "choice", "steps")
    LENGTH = 8
    optimal_return = float(LENGTH)

    def __init__(self) -> None:
        self.vector, self.image, self.choice = 0, 0, 0
        self.observation_space = spaces.Dict(
            {
                "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "choice": spaces.Discrete(2, start=1),
            }
        )
        self.action_space = spaces.Discrete(4)

    def begin(self) -> dict[str, Any]:
        return self._next_bits()

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
