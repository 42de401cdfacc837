"""The guard: a loan counts less, the less our own policy would have done the same.

A row's weight is multiplied by pi(a|s) / b(a|s), cut to [FLOOR, 1]: how likely the action is to us,
beside how likely it was to whoever took it (a truncated importance ratio, as in Munos et al. 2016).
Under epsilon-greedy play an action has the probability 1 - e + e/A where it is the greedy one, and
e/A otherwise. Which of the two it was to the lender is told by the values its actor wrote (`taken`,
`best`); e is ours for both, since rows do not carry the lender's. Where a lender's actors write no
values, and in rows of other libraries, nothing is known, and the weight stays.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from rookery.errors import ConfigError
from rookery.types import Array, Floats

FLOOR = 0.05
GREEDY, UNKNOWN = 1, -1  # what is known of a row's action; 0: it was not the greedy one


class Guard:
    """Weighs rows of others by how far they are from our own policy."""

    def __init__(
        self, greedy: Callable[[Any], Array], epsilon: Callable[[], float], *, choices: int
    ):
        """`greedy` returns our own actions at observations, `epsilon` our share of random ones."""
        if choices < 1:
            raise ConfigError(
                "sharing.guard weighs loans by epsilon-greedy play of one Discrete, and these "
                "actions are something else; set sharing.guard=false"
            )
        self._greedy, self._epsilon, self._choices = greedy, epsilon, choices

    def weigh(self, obs: Any, action: Array, greedy: Array) -> Floats:
        """Returns [B] factors for rows of which it is known how their action was chosen."""
        other = self._epsilon() / self._choices
        best = 1.0 - self._epsilon() + other
        ours = np.where(self._greedy(obs) == action, best, other)
        theirs = np.where(greedy == GREEDY, best, other)
        ratio = ours / np.maximum(theirs, 1e-9)
        factor = np.where(greedy == UNKNOWN, 1.0, np.clip(ratio, FLOOR, 1.0))
        return factor.astype(np.float32)
