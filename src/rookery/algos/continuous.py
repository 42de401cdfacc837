"""What algorithms of continuous actions share: a policy, critics that judge it, and their targets.

An algorithm derives from `Continuous` and says how many numbers its policy and its critics give,
what its targets follow, how it chooses, and its losses.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algos.chance import some_random
from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import Ask, tensors
from rookery.nets.build import build
from rookery.nets.critic import Critic, share
from rookery.types import Batch, EnvSpec, Floats, Obs


class Continuous(Algorithm):
    """A policy of actions in -1 to 1, and critics that judge them."""

    together = True

    def __init__(
        self,
        config: AlgoConfig,
        net: NetConfig,
        env: EnvConfig,
        spec: EnvSpec,
        *,
        each: int,  # numbers that the policy gives for each one of an action
        critics: int,
        outputs: int = 1,  # of a critic
    ):
        require(spec.action.continuous, config.name, "continuous actions", spec, "use dqn or ppo")
        self.spec, self.width = spec, math.prod(spec.action.shape)
        normalize = env.normalize_obs
        self.policy = build(net, spec, each * self.width, normalize=normalize)
        self.critic = Critic(net, spec, outputs, normalize, critics)
        share(self.policy, self.critic)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self._ask = Ask(self.policy)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}

    def judged(self, obs: Any, action: Tensor) -> Tensor:
        """Returns what an action is worth, [B]: the smallest of the critics' opinions."""
        return self.critic(obs, action).amin(0).squeeze(1)  # type: ignore[no-any-return]

    def critic_loss(self, batch: Batch, wanted: Tensor, scale: float = 1.0) -> Loss:
        """Returns the squared errors of all critics, which should have said `wanted`, [B, 1]."""
        q = self.critic(batch.obs, batch.action)  # [C, B, 1]
        error = wanted - q
        loss = scale / len(wanted) * (error.square().sum((0, 2)) @ batch.weight)
        metrics = {"q_mean": q.detach().mean()}
        return Loss("critic", loss, error.detach().mean((0, 2)), metrics)

    def chosen(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        """Returns [E, A] actions for the policy's outputs; without noise those in the middle."""
        raise NotImplementedError

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        values: bool = False,
        memory: Floats | None = None,
    ) -> Acted:
        """Chooses [E, *action] actions. The best one, of `values`, is the one without noise."""
        out = self._ask(obs)
        action = some_random(self.chosen(out, rng, noise=noise), epsilon, rng)
        shaped = action.reshape(-1, *self.spec.action.shape)
        if not values:
            return Acted(shaped)
        best = self.chosen(out, rng, noise=False)
        return Acted(shaped, self._value(obs, action), self._value(obs, best))

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.tanh(self.policy(obs)[:, : self.width]), None  # deviations come after means

    @torch.inference_mode()
    def _value(self, obs: Obs, action: Floats) -> Floats:
        device = next(self.critic.parameters()).device
        judged = self.judged(tensors(obs, device), torch.from_numpy(action).to(device))
        return judged.cpu().numpy()
