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
from rookery.algos.interface import Acted, Algorithm, Loss
from rookery.config.algorithms import AlgoConfig
from rookery.nets.ask import Ask
from rookery.nets.build import build
from rookery.nets.follow import Follower
from rookery.types import Batch, Obs


@dataclass(frozen=True, kw_only=True)
class SoftQConfig(AlgoConfig):
    """Its settings, beside the name, gamma and n_step that every algorithm has."""

    temperature: float = 0.02  # how random the policy is
    tau: float = 0.05  # how fast the target network follows

    @property
    def explores(self) -> bool:
        return True  # its policy is random by itself: no epsilon is needed


class SoftQ(Algorithm):
    """Soft Q-learning: the policy is a softmax of the values it learns."""

    Settings = SoftQConfig

    def __init__(self, config: SoftQConfig, net: Any, env: Any, spec: Any):
        self.config, self.choices = config, spec.action.n
        self.acting = build(net, spec, self.choices, normalize=env.normalize_obs)
        self.target = Follower(self.acting)
        self.networks = nn.ModuleDict({"q": self.acting, "target": self.target.network})
        self._ask = Ask(self.acting)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.acting.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        heat = self.config.temperature
        with torch.no_grad():
            value = heat * torch.logsumexp(self.target.network(batch.next_obs) / heat, 1)
            wanted = batch.reward + batch.discount * value  # discount is 0 after an end
        q = self.acting(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, wanted, reduction="none") @ batch.weight / len(q)
        yield Loss("q", loss, wanted - q.detach(), {"q_mean": q.detach().mean()})

    def settle(self, step: int) -> None:
        self.target.settle(step, tau=self.config.tau)

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        **_: Any,
    ) -> Acted:
        scores = self._ask(obs) / self.config.temperature
        if noise:
            scores = scores - np.log(-np.log(rng.random(scores.shape)))  # a softmax
        action = scores.argmax(1)
        random = rng.random(len(action)) < epsilon
        action[random] = rng.integers(self.choices, size=int(random.sum()))
        return Acted(action)


if __name__ == "__main__":
    run = rookery.train("corridor", overrides=["algo=soft_q:SoftQ"], seed=3)
    print(f"solved: {run.answer['solved']} after {run.answer['env_steps']} env steps")
