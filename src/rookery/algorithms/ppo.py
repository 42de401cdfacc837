"""Proximal policy optimisation (PPO): several epochs over each rollout with clipped ratios.

Schulman et al. 2017; generalised advantage estimation (GAE) by Schulman et al. 2016.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from rookery.algorithms.actor_critic import OnPolicy
from rookery.config.algorithms import PpoConfig

KL_MARGIN = 1.5  # of `algo.target_kl`, as in Stable-Baselines3


class Ppo(OnPolicy):
    """PPO for discrete, multi-discrete and continuous actions."""

    config: PpoConfig

    def value_loss(self, value: Tensor, returns: Tensor, advantage: Tensor) -> Tensor:
        limit, before = self.config.clip_range_vf, returns - advantage
        if limit is not None:
            value = before + (value - before).clamp(-limit, limit)
        return F.mse_loss(value, returns)

    def ends_rollout(self, metrics: Mapping[str, Tensor | float]) -> bool:
        limit = self.config.target_kl
        return limit is not None and float(metrics["approx_kl"]) > KL_MARGIN * limit

    def surrogate(
        self, log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns PPO's clipped surrogate loss, and metrics to log."""
        clip = self.scheduled(self.config.clip_range, self.config.clip_range_end)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        loss = -torch.minimum(advantage * ratio, advantage * clipped).mean()
        with torch.no_grad():
            metrics = {
                "approx_kl": (ratio - 1.0 - log_ratio).mean(),  # Schulman's estimator, never < 0
                "clip_fraction": ((ratio - 1.0).abs() > clip).float().mean(),
            }
        return loss, metrics
