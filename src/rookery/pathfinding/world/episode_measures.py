"""Success, length and sum of costs of one path-finding episode, updated at every step.

measures = EpisodeMeasures(starts, goals)          # row and column of N agents, [N, 2] each
measures.count(stepped.home[0])             # after every step: which agents are on their goals
info = measures.ended()

The sum of costs is the number of steps until each agent stays on its goal, summed over the agents.
"""

from typing import Any

import numpy as np

from rookery.pathfinding.world.cases import Places
from rookery.types import Bools, Rows


class EpisodeMeasures:
    """Success, length and sum of costs of an episode of N agents; absent agents do not count."""

    def __init__(self, starts: Places, goals: Places):
        self._present: Bools = starts[:, 0] >= 0
        self._home: Bools = ~self._present | (starts == goals).all(-1)
        self.settled: Rows = (~self._home).astype(np.int64)  # first step since which it is on goal
        self.steps = 0

    @classmethod
    def empty(cls, agents: int) -> "EpisodeMeasures":
        """Returns measures of absent agents only, a placeholder until the first episode starts."""
        nowhere = np.full((agents, 2), -1, dtype=np.int16)
        return cls(nowhere, nowhere)

    def count(self, home: Bools) -> None:
        """Updates the measures after a step; `home` [N] is True for agents on goals or absent."""
        self.steps += 1
        self._home = home.copy()
        self.settled[~home] = self.steps + 1

    def ended(self) -> dict[str, Any]:
        """Returns the measures of the ended episode, for the `info` dict of its last step.

        They are `is_success` (1 if all agents are on their goals), `individual_success` (share of
        agents on their goals), `length` and `sum_of_costs`.
        """
        home = self._home & self._present
        return {
            "is_success": int(self._home.all()),
            "individual_success": float(home.sum() / self._present.sum()),
            "length": self.steps,
            "sum_of_costs": int(np.minimum(self.settled, self.steps).sum()),
        }
