"""TD3: DDPG that is not fooled by its own optimism. Fujimoto et al. 2018.

Two critics, of which the smaller opinion counts; target actions with noise on them, so that a
narrow peak of a critic is worth little; and a policy that waits until its critics have settled.
"""

import torch
from torch import Tensor

from rookery.algos.ddpg import Ddpg
from rookery.config.algorithms import Td3Config


class Td3(Ddpg):
    """DDPG with two critics, smoothed targets and late updates of policy and targets."""

    config: Td3Config
    num_critics = 2

    def moves(self, step: int) -> bool:
        return step % self.config.policy_period == 0

    def smoothed(self, action: Tensor, rng: torch.Generator) -> Tensor:
        noise = torch.randn(action.shape, generator=rng, device=action.device)
        clip = self.config.target_noise_clip
        noise = (self.config.target_noise * noise).clamp(-clip, clip)
        return (action + noise).clamp(-1.0, 1.0)
