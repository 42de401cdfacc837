"""A toy environment that only policies with memory can solve, such as recurrent ones."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.toy.basic import Toy
from rookery.types import Floats

SIGHTS = 4  # cue 0, cue 1, the corridor, the choice
CORRIDOR, CHOICE = 2, 3


class Recall(Toy):
    """Environment: remember which of two cues was shown first; repeat it as the last action.

    The observation is one-hot with four entries: cue 0 or cue 1 at first, then `delay` times
    "corridor", then "choice". The action at the choice earns 1 if it equals the cue, else -1, and
    ends the episode after `delay` + 2 steps; other actions have no effect.

    Optimum: return 1. Without memory every policy has an expected return of 0: the observation at
    the choice is the same after both cues, which are equally likely. The same holds for a stack of
    k frames with k <= `delay` + 1, which does not contain the cue at the choice.
    """

    MEMORY = ("cue", "steps")
    optimal_return = 1.0

    def __init__(self, delay: int = 8) -> None:
        self.delay, self.cue = delay, 0
        self.observation_space = spaces.Box(0.0, 1.0, (SIGHTS,), np.float32)
        self.action_space = spaces.Discrete(2)

    def begin(self) -> Floats:
        self.cue = int(self.np_random.integers(2))
        return self._look()

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        asked, right = self.steps == self.delay + 1, int(action) == self.cue
        self.steps += 1
        reward = (1.0 if right else -1.0) if asked else 0.0
        return self._look(), reward, asked, False, {"is_success": right} if asked else {}

    def _look(self) -> Floats:
        seen = np.zeros(SIGHTS, dtype=np.float32)
        before = CORRIDOR if self.steps <= self.delay else CHOICE
        seen[self.cue if self.steps == 0 else before] = 1.0
        return seen
