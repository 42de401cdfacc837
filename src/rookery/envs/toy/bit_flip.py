"""A toy goal environment with sparse rewards, which needs hindsight experience replay (HER).

Andrychowicz et al. 2017.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from rookery.envs.toy.basic import Toy
from rookery.types import Array


class BitFlip(Toy):
    """Goal environment: flip one of `bits` bits at a time until they equal a goal.

    Observes a Dict: "observation" and "achieved_goal" are the bits, "desired_goal" is the goal,
    which differs from the initial bits. A step that reaches the goal earns 0 and terminates, any
    other -1. Truncated after `bits` steps.

    With many bits, random actions almost never reach the goal; hindsight experience replay (HER)
    replaces it by a goal that the episode reached. `compute_reward` and `compute_terminated` accept
    goals of shape [..., bits].

    Optimum, which depends on the goal of the episode: flip each of the d bits that differ from the
    goal once, return 1 - d.
    """

    def __init__(self, bits: int = 8) -> None:
        self.bits = bits
        self.state, self.goal = np.zeros(bits, np.int8), np.ones(bits, np.int8)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({name: spaces.MultiBinary(bits) for name in names})
        self.action_space = spaces.Discrete(bits)

    @property
    def optimal_return(self) -> float:
        return 1.0 - float(np.count_nonzero(self.state != self.goal))

    def export_state(self) -> dict[str, Any]:
        return {"state": self.state.tolist(), "goal": self.goal.tolist(), "steps": self.steps}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.state = np.array(state["state"], dtype=np.int8)
        self.goal = np.array(state["goal"], dtype=np.int8)
        self.steps = state["steps"]

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        """Returns whether achieved and desired goal are equal, which ends the episode.

        Goals may be batches [..., bits]; the result is [...]. Ignores `info`.
        """
        return np.all(np.asarray(achieved_goal) == np.asarray(desired_goal), axis=-1)

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        """Returns the reward: 0 if achieved and desired goal are equal, else -1.

        Goals may be batches [..., bits]; the result is [...].
        """
        reached = self.compute_terminated(achieved_goal, desired_goal, info)
        return np.asarray(reached, dtype=np.float32) - 1.0

    def begin(self) -> dict[str, Array]:
        self.state = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        different = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        while not different.any():
            different = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        self.goal = self.state ^ different
        return self._look()

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self.state[int(action)] ^= 1
        self.steps += 1
        arrived = bool(self.compute_terminated(self.state, self.goal, {}))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        truncated = not arrived and self.steps >= self.bits
        info = {"is_success": arrived} if arrived or truncated else {}
        return self._look(), reward, arrived, truncated, info

    def _look(self) -> dict[str, Array]:
        return {
            "observation": self.state.copy(),
            "achieved_goal": self.state.copy(),
            "desired_goal": self.goal.copy(),
        }
