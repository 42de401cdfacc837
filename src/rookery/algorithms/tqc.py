"""Truncated quantile critics (TQC): SAC with distributional critics. Kuznetsov et al. 2020.

Each critic predicts quantiles of the return. Bellman targets merge the quantiles of all critics and
drop the largest ones, which controls overestimation in finer steps than the minimum of two critics.
TQC works with any network, custom ones included.
"""

from typing import Any

import torch
from torch import Tensor

from rookery.algorithms.algorithm import Loss
from rookery.algorithms.return_distributions import quantile_huber_loss
from rookery.algorithms.sac import Sac
from rookery.config.algorithms import TqcConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.types import EnvSpec, TensorBatch


class Tqc(Sac):
    """TQC: SAC with quantile critics and truncated target distributions."""

    config: TqcConfig

    def __init__(self, config: TqcConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__(config, net, env, spec, outputs=config.quantiles)

    def bootstrap_q(self, q: Tensor) -> Tensor:
        """Returns the quantiles for the Bellman target: the smallest ones of all target critics.

        `q` are N quantiles of each of C critics, [C, B, N] for a batch of B. The largest
        C x `algo.dropped_quantiles` are dropped; the result is [B, K], with K left.
        """
        critics, _, quantiles = q.shape
        kept = critics * (quantiles - self.config.dropped_quantiles)
        pooled = q.transpose(0, 1).flatten(1)  # [B, C * N]
        return pooled.sort(1).values[:, :kept]

    def q_value(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the Q values [B] (batch) of actions: the mean of all quantiles of all critics."""
        return self.critic(obs, action).mean((0, 2))  # type: ignore[no-any-return]

    def critic_loss(self, batch: TensorBatch, target: Tensor, scale: float = 1.0) -> Loss:
        """Returns the quantile regression loss of all critics.

        `target` [B, K] are K target quantiles for each of B transitions. `scale`, a factor of the
        squared errors of other critics, has no effect here.
        """
        q = self.critic(batch.obs, batch.action)  # [C, B, N]
        loss = quantile_regression_loss(q, target) @ batch.weight / len(target)
        prediction = q.detach()
        td_error = target.mean(1) - prediction.mean((0, 2))
        return Loss("critic", loss, td_error, {"q_mean": prediction.mean()})


def quantile_regression_loss(q: Tensor, target: Tensor) -> Tensor:
    """Returns TQC's quantile regression loss of each of B transitions.

    `q` are N predicted quantiles of each of C critics, [C, B, N]; `target` are K target quantiles
    [B, K]. The loss is the mean over critics and over pairs of a predicted and a target quantile.
    """
    count = q.shape[2]
    tau = (torch.arange(count, device=q.device) + 0.5) / count
    return torch.stack([quantile_huber_loss(own, target, tau) for own in q]).mean(0) / count
