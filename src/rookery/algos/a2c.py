"""Advantage actor-critic: one step on each rollout, by the policy gradient.

Mnih et al. 2016, with all actors in step.
"""

from torch import Tensor

from rookery.algos.actor_critic import OnPolicy
from rookery.config.algorithms import A2cConfig


class A2c(OnPolicy):
    """Discrete, several discrete, and continuous actions."""

    config: A2cConfig

    def surrogate(
        self, log_prob: Tensor, played: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -(advantage * log_prob).mean(), {}
