"""Borrow plans: how much of a batch is sampled from shared replay buffers, and from which ones.

A pool is the set of replay buffers that runs on one host share. A run on one host weighs them by
its sharing strategy. On a cluster only the learner knows the buffers of all hosts, so it sends each
host the weights of the buffers there (`AssignedWeights`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rookery.config.schema import Strategy
from rookery.sharing.strategies import STRATEGIES
from rookery.types import Floats, Rows


class BorrowPlan(NamedTuple):
    """Sampling weights of the replay buffers of a pool, and the share of a batch from the pool.

    A pool is the set of replay buffers that several runs share.
    """

    weights: Floats  # [buffers] in the order of the names
    newest: float  # share of a buffer's rows that may be sampled, the most recent ones
    share: float  # share of a batch that comes from the pool


class BorrowPlanner(Protocol):
    """Interface: decides how much of a batch to sample from each replay buffer of a pool.

    A pool is the set of replay buffers that runs share. `plan` gets the ids (`names`) and numbers
    of stored env steps (`sizes`) of its buffers. The first `own` of these belong to the run that
    samples.
    """

    def plan(self, own: int, names: Sequence[str], sizes: Rows) -> BorrowPlan: ...


class StrategyPlanner(NamedTuple):
    """Computes sampling weights of shared replay buffers by the run's sharing strategy."""

    strategy: Strategy
    ratio: float  # share of a batch that comes from the pool

    def plan(self, own: int, names: Sequence[str], sizes: Rows) -> BorrowPlan:
        pool = STRATEGIES[self.strategy](own, sizes)
        return BorrowPlan(pool.weights, pool.newest, self.ratio)


class AssignedWeights(NamedTuple):
    """Planner on a host of a cluster: uses the replay buffer weights that the learner has sent.

    Replay buffers without env steps get weight 0.
    """

    weights: Mapping[str, float]  # by buffer id; other buffers have weight 0
    newest: float  # share of a buffer's rows that may be sampled, the most recent ones

    def plan(self, own: int, names: Sequence[str], sizes: Rows) -> BorrowPlan:
        assigned = np.array([self.weights.get(name, 0.0) for name in names])
        return BorrowPlan(np.where(sizes > 0, assigned, 0.0), self.newest, 1.0)
