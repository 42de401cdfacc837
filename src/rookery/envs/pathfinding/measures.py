"""Measures of one episode, counted while it is played.

measures = Measures(starts, goals)          # [N, 2] each
measures.count(stepped.home[0])             # after every step
info = measures.ended()
"""

from typing import Any

import numpy as np

from rookery.envs.pathfinding.cases import Places
from rookery.types import Bools, Rows


class Measures:
    """Who of N agents is on its goal, and since when. Numbers that nobody has do not count."""

    def __init__(self, starts: Places, goals: Places):
        self._present: Bools = starts[:, 0] >= 0
        self._home: Bools = ~self._present | (starts == goals).all(-1)
        self.settled: Rows = (~self._home).astype(np.int64)  # the first step it has been home since
        self.steps = 0

    @classmethod
    def of_nobody(cls, agents: int) -> "Measures":
        """Returns what there is before the first episode."""
        nowhere = np.full((agents, 2), -1, dtype=np.int16)
        return cls(nowhere, nowhere)

    def count(self, home: Bools) -> None:
        """Takes who is on its goal after a step, [N]; True where nobody has this number."""
        self.steps += 1
        self._home = home.copy()
        self.settled[~home] = self.steps + 1

    def ended(self) -> dict[str, Any]:
        """Returns the four measures, as the info of an episode's last step has them."""
        home = self._home & self._present
        return {
            "is_success": int(self._home.all()),
            "individual_success": float(home.sum() / self._present.sum()),
            "length": self.steps,
            "sum_of_costs": int(np.minimum(self.settled, self.steps).sum()),
        }
