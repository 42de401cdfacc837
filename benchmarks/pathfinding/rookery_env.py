"""Path finding on one core: 32 agents on 40 x 40 cells, what they see as planes [6, 9, 9].

A piece of work is one step of all worlds. Every 256 steps a world gets a new case: map, connected
cells, starts, goals and the distances to each goal; the worlds take turns. Actions are drawn ahead.
"""

from collections.abc import Callable

import numpy as np

from rookery.pathfinding.world.cases import Cases, generate
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.views import planes
from rookery.pathfinding.world.worlds import Worlds

WORLDS, AGENTS, SIZE = 16, 32, 40
EPISODE = WorldRules().steps
TURN = EPISODE // WORLDS  # steps between two new cases


def step(seed: int) -> Callable[[], int]:
    rng = np.random.default_rng(seed)
    worlds = Worlds(_cases(WORLDS, rng))
    actions = rng.integers(5, size=(EPISODE, WORLDS, AGENTS))
    taken = 0

    def work() -> int:
        nonlocal taken
        if taken % TURN == 0:
            worlds.load([taken // TURN % WORLDS], _cases(1, rng))
        worlds.step(actions[taken % EPISODE])
        planes(worlds.views())
        taken += 1
        return WORLDS * AGENTS

    return work


def _cases(count: int, rng: np.random.Generator) -> Cases:
    return generate(count, agents=AGENTS, size=SIZE, density=None, rng=rng)
