"""An algorithm that a user might write: one file that the package knows nothing of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rookery.algorithms.algorithm import Acted, Algorithm, Loss
from rookery.config.algorithms import AlgoConfig
from rookery.networks.forward import FastForward
from rookery.networks.mlp import build
from rookery.types import Batch, Obs


@dataclass(frozen=True, kw_only=True)
class RewardedConfig(AlgoConfig):
    """What it can be told."""

    slowness: float = 1.0  # its loss is divided by this


class Rewarded(Algorithm):
    """Learns what is paid at once."""

    Settings = RewardedConfig

    def __init__(self, config: RewardedConfig, net: Any, env: Any, spec: Any):
        self.config = config
        self.acting = build(net, spec, spec.action.n, normalize=env.normalize_obs)
        self.networks = nn.ModuleDict({"acting": self.acting})
        self._forward = FastForward(self.acting)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"all": list(self.acting.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        prediction = self.acting(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        error = batch.reward - prediction
        loss = (batch.weight * error.square()).mean() / self.config.slowness
        yield Loss("all", loss, error.detach(), {})

    def act(self, obs: Obs, rng: np.random.Generator, *, epsilon: float = 0.0, **_: Any) -> Acted:
        action = self._forward(obs).argmax(1)
        random = rng.random(len(action)) < epsilon
        action[random] = rng.integers(self.acting.out.out_features, size=int(random.sum()))
        return Acted(action)


class Confused(Rewarded):
    """Its settings are none."""

    Settings = dict


class Speechless(Rewarded):
    """It never knows what to do."""

    def act(self, obs: Obs, rng: np.random.Generator, **_: Any) -> Acted:
        raise RuntimeError("no words")
