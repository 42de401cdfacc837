"""Hindsight experience replay (HER, Andrychowicz et al. 2017) with the "future" strategy.

    hindsight = Hindsight(0.8, goals)
    hindsight.relabel(ring, batch, rng)          # a batch of single steps, just sampled

Stored rows (env steps) keep their original goal. When a batch is sampled, a share of its rows gets
the goal that a later row of the same episode achieved. That row is chosen uniformly from all later
rows of the episode that are stored, the final observation included. The reward is computed again
for the new goal. `discount` is not: termination stays as it was stored.
"""

import numpy as np
from numba import njit

from rookery.envs.goals import Goals
from rookery.replay.fold import take
from rookery.replay.ring import Ring, obs_column
from rookery.types import ArrayBatch, Floats, Rows

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # the leaves, as gymnasium-robotics has them


class Hindsight:
    """Relabels a share of a batch with goals that were achieved later in the same episode (HER)."""

    def __init__(self, share: float, goals: Goals):
        self.share, self.goals = share, goals

    def relabel(self, ring: Ring, batch: ArrayBatch, rng: np.random.Generator) -> None:
        """Replaces goals and rewards of a share of a newly sampled batch, in place.

        One random number for each row (env step) decides whether it is relabelled, and which later
        step of the episode gives the new goal.
        """
        noise = rng.random(batch.rows.size)
        index = np.flatnonzero(noise < self.share)
        if not index.size:
            return
        later = future(ring, batch.rows[index], noise[index] / self.share)
        goal = take(ring, obs_column(ACHIEVED), later)
        assert isinstance(batch.obs, dict)  # it has goals
        assert isinstance(batch.next_obs, dict)
        batch.obs[DESIRED][index] = goal
        batch.next_obs[DESIRED][index] = goal
        batch.reward[index] = self.goals.rewards(batch.next_obs[ACHIEVED][index], goal)

    def close(self) -> None:
        self.goals.close()


def future(ring: Ring, rows: Rows, noise: Floats) -> Rows:
    """Returns for each of B rows (env steps) a later row of the same episode.

    `noise` [B] in [0, 1) selects it among all later rows that are stored. If there is none, returns
    the row itself. The cost is linear in the length of the episode.
    """
    out = np.empty(rows.size, dtype=np.int64)
    _future(rows, noise, ring.capacity, ring.columns["end"], ring.columns["next"], out)
    return out


@njit(cache=True, nogil=True)
def _future(rows, noise, capacity, end, nxt, out):  # type: ignore[no-untyped-def]
    for b in range(rows.size):
        length, row = 0, rows[b]
        slot = row % capacity
        while end[slot] == 0 and nxt[slot] > 0:
            length += 1
            row += nxt[slot]
            slot = row % capacity
        row = rows[b]
        for _ in range(min(length, 1 + int(noise[b] * length))):
            row += nxt[row % capacity]
        out[b] = row
