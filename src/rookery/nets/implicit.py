"""Quantile functions: networks that are asked for the quantile at any share of probability."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rookery.config.schema import NetConfig
from rookery.nets.build import ACTIVATIONS, build
from rookery.nets.noisy import SIGMA0, NoisyLinear
from rookery.types import EnvSpec

COSINES = 64  # that tell shares apart: n of Dabney et al. 2018b, eq. 4


class Implicit(nn.Module):
    """Obs and [B, N] shares between 0 and 1 → [B, outputs, N] quantiles (Dabney et al. 2018b).

    The share is multiplied into the last hidden layer, so a network of the user's own gets that
    layer's width as its outputs. Unless told, it is asked at `count` shares in even distances.
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

    def forward(self, obs: Any, at: Tensor | None = None) -> Tensor:
        # A copy: activations may work in place, and a body of another's making may need its output.
        seen = self.activate(self.body(obs).clone())  # [B, W]
        at = self.even if at is None else at
        share = torch.relu(self.embed(torch.cos(at[..., None] * self.waves)))  # [B or 1, N, W]
        return self.out(seen[:, None] * share).transpose(1, 2)  # type: ignore[no-any-return]


def midpoints(count: int) -> Tensor:
    """Returns the middles of `count` equal parts of 0 to 1, [count]."""
    return (torch.arange(count) + 0.5) / count
