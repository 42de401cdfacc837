"""Truncated quantile critics: SAC whose critics know distributions. Kuznetsov et al. 2020.

Each critic says where the quantiles of the return lie. All of a state's are put together, and the
largest are dropped before they are bootstrapped from: how much optimism is cut is a number of
quantiles, which is finer than the smallest of two critics.

Chosen over CrossQ because it changes only what critics say and their loss, so that any network,
a user's own included, works with it, while CrossQ asks for batch normalisation inside the network.
"""

from typing import Any

import torch
from torch import Tensor

from rookery.algos.distributions import quantile_huber
from rookery.algos.interface import Loss
from rookery.algos.sac import Sac
from rookery.config.algorithms import TqcConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.types import Batch, EnvSpec


class Tqc(Sac):
    """SAC with quantile critics, without their largest quantiles."""

    config: TqcConfig

    def __init__(self, config: TqcConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__(config, net, env, spec, outputs=config.quantiles)

    def believed(self, q: Tensor) -> Tensor:
        """Returns the [B, K] smallest of all critics' [C, B, N] quantiles."""
        critics, _, quantiles = q.shape
        kept = critics * (quantiles - self.config.dropped)
        together = q.transpose(0, 1).flatten(1)  # [B, C * N]
        return together.sort(1).values[:, :kept]

    def judged(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the mean of all quantiles, [B]; truncation is for what is bootstrapped from."""
        return self.critic(obs, action).mean((0, 2))  # type: ignore[no-any-return]

    def critic_loss(self, batch: Batch, wanted: Tensor, scale: float = 1.0) -> Loss:
        """Returns the quantile regression's loss of all critics for `wanted`, [B, K]."""
        q = self.critic(batch.obs, batch.action)  # [C, B, N]
        loss = regression(q, wanted) @ batch.weight / len(wanted)
        said = q.detach()
        error = wanted.mean(1) - said.mean((0, 2))
        return Loss("critic", loss, error, {"q_mean": said.mean()})


def regression(q: Tensor, wanted: Tensor) -> Tensor:
    """Returns [B] losses of quantiles [C, B, N] whose distribution should be `wanted`, [B, K].

    Their mean over critics and over pairs of a quantile and a wanted one.
    """
    count = q.shape[2]
    level = (torch.arange(count, device=q.device) + 0.5) / count
    return torch.stack([quantile_huber(said, wanted, level) for said in q]).mean(0) / count
