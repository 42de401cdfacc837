"""Proximal policy optimisation (PPO): several epochs over each rollout with clipped ratios.

Schulman et al. 2017; generalised advantage estimation (GAE) by Schulman et al. 2016.
"""

import torch
from torch import Tensor

from rookery.algorithms.actor_critic import OnPolicy
from rookery.config.algorithms import PpoConfig


class Ppo(OnPolicy):
    """PPO for discrete, multi-discrete and continuous actions."""

    config: PpoConfig

    def surrogate(
        self, log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns PPO's clipped surrogate loss, and metrics to log."""
        clip, log_ratio = self.config.clip_range, log_prob - old_log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        loss = -torch.minimum(advantage * ratio, advantage * clipped).mean()
        with torch.no_grad():
            metrics = {
                "approx_kl": (ratio - 1.0 - log_ratio).mean(),  # Schulman's estimator, never < 0
                "clip_fraction": ((ratio - 1.0).abs() > clip).float().mean(),
            }
        return loss, metrics
