"""Hindsight (Andrychowicz et al. 2017): what was reached is learned as if it had been wanted.

    hindsight = Hindsight(0.8, judge)
    hindsight.relabel(ring, batch, rng)          # a batch of single steps, just gathered

Rows keep the goal they were played for. When a batch is drawn, a share of its rows gets another:
what a later row of the same episode achieved, each of the rows after it as likely as the next, the
final observation among them and, in an episode that still runs, the newest there is. Rewards are
computed again for that goal. Whether an episode ended is not: `discount` stays as it was stored.
"""

from typing import Protocol

import numpy as np
from numba import njit

from rookery.replay.fold import take
from rookery.replay.ring import Ring, obs_column
from rookery.types import Array, Batch, Floats, Rows

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # the leaves, as gymnasium-robotics has them


class Judge(Protocol):
    """Knows what goals are worth."""

    def rewards(self, achieved: Array, desired: Array) -> Floats:
        """Returns [B] rewards as rows store them, of [B, *leaf] goals as rows store them."""

    def close(self) -> None: ...


class Hindsight:
    """Gives rows of a batch goals that their episodes reached later."""

    def __init__(self, share: float, judge: Judge):
        self.share, self.judge = share, judge

    def relabel(self, ring: Ring, batch: Batch, rng: np.random.Generator) -> None:
        """Changes goals and rewards of a batch that nobody else has seen, in place.

        One number for each row decides whether it is changed and which later row it learns from.
        """
        noise = rng.random(batch.rows.size)
        index = np.flatnonzero(noise < self.share)
        if not index.size:
            return
        later = future(ring, batch.rows[index], noise[index] / self.share)
        goal = take(ring, obs_column(ACHIEVED), later)
        batch.obs[DESIRED][index] = goal
        batch.next_obs[DESIRED][index] = goal
        batch.reward[index] = self.judge.rewards(batch.next_obs[ACHIEVED][index], goal)

    def close(self) -> None:
        self.judge.close()


def future(ring: Ring, rows: Rows, noise: Floats) -> Rows:
    """Returns for each of B closed rows one that came after it in its episode.

    `noise` [B] in [0, 1) is the place among them. Costs a walk to the episode's end and then one to
    that place, whatever the capacity.
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
