"""Schedules: a value that changes over the course of a run."""

import math
from collections.abc import Callable

from rookery.config.schema import Decay

LEAST = 1e-8  # an exponential decay to 0 ends here, and one from 0 stays there

SHAPES: dict[Decay, Callable[[float, float, float], float]] = {
    Decay.CONSTANT: lambda first, last, share: first,
    Decay.STEP: lambda first, last, share: first,
    Decay.LINEAR: lambda first, last, share: first + (last - first) * share,
    Decay.EXPONENTIAL: lambda first, last, share: (
        first * (max(last, LEAST) / max(first, LEAST)) ** share
    ),
    Decay.COSINE: lambda first, last, share: (
        last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))
    ),
}


class Schedule:
    """Goes from `first` to `last` as a share goes from 0 to 1."""

    def __init__(self, first: float, last: float, decay: Decay):
        self.first, self.last, self.decay = first, last, decay

    @property
    def constant(self) -> bool:
        return self.decay is Decay.CONSTANT

    def at(self, share: float) -> float:
        """Returns the value once `share` of the way is over; beyond 1 it stays."""
        share = min(max(share, 0.0), 1.0)
        if share >= 1.0 and not self.constant:
            return self.last
        return SHAPES[self.decay](self.first, self.last, share)
