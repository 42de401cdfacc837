"""Simulates many parallel grid worlds on the CPU, compiled with numba: steps and observations.

    worlds = Worlds(generate(64, agents=32, size=40, density=None, rng=rng))
    codes = worlds.views()                       # uint8 [E, N, S, S] observations
    stepped = worlds.step(action)                # action: int64 [E, N]
    over = stepped.finished | (worlds.steps >= worlds.rules.steps)
    worlds.load(np.flatnonzero(over), generate(over.sum(), ...))

There are E worlds of N agents; an agent observes S x S cells. There is no automatic reset: `load`
starts a new problem instance (map, starts, goals) in a world. Returned arrays are buffers that the
next call of the same method overwrites; copy them to keep them.
"""

from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.errors import ConfigError
from rookery.pathfinding.world import distance_fields
from rookery.pathfinding.world.cases import Cases, Maps, Places, check
from rookery.pathfinding.world.collisions import resolve
from rookery.pathfinding.world.rules import AGENT, BLOCKED, MOVES, Outside, WorldRules
from rookery.pathfinding.world.views import Codes, look
from rookery.types import Bools, Floats

BEYOND: dict[str, int] = {Outside.BLOCKED: BLOCKED, Outside.FREE: 0}


class StepResult(NamedTuple):
    """Rewards and outcomes of one simultaneous step of E parallel grid worlds of N agents each."""

    reward: Floats  # [E, N] float32; 0 for absent agents
    collided: Bools  # [E, N] the move failed
    home: Bools  # [E, N] on their goals now; True for absent agents
    finished: Bools  # [E] all on their goals at once


class Worlds:
    """CPU simulator of E parallel grid worlds of N agents, on maps of H rows and W columns.

    The current state is `place` [E, N, 2], row and column of each agent, and `steps` [E], steps
    since the problem instance (map, starts, goals) was loaded. `maps` and `goals` are those of the
    problem instances. Callers must not write to these arrays.
    """

    def __init__(self, cases: Cases, rules: WorldRules | None = None) -> None:
        check(cases)
        self.rules = rules or WorldRules()
        count, agents = cases.starts.shape[:2]
        around = tuple(length + 2 * self.rules.radius for length in cases.maps.shape[1:])
        self.maps: Maps = np.zeros_like(cases.maps)
        self.place: Places = np.full_like(cases.starts, -1)
        self.goals: Places = np.full_like(cases.goals, -1)
        self.steps: npt.NDArray[np.int32] = np.zeros(count, dtype=np.int32)
        self.occupant: npt.NDArray[np.int16] = np.full(cases.maps.shape, -1, dtype=np.int16)
        self._present = np.zeros((count, *around), dtype=np.uint8)
        self._seen = np.zeros((count, agents, *around), dtype=np.uint8)
        self._views = np.zeros((count, agents, *[self.rules.sight] * 2), dtype=np.uint8)
        self._action = np.zeros((count, agents), dtype=np.int64)
        self._moved = np.zeros((count, agents), dtype=np.bool_)
        self._rewards = np.array(astuple(self.rules.rewards), dtype=np.float32)
        self._stepped = StepResult(
            reward=np.zeros((count, agents), dtype=np.float32),
            collided=np.zeros((count, agents), dtype=np.bool_),
            home=np.zeros((count, agents), dtype=np.bool_),
            finished=np.zeros(count, dtype=np.bool_),
        )
        self._load(np.arange(count), cases)

    @property
    def count(self) -> int:
        """Number of parallel grid worlds."""
        return len(self.place)

    @property
    def agents(self) -> int:
        """Number of agents in each grid world, including absent ones (padding of small teams)."""
        return int(self.place.shape[1])

    def load(self, which: npt.ArrayLike, cases: Cases) -> None:
        """Starts new problem instances in the grid worlds with the indices `which`, one in each.

        The instances (map, starts, goals) must have as many agents and as large maps as the worlds
        were made for; otherwise ConfigError is raised.
        """
        chosen = np.atleast_1d(np.asarray(which, dtype=np.int64))
        check(cases)
        given = (len(chosen), *cases.starts.shape[1:2], *cases.maps.shape[1:])
        needed = (len(cases.maps), self.agents, *self.maps.shape[1:])
        if given != needed:
            raise ConfigError(
                f"load takes as many problem instances as worlds, {needed[0]}, of {needed[1]} "
                f"agents and {needed[2]} x {needed[3]} cells, got {given[0]} worlds, "
                f"{given[1]} agents and {given[2]} x {given[3]} cells; "
                "make new Worlds for another shape"
            )
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.count:
            raise ConfigError(
                f"there are worlds 0 to {self.count - 1}, got {chosen.min()} to {chosen.max()}; "
                "choose among these"
            )
        self._load(chosen, cases)

    def views(self) -> Codes:
        """Returns the observations of N agents in each of E worlds, uint8 [E, N, S, S].

        An agent sees the S x S cells around it. Each cell is a code of one bit per channel. The
        next call overwrites the returned array.
        """
        look(self._seen, self._present, self.place, self._views)
        return self._views

    def step(self, action: npt.ArrayLike) -> StepResult:
        """Steps all parallel grid worlds once; returns rewards and outcomes.

        `action` [E, N], for E worlds of N agents, is 0 stay, 1 up, 2 down, 3 left or 4 right;
        ConfigError for other values. The next call overwrites the returned arrays.
        """
        self._take(np.asarray(action))
        resolve(self.maps, self.occupant, self.place, self._action, self._moved)
        _move(self._action, self._moved, self.place, self.occupant, self._present)
        _earn(self._action, self._moved, self.place, self.goals, self._rewards, *self._stepped)
        self.steps += 1
        return self._stepped

    def move_to(self, place: Places) -> None:
        """Puts the agents of all worlds on other cells, where another simulator moved them."""
        self.place[...] = place
        _occupy(np.arange(self.count), self.place, self.occupant, self._present)

    def _load(self, which: npt.NDArray[np.int64], cases: Cases) -> None:
        self.maps[which], self.goals[which] = cases.maps, cases.goals
        self.place[which], self.steps[which] = cases.starts, 0
        beyond = np.uint8(BEYOND[self.rules.outside])
        _occupy(which, self.place, self.occupant, self._present)
        distance_fields.draw(which, self.maps, self.goals, self.rules.radius, beyond, self._seen)

    def _take(self, action: npt.NDArray[Any]) -> None:
        shaped = action.shape == self._action.shape and action.dtype.kind in "iu"
        if not shaped or action.min() < 0 or action.max() >= len(MOVES):
            what = "other numbers" if shaped else f"{action.dtype} {list(action.shape)}"
            raise ConfigError(
                f"a step takes whole numbers from 0 to {len(MOVES) - 1}, one for each of "
                f"{list(self._action.shape)} agents, got {what}; give every agent an action"
            )
        self._action[...] = action


def world_bytes(agents: int, rows: int, columns: int, rules: WorldRules) -> int:
    """Returns the bytes of memory that one world needs, including temporary arrays for loading."""
    around = (rows + 2 * rules.radius) * (columns + 2 * rules.radius)
    return agents * (around + rules.sight**2) + around + (3 + 12) * rows * columns


_MOVED, _WAITED, _RESTED, _COLLIDED, _FINISHED = range(5)  # the order of fields in `Rewards`


@njit(cache=True, nogil=True)
def _occupy(which, place, occupant, present):  # type: ignore[no-untyped-def]
    """Writes the current positions of agents to `occupant` and `present`, in the worlds `which`.

    `occupant` holds the number of the agent in each cell, -1 for none. `present` is the map with a
    margin of the view radius, and has the observation bit AGENT in the same cells.
    """
    radius = (present.shape[1] - occupant.shape[1]) // 2
    for world in which:
        occupant[world] = -1
        present[world] = 0
        for i in range(place.shape[1]):
            row, column = place[world, i, 0], place[world, i, 1]
            if row >= 0:
                occupant[world, row, column] = i
                present[world, row + radius, column + radius] = AGENT


@njit(cache=True, nogil=True)
def _move(action, moved, place, occupant, present):  # type: ignore[no-untyped-def]
    """Moves the agents with True in `moved`; all leave their cells before any enters a new one."""
    radius = (present.shape[1] - occupant.shape[1]) // 2
    worlds, agents = action.shape
    for world in range(worlds):
        for i in range(agents):
            if moved[world, i]:
                row, column = place[world, i, 0], place[world, i, 1]
                occupant[world, row, column] = -1
                present[world, row + radius, column + radius] = 0
        for i in range(agents):
            if moved[world, i]:
                row = place[world, i, 0] + MOVES[action[world, i], 0]
                column = place[world, i, 1] + MOVES[action[world, i], 1]
                place[world, i, 0], place[world, i, 1] = row, column
                occupant[world, row, column] = i
                present[world, row + radius, column + radius] = AGENT


@njit(cache=True, nogil=True)
def _earn(  # type: ignore[no-untyped-def]
    action, moved, place, goals, rewards, reward, collided, home, finished
):
    worlds, agents = action.shape
    for world in range(worlds):
        all_home = True
        for i in range(agents):
            present = place[world, i, 0] >= 0
            there = place[world, i, 0] == goals[world, i, 0]
            home[world, i] = not present or (there and place[world, i, 1] == goals[world, i, 1])
            collided[world, i] = present and action[world, i] != 0 and not moved[world, i]
            all_home = all_home and home[world, i]
        finished[world] = all_home
        for i in range(agents):
            kind = _RESTED if home[world, i] else _WAITED
            if all_home:
                kind = _FINISHED
            elif collided[world, i]:
                kind = _COLLIDED
            elif moved[world, i]:
                kind = _MOVED
            reward[world, i] = rewards[kind] if place[world, i, 0] >= 0 else np.float32(0)
