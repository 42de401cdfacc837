"""Success, length and sum of costs of path-finding episodes in parallel worlds.

measures = EpisodeMeasures(cases.starts, cases.goals)     # row and column of N agents in E worlds
measures.count(stepped.home)                # after every step: which agents are on their goals
info = measures.ended()                     # of the first world

The sum of costs is the number of steps until each agent stays on its goal, summed over the agents.
"""

from typing import Any

import numpy as np

from rookery.pathfinding.world.cases import Places
from rookery.types import Array, Bools, Rows


class EpisodeMeasures:
    """Measures of one episode in each of E worlds of N agents; absent agents do not count."""

    def __init__(self, starts: Places, goals: Places):
        self.present: Bools = starts[..., 0] >= 0  # [E, N]
        self.home: Bools = ~self.present | (starts == goals).all(-1)  # [E, N]
        self.settled: Rows = (~self.home).astype(np.int64)  # first step since which it is on goal
        self.steps: Rows = np.zeros(len(starts), dtype=np.int64)  # [E]

    def count(self, home: Bools, which: Array | slice = slice(None)) -> None:
        """Updates the measures after a step of the worlds `which`.

        `home` has a row for each of these worlds: True for agents on their goals or absent.
        """
        self.steps[which] += 1
        self.home[which] = home
        later = self.steps[which][:, None] + 1
        self.settled[which] = np.where(home, self.settled[which], later)

    @property
    def success(self) -> Bools:
        """Mask [E]: whether all agents of a world are on their goals."""
        return np.asarray(self.home.all(1))

    @property
    def arrived(self) -> Rows:
        """Number of agents on their goals, [E]."""
        return np.asarray((self.home & self.present).sum(1))

    @property
    def cost(self) -> Rows:
        """Sum of costs, [E]."""
        return np.asarray(np.minimum(self.settled, self.steps[:, None]).sum(1))

    def ended(self) -> dict[str, Any]:
        """Returns the measures of the first world, for the `info` dict of its last step.

        They are `is_success` (1 if all agents are on their goals), `individual_success` (share of
        agents on their goals), `length` and `sum_of_costs`.
        """
        return {
            "is_success": int(self.success[0]),
            "individual_success": float(self.arrived[0] / self.present[0].sum()),
            "length": int(self.steps[0]),
            "sum_of_costs": int(self.cost[0]),
        }
