"""Schedules of settings that change during a run, such as learning rate and epsilon."""

import math
from collections.abc import Callable
from enum import StrEnum

LEAST = 1e-8  # stands for 0 at the ends of an exponential decay


class Decay(StrEnum):
    """Curves by which a scheduled setting, such as the learning rate, changes during a run."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    COSINE = "cosine"
    STEP = "step"


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
    """A value, such as the learning rate, that changes from `first` to `last` during a run."""

    def __init__(self, first: float, last: float, decay: Decay):
        self.first, self.last, self.decay = first, last, decay

    @property
    def constant(self) -> bool:
        return self.decay is Decay.CONSTANT

    def at(self, share: float) -> float:
        """Returns the value after a fraction `share` (0 to 1) of the schedule's duration.

        The duration is that of the run, or of epsilon's decay. From `share` = 1 on, the value is
        `last`, but a constant schedule always has the value `first`.
        """
        share = min(max(share, 0.0), 1.0)
        if share >= 1.0 and not self.constant:
            return self.last
        return SHAPES[self.decay](self.first, self.last, share)
