"""Worlds: many cases at once, stepped and looked at in compiled code.

    worlds = Worlds(generate(64, agents=32, size=40, density=None, rng=rng))
    codes = worlds.views()                       # uint8 [E, N, S, S]
    stepped = worlds.step(action)                # int64 [E, N]
    over = stepped.finished | (worlds.steps >= worlds.rules.steps)
    worlds.load(np.flatnonzero(over), generate(over.sum(), ...))

Nothing starts anew by itself. Everything returned lies in buffers that the next call of the same
method writes again: copy what is to be kept.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.envs.pathfinding import fields
from rookery.envs.pathfinding.cases import Cases, Maps, Places, check
from rookery.envs.pathfinding.moves import RESOLVE
from rookery.envs.pathfinding.rules import AGENT, BLOCKED, MOVES, Outside, Rules
from rookery.envs.pathfinding.views import Codes, look
from rookery.errors import ConfigError
from rookery.types import Bools, Floats

BEYOND: dict[Outside, int] = {Outside.BLOCKED: BLOCKED, Outside.FREE: 0}


class Stepped(NamedTuple):
    """What a step did to E worlds of N agents."""

    reward: Floats  # [E, N] float32; 0 where nobody has this number
    collided: Bools  # [E, N] wanted to move and did not
    home: Bools  # [E, N] on their goals now; True where nobody has this number
    finished: Bools  # [E] all on their goals at once


class Worlds:
    """E worlds of N agents, each on a map of H rows and W columns.

    `place` [E, N, 2] and `steps` [E] (taken since a world was loaded) are what they are now;
    `maps` and `goals` are those of the cases. All of them are read, not written, from outside.
    """

    def __init__(self, cases: Cases, rules: Rules | None = None) -> None:
        check(cases)
        self.rules = rules or Rules()
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
        self._rewards = _rewards(self.rules)
        self._stepped = Stepped(
            reward=np.zeros((count, agents), dtype=np.float32),
            collided=np.zeros((count, agents), dtype=np.bool_),
            home=np.zeros((count, agents), dtype=np.bool_),
            finished=np.zeros(count, dtype=np.bool_),
        )
        self._load(np.arange(count), cases)

    @property
    def count(self) -> int:
        """Worlds, E."""
        return len(self.place)

    @property
    def agents(self) -> int:
        """Agents in each world, N; numbers that nobody has count as well."""
        return int(self.place.shape[1])

    def load(self, which: npt.ArrayLike, cases: Cases) -> None:
        """Puts new cases into the worlds with these numbers, one each, of the shape of the old."""
        chosen = np.atleast_1d(np.asarray(which, dtype=np.int64))
        check(cases)
        given = (len(chosen), *cases.starts.shape[1:2], *cases.maps.shape[1:])
        needed = (len(cases.maps), self.agents, *self.maps.shape[1:])
        if given != needed:
            raise ConfigError(
                f"these worlds take {needed[0]} cases as worlds, of {needed[1]} agents and "
                f"{needed[2]} x {needed[3]} cells, got {given[0]} worlds, {given[1]} agents and "
                f"{given[2]} x {given[3]} cells; make Worlds anew for another shape"
            )
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.count:
            raise ConfigError(
                f"there are worlds 0 to {self.count - 1}, got {chosen.min()} to {chosen.max()}; "
                "load those there are"
            )
        self._load(chosen, cases)

    def views(self) -> Codes:
        """Returns what everybody sees, as codes [E, N, S, S]."""
        look(self._seen, self._present, self.place, self._views)
        return self._views

    def step(self, action: npt.ArrayLike) -> Stepped:
        """Moves everybody at once: `action` [E, N] of 0 stay, 1 up, 2 down, 3 left, 4 right."""
        self._take(np.asarray(action))
        RESOLVE[self.rules.collision](
            self.maps, self.occupant, self.place, self._action, self._moved
        )
        _move(self._action, self._moved, self.place, self.occupant, self._present)
        _earn(self._action, self._moved, self.place, self.goals, self._rewards, *self._stepped)
        self.steps += 1
        return self._stepped

    def distances(self) -> npt.NDArray[np.int32]:
        """Returns the steps from every cell to everybody's goal, [E, N, H, W]; -1: no way.

        Computed when it is asked for.
        """
        return fields.distances(self.maps, self.goals)

    def _load(self, which: npt.NDArray[np.int64], cases: Cases) -> None:
        self.maps[which], self.goals[which] = cases.maps, cases.goals
        self.place[which], self.steps[which] = cases.starts, 0
        beyond = np.uint8(BEYOND[self.rules.outside])
        _settle(which, self.place, self.occupant, self._present)
        fields.draw(which, self.maps, self.goals, self.rules.radius, beyond, self._seen)

    def _take(self, action: npt.NDArray[Any]) -> None:
        shaped = action.shape == self._action.shape and action.dtype.kind in "iu"
        if not shaped or action.min() < 0 or action.max() >= len(MOVES):
            what = "other numbers" if shaped else f"{action.dtype} {list(action.shape)}"
            raise ConfigError(
                f"a step takes whole numbers from 0 to {len(MOVES) - 1}, one for each of "
                f"{list(self._action.shape)} agents, got {what}; give every agent an action"
            )
        self._action[...] = action


def world_bytes(agents: int, rows: int, columns: int, rules: Rules) -> int:
    """Returns what one world takes, and while it is loaded the distances to one goal."""
    around = (rows + 2 * rules.radius) * (columns + 2 * rules.radius)
    return agents * (around + rules.sight**2) + around + (3 + 12) * rows * columns


def _rewards(rules: Rules) -> Floats:
    """Returns the rewards in the order in which `_earn` counts them."""
    earned = rules.rewards
    table = (earned.move, earned.wait, earned.home, earned.collision, earned.finish)
    return np.array(table, dtype=np.float32)


_MOVED, _WAITED, _RESTED, _COLLIDED, _FINISHED = range(5)


@njit(cache=True, nogil=True)
def _settle(which, place, occupant, present):  # type: ignore[no-untyped-def]
    """Notes who stands where in some worlds, and forgets who stood there before."""
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
    """Moves those that may; all leave before anybody arrives."""
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
        everybody = True
        for i in range(agents):
            present = place[world, i, 0] >= 0
            there = place[world, i, 0] == goals[world, i, 0]
            home[world, i] = not present or (there and place[world, i, 1] == goals[world, i, 1])
            collided[world, i] = present and action[world, i] != 0 and not moved[world, i]
            everybody = everybody and home[world, i]
        finished[world] = everybody
        for i in range(agents):
            kind = _RESTED if home[world, i] else _WAITED
            if everybody:
                kind = _FINISHED
            elif collided[world, i]:
                kind = _COLLIDED
            elif moved[world, i]:
                kind = _MOVED
            reward[world, i] = rewards[kind] if place[world, i, 0] >= 0 else np.float32(0)
