"""Deep deterministic policy gradient (DDPG). Lillicrap et al. 2016."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algorithms.algorithm import Loss
from rookery.algorithms.continuous import Continuous
from rookery.algorithms.exploration import normal
from rookery.config.algorithms import DdpgConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.target_network import TargetNetwork
from rookery.types import EnvSpec, Floats, TensorBatch


class Ddpg(Continuous):
    """DDPG: a deterministic policy with Gaussian exploration noise, and one critic."""

    num_critics = 1
    capturable = True

    def __init__(self, config: DdpgConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__(config, net, env, spec, each=1, critics=self.num_critics)
        self.config = config
        self.target = TargetNetwork(self.acting)
        self.networks = nn.ModuleDict({"acting": self.acting, "target": self.target.network})

    def updates_policy(self, step: int) -> bool:
        """Returns whether gradient step `step` updates the policy and the target networks.

        DDPG updates them at every step, TD3 at every `policy_delay`-th step.
        """
        return True

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        yield self.critic_loss(batch, self._bellman_target(batch, rng))
        if self.updates_policy(step):
            action = torch.tanh(self.policy(batch.obs))  # [B, A]
            yield Loss("actor", -self.critic.first(batch.obs, action).mean(), None, {})

    @torch.no_grad()
    def _bellman_target(self, batch: TensorBatch, rng: torch.Generator) -> Tensor:
        """Returns the Bellman targets of the critics, [B, 1] for a batch of B transitions."""
        network: Any = self.target.network
        action = self.smoothed(torch.tanh(network["policy"](batch.next_obs)), rng)
        next_q = network["critic"](batch.next_obs, action).amin(0)  # [B, 1]
        target: Tensor = batch.reward[:, None] + batch.discount[:, None] * next_q
        return target

    def smoothed(self, action: Tensor, rng: torch.Generator) -> Tensor:
        """Returns the next actions for the Bellman target, given those of the target policy.

        DDPG returns them unchanged; TD3 adds noise (target policy smoothing).
        """
        return action

    def update_targets(self, step: int) -> None:
        if self.updates_policy(step):
            self.target.update(step, tau=self.config.target_tau)

    def phase(self, step: int) -> int:
        return int(self.updates_policy(step))

    def select_action(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        action: Floats = np.tanh(out)
        if not noise:
            return action
        noisy = action + np.float32(self.config.noise) * normal(action.shape, rng)
        return noisy.clip(-1.0, 1.0)
