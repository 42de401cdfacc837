"""Adaptive sharing: each peer's share follows whether its rows reduce our own TD error.

Whether they do is found out by trying (simultaneous perturbation, Spall 1992). For a window of
learner steps every peer's share is a little larger or smaller than it should be, at random; if the
TD error of our own rows then falls faster than it usually does, the shares move the way they were
pushed, and otherwise the other way. A share that makes no difference drifts back to what is plain;
floor and ceiling keep every peer in play and none in charge.

    tuner.factors(peers)          multiples of a peer's plain share
    tuner.observe(td_error)       of our own rows, after each learner step
"""

import math
from collections.abc import Sequence

import numpy as np

from rookery.types import Array, Floats

WINDOW = 50  # learner steps between two changes
PUSH = 0.2  # of a share's logarithm, up or down, during a window
RATE = 0.3  # how far a share moves for progress that is one deviation out of the ordinary
KEPT = 0.99  # of a share's logarithm from one window to the next
FLOOR, CEILING = 0.25, 2.5  # multiples of a peer's plain share
MEMORY = 0.9  # of ordinary progress


class Tuner:
    """Moves the shares of peers."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._log: dict[str, float] = {}  # of each peer's factor
        self._push: dict[str, float] = {}
        self._sum, self._steps = 0.0, 0
        self._before: float | None = None  # mean error in the last window
        self._usual, self._spread = 0.0, 0.0  # progress, and how much it varies

    def factors(self, peers: Sequence[str]) -> Floats:
        """Returns what multiplies the plain share of each of these peers."""
        pushed = [self._log.get(peer, 0.0) + self._push.get(peer, 0.0) for peer in peers]
        return np.clip(np.exp(pushed), FLOOR, CEILING)

    def observe(self, td_error: Array) -> bool:
        """Takes the TD errors of our own rows; returns whether the factors have changed."""
        size = float(np.abs(td_error).mean()) if td_error.size else math.nan
        if not math.isfinite(size):
            return False
        self._sum += size
        self._steps += 1
        if self._steps < WINDOW:
            return False
        self._conclude(self._sum / self._steps)
        self._sum, self._steps = 0.0, 0
        return True

    def _conclude(self, error: float) -> None:
        if self._before:
            self._learn((self._before - error) / self._before)
        self._before = error
        self._push = {peer: PUSH * float(self._rng.choice((-1.0, 1.0))) for peer in self._log}

    def _learn(self, progress: float) -> None:
        surprise = progress - self._usual
        deviation = math.sqrt(self._spread) or abs(surprise) or 1.0
        step = RATE * math.tanh(surprise / deviation)
        low, high = math.log(FLOOR), math.log(CEILING)
        for peer, push in self._push.items():
            self._log[peer] = min(max(KEPT * self._log[peer] + step * push, low), high)
        self._usual = MEMORY * self._usual + (1 - MEMORY) * progress
        self._spread = MEMORY * self._spread + (1 - MEMORY) * surprise**2

    def meet(self, peers: Sequence[str]) -> None:
        """Forgets peers that are gone, and begins with new ones in the middle."""
        self._log = {peer: self._log.get(peer, 0.0) for peer in peers}
        self._push = {peer: push for peer, push in self._push.items() if peer in self._log}
