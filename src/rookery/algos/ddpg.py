"""Deep deterministic policy gradients: a policy that climbs its critic. Lillicrap et al. 2016."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algos.chance import normal
from rookery.algos.continuous import Continuous
from rookery.algos.interface import Loss
from rookery.config.algorithms import DdpgConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.follow import Follower
from rookery.types import Batch, EnvSpec, Floats


class Ddpg(Continuous):
    """A deterministic policy, explored around with Gaussian noise, and one critic."""

    num_critics = 1

    def __init__(self, config: DdpgConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__(config, net, env, spec, each=1, critics=self.num_critics)
        self.config = config
        self.target = Follower(self.acting)
        self.networks = nn.ModuleDict({"acting": self.acting, "target": self.target.network})

    def moves(self, step: int) -> bool:
        """Do the policy and the targets move in this learner step?"""
        return True

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        yield self.critic_loss(batch, self._wanted(batch, rng))
        if self.moves(step):
            action = torch.tanh(self.policy(batch.obs))  # [B, A]
            yield Loss("actor", -self.critic.first(batch.obs, action).mean(), None, {})

    @torch.no_grad()
    def _wanted(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Returns what a critic should have said, [B, 1]."""
        target: Any = self.target.network
        action = self.smoothed(torch.tanh(target["policy"](batch.next_obs)), rng)
        next_q = target["critic"](batch.next_obs, action).amin(0)  # [B, 1]
        wanted: Tensor = batch.reward[:, None] + batch.discount[:, None] * next_q
        return wanted

    def smoothed(self, action: Tensor, rng: torch.Generator) -> Tensor:
        """Returns the target policy's [B, A] actions as the target critics see them."""
        return action

    def settle(self, step: int) -> None:
        if self.moves(step):
            self.target.settle(step, tau=self.config.target_tau)

    def chosen(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        action: Floats = np.tanh(out)
        if not noise:
            return action
        noisy = action + np.float32(self.config.noise) * normal(action.shape, rng)
        return noisy.clip(-1.0, 1.0)
