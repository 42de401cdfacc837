"""Appetites: how much of a batch comes from the pool, and whom it is borrowed from.

A run's own appetite follows its strategy. On a cluster the learner alone sees all hosts; whoever
borrows for it on one of them is told (`Told`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rookery.config.schema import Strategy
from rookery.sharing.adaptive import Tuner
from rookery.sharing.strategies import STRATEGIES
from rookery.types import Array, Floats, Rows

MOST = 0.9  # of a batch, where the share is found out


class Fare(NamedTuple):
    """What is borrowed now."""

    weights: Floats  # of each buffer, in the order they were named
    newest: float  # share of a buffer's rows that counts, the most recent ones
    share: float  # of a batch that comes from the pool


class Appetite(Protocol):
    """Says what to borrow from the buffers there are, the first `own` of which are own."""

    def weigh(self, own: int, names: Sequence[str], sizes: Rows) -> Fare: ...

    def observe(self, td_error: Array) -> bool:
        """Takes the TD errors of own rows; returns whether that changes what is borrowed."""


class Planned:
    """Follows a strategy, and where it adapts, what was found out."""

    def __init__(self, strategy: Strategy, ratio: float, rng: np.random.Generator):
        self.strategy, self.ratio = strategy, ratio
        self.tuner = Tuner(rng) if strategy is Strategy.ADAPTIVE else None

    def weigh(self, own: int, names: Sequence[str], sizes: Rows) -> Fare:
        part = STRATEGIES[self.strategy](own, sizes)
        if self.tuner is None:
            return Fare(part.weights, part.newest, self.ratio)
        peers = names[own:]
        self.tuner.meet(peers)
        weights = part.weights * np.concatenate([np.ones(own), self.tuner.factors(peers)])
        share = self.ratio * float(weights.sum() / max(1.0, part.weights.sum()))
        return Fare(weights, part.newest, min(share, MOST))

    def observe(self, td_error: Array) -> bool:
        return self.tuner is not None and self.tuner.observe(td_error)


class Told(NamedTuple):
    """Borrows what somebody else says, and nothing but that; an empty buffer gives nothing."""

    weights: Mapping[str, float]  # by buffer; one that is not named gives nothing
    newest: float

    def weigh(self, own: int, names: Sequence[str], sizes: Rows) -> Fare:
        told = np.array([self.weights.get(name, 0.0) for name in names])
        return Fare(np.where(sizes > 0, told, 0.0), self.newest, 1.0)

    def observe(self, td_error: Array) -> bool:
        return False
