"""Twin delayed DDPG (TD3): DDPG with less overestimation. Fujimoto et al. 2018.

Targets use the minimum of two critics (clipped double Q). Noise on target actions smooths the
critic (target policy smoothing). The policy and the target networks are updated less often than
the critics.
"""

import torch
from torch import Tensor

from rookery.algorithms.ddpg import Ddpg
from rookery.config.algorithms import Td3Config


class Td3(Ddpg):
    """TD3: DDPG with two critics, target policy smoothing and delayed policy updates."""

    config: Td3Config
    num_critics = 2

    def updates_policy(self, step: int) -> bool:
        return step % self.config.policy_delay == 0

    def smoothed(self, action: Tensor, rng: torch.Generator) -> Tensor:
        noise = torch.randn(action.shape, generator=rng, device=action.device)
        clip = self.config.target_noise_clip
        noise = (self.config.target_policy_noise * noise).clamp(-clip, clip)
        return (action + noise).clamp(-1.0, 1.0)
