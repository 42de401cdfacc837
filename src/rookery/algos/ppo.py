"""Proximal policy optimisation: several epochs over a rollout, none of them far from its policy.

Schulman et al. 2017; advantages by Schulman et al. 2016.
"""

import torch
from torch import Tensor

from rookery.algos.actor_critic import OnPolicy
from rookery.config.algorithms import PpoConfig


class Ppo(OnPolicy):
    """Discrete, several discrete, and continuous actions."""

    config: PpoConfig

    def surrogate(
        self, log_prob: Tensor, played: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes the lower of two: with the ratio of probabilities as it is, and with it clipped."""
        clip, log_ratio = self.config.clip, log_prob - played
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        loss = -torch.minimum(advantage * ratio, advantage * clipped).mean()
        with torch.no_grad():
            metrics = {
                "approx_kl": (ratio - 1.0 - log_ratio).mean(),  # Schulman's estimator, never < 0
                "clip_fraction": ((ratio - 1.0).abs() > clip).float().mean(),
            }
        return loss, metrics
