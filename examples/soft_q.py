"""An algorithm of your own: soft Q-learning, in one file that Rookery knows nothing of.

    python examples/soft_q.py                                            # trains and plays
    rookery train corridor --set algo=soft_q:SoftQ --set algo.temperature=0.1   # in this folder

It works in every mode, on every engine, with prioritised replay, n-step returns, checkpoints and
sharing, because none of that is an algorithm's business (Haarnoja et al. 2017 for the method).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rookery
from rookery.algorithms.algorithm import Acted, Algorithm, Loss
from rookery.config.algorithms import AlgoConfig
from rookery.networks.forward import FastForward
from rookery.networks.mlp import build
from rookery.networks.target_network import TargetNetwork
from rookery.types import Batch, Obs


@dataclass(frozen=True, kw_only=True)
class SoftQConfig(AlgoConfig):
    """Settings of soft Q-learning, besides the name, gamma and n_step of every algorithm."""

    temperature: float = 0.02  # how random the policy is
    tau: float = 0.05  # share by which the target network moves at each step

    @property
    def explores(self) -> bool:
        return True  # the policy is stochastic: no epsilon is needed


class SoftQ(Algorithm):
    """Soft Q-learning: the policy is a softmax of the values it learns."""

    Settings = SoftQConfig

    def __init__(self, config: SoftQConfig, net: Any, env: Any, spec: Any):
        self.config, self.choices = config, spec.action.n
        self.acting = build(net, spec, self.choices, normalize=env.normalize_obs)
        self.target = TargetNetwork(self.acting)
        self.networks = nn.ModuleDict({"q": self.acting, "target": self.target.network})
        self._forward = FastForward(self.acting)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.acting.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.config.temperature
        with torch.no_grad():
            value = alpha * torch.logsumexp(self.target.network(batch.next_obs) / alpha, 1)
            target = batch.reward + batch.discount * value  # discount is 0 after termination
        q = self.acting(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, target, reduction="none") @ batch.weight / len(q)
        yield Loss("q", loss, target - q.detach(), {"q_mean": q.detach().mean()})

    def update_targets(self, step: int) -> None:
        self.target.update(step, tau=self.config.tau)

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        **_: Any,
    ) -> Acted:
        scores = self._forward(obs) / self.config.temperature
        if noise:
            scores = scores - np.log(-np.log(rng.random(scores.shape)))  # samples the softmax
        action = scores.argmax(1)
        random = rng.random(len(action)) < epsilon
        action[random] = rng.integers(self.choices, size=int(random.sum()))
        return Acted(action)


if __name__ == "__main__":
    run = rookery.train("corridor", overrides=["algo=soft_q:SoftQ"], seed=3)
    print(f"solved: {run.answer['solved']} after {run.answer['env_steps']} env steps")
