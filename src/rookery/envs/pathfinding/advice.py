"""What a planner would have agents do, from wherever they are.

A process that plans for others imports nothing else: no torch, no network.
"""

import numpy as np

from rookery.envs.pathfinding.cases import Cases
from rookery.envs.pathfinding.planner import plan
from rookery.types import Array

BUDGET = 3_000  # of the search for a plan: a case that needs more is left out
ROUNDS = 20  # of making a plan shorter

Advice = dict[int, Array]  # world → actions [T, N]


def advise(worlds: Array, cases: Cases, steps: int, seed: int) -> Advice:
    """Returns what agents of some worlds should do, [T, N] each, where there is a plan."""
    plans = plan(cases, steps=steps, seed=seed, budget=BUDGET, rounds=ROUNDS)
    return {
        int(world): each.actions().astype(np.uint8)
        for world, each in zip(worlds, plans, strict=True)
        if each.length > 0
    }
