"""Plans the actions of all agents of given grid worlds, for imitation learning.

Planner processes run this module; it imports neither torch nor a network.
"""

import numpy as np

from rookery.pathfinding.planner.plan import plan
from rookery.pathfinding.world.cases import Cases
from rookery.types import Array

BUDGET = 3_000  # of the search for each plan; a problem instance that needs more is left out
ROUNDS = 20  # of shortening a plan

PlannedActions = dict[int, Array]  # world → actions [T, N]


def plan_actions(worlds: Array, cases: Cases, steps: int, seed: int) -> PlannedActions:
    """Plans problem instances (map, starts, goals); returns planned actions by grid world index.

    Each value is uint8 [T, N]: T steps of N agents. `worlds` holds the index of the grid world of
    each problem instance in `cases`. Instances without a plan of at most `steps` steps, and those
    that are already solved, are not in the dict.
    """
    plans = plan(cases, steps=steps, seed=seed, budget=BUDGET, rounds=ROUNDS)
    return {
        int(world): each.actions().astype(np.uint8)
        for world, each in zip(worlds, plans, strict=True)
        if each.length > 0
    }
