"""Implicit quantile networks: quantiles of the return at any fraction (IQN)."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rookery.config.schema import NetConfig
from rookery.networks.mlp import ACTIVATIONS, build
from rookery.networks.noisy import SIGMA0, NoisyLinear
from rookery.types import EnvSpec

COSINES = 64  # features of a quantile fraction: n of Dabney et al. 2018b, eq. 4


class ImplicitQuantileNetwork(nn.Module):
    """Implicit quantile network (IQN): predicts quantiles of the return at given fractions.

    Dabney et al. 2018b. Maps B observations and N fractions each, `tau` [B, N], to quantiles
    [B, outputs, N]. The last hidden layer's units are multiplied with an embedding of the
    fractions. A custom network (`net.custom`) takes the place of all hidden layers, so it is built
    with as many outputs as the last layer in `net.hidden` has units. Without `tau`, `count` evenly
    spaced fractions are used.
    """

    even: Tensor  # [1, count]
    waves: Tensor  # [COSINES]

    def __init__(
        self,
        config: NetConfig,
        spec: EnvSpec,
        outputs: int,
        count: int,
        *,
        normalize: bool = False,
        noisy: bool = False,
        sigma0: float = SIGMA0,
    ):
        super().__init__()
        width = config.hidden[-1] if config.hidden else COSINES
        self.body = build(
            replace(config, hidden=config.hidden[:-1]),
            spec,
            width,
            normalize=normalize,
            noisy=noisy,
            sigma0=sigma0,
        )
        layer: Callable[[int, int], nn.Module] = (
            partial(NoisyLinear, sigma0=sigma0) if noisy else nn.Linear
        )
        self.embed, self.out = nn.Linear(COSINES, width), layer(width, outputs)
        self.activate = ACTIVATIONS[config.activation]
        self.register_buffer("even", midpoints(count)[None], persistent=False)
        self.register_buffer("waves", math.pi * torch.arange(COSINES), persistent=False)

    def forward(self, obs: Any, tau: Tensor | None = None) -> Tensor:
        # A copy: activations may work in place, and a user's own body may need its output.
        features = self.activate(self.body(obs).clone())  # [B, W]
        tau = self.even if tau is None else tau
        embedding = torch.relu(self.embed(torch.cos(tau[..., None] * self.waves)))  # [B or 1, N, W]
        return self.out(features[:, None] * embedding).transpose(1, 2)  # type: ignore[no-any-return]


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """Returns the midpoints of `count` equal intervals of [0, 1]: evenly spaced quantile levels."""
    return (torch.arange(count, device=device) + 0.5) / count
