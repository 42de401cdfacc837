"""Advantage actor-critic (A2C): one policy-gradient step on each rollout.

Mnih et al. 2016, with synchronous actors.
"""

from torch import Tensor

from rookery.algorithms.actor_critic import OnPolicy
from rookery.config.algorithms import A2cConfig


class A2c(OnPolicy):
    """A2C for discrete, multi-discrete and continuous actions."""

    config: A2cConfig

    def surrogate(
        self, log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -(advantage * log_prob).mean(), {}
