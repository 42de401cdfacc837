"""A task that only memory solves."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.toy import Toy
from rookery.types import Floats

SIGHTS = 4  # cue 0, cue 1, the corridor, the choice
CORRIDOR, CHOICE = 2, 3


class Recall(Toy):
    """Shows one of two cues, then `delay` times the same corridor, then asks which cue it was.

    The observation names, one-hot, what is seen: cue 0, cue 1, the corridor, the choice. Only the
    action at the choice counts: naming the cue earns 1, the other one -1. Terminates there, after
    `delay` + 2 steps.

    Optimum: remember, return 1. Without memory the expected return is 0 whatever the policy: the
    observation at the choice is the same after both cues, and so is the chance of either action
    then; the cue is a fair coin, so the match is one too. The same holds for the last k frames as
    long as k <= `delay` + 1, for then the cue is not among them at the choice.
    """

    MEMORY = ("cue", "steps")

    def __init__(self, delay: int = 8) -> None:
        self.delay, self.cue, self.steps = delay, 0, 0
        self.observation_space = spaces.Box(0.0, 1.0, (SIGHTS,), np.float32)
        self.action_space = spaces.Discrete(2)

    @property
    def optimal_return(self) -> float:
        return 1.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return self._look(), {}

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
