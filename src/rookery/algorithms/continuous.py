"""The base class of DDPG, TD3, SAC and TQC: a policy for continuous actions, and Q-value critics.

A subclass defines the numbers of outputs of policy and critics, the target networks, how actions
are selected, and the losses.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rookery.algorithms.algorithm import Acted, Algorithm, Loss, require_actions
from rookery.algorithms.exploration import explore_continuous
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.critics import Critic, share_normalization
from rookery.networks.forward import FastForward, tensors
from rookery.networks.mlp import build
from rookery.types import EnvSpec, Floats, Obs, TensorBatch


class Continuous(Algorithm):
    """Base class of actor-critic algorithms for continuous actions (DDPG, TD3, SAC, TQC).

    It has a policy network, for actions in [-1, 1], and critics, which estimate Q values.
    """

    batches_actors = True

    def __init__(
        self,
        config: AlgoConfig,
        net: NetConfig,
        env: EnvConfig,
        spec: EnvSpec,
        *,
        each: int,  # policy outputs for each dimension of an action
        critics: int,  # number of critics
        outputs: int = 1,  # of each critic
    ):
        require_actions(
            spec.action.continuous, config.name, "continuous actions", spec, "use dqn or ppo"
        )
        self.spec, self.width = spec, math.prod(spec.action.shape)
        normalize = env.normalize_obs
        self.policy = build(net, spec, each * self.width, normalize=normalize)
        self.critic = Critic(net, spec, outputs, normalize, critics)
        share_normalization(self.policy, self.critic)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self._forward = FastForward(self.policy)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}

    def q_value(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the Q values [B] (batch) of actions: the minimum over the critics."""
        return self.critic(obs, action).amin(0).squeeze(1)  # type: ignore[no-any-return]

    def critic_loss(self, batch: TensorBatch, target: Tensor, scale: float = 1.0) -> Loss:
        """Returns the critics' loss: squared TD errors, summed over critics, mean over the batch.

        `target` [B, 1] are the Bellman targets. The sum is weighted by importance weights and
        multiplied by `scale`.
        """
        q = self.critic(batch.obs, batch.action)  # [C, B, 1]
        td_error = target - q
        loss = scale / len(target) * (td_error.square().sum((0, 2)) @ batch.weight)
        metrics = {"q_mean": q.detach().mean()}
        return Loss("critic", loss, td_error.detach().mean((0, 2)), metrics)

    def select_action(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        """Returns the actions of E environments, given the policy network's outputs `out`.

        With `noise` they are sampled, or get exploration noise; without, they are the mean actions.
        Actions are [E, A], with A components.
        """
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
        """Returns the policy's actions in E environments, with exploration noise if `noise` is set.

        Each action is replaced by a uniformly random one with probability `epsilon`. With `values`,
        the result also holds the Q values of the returned actions (`taken`) and of the actions
        without noise (`best`).
        """
        out = self._forward(obs)
        action = explore_continuous(self.select_action(out, rng, noise=noise), epsilon, rng)
        shaped = action.reshape(-1, *self.spec.action.shape)
        if not values:
            return Acted(shaped)
        best = self.select_action(out, rng, noise=False)
        return Acted(shaped, self._value(obs, action), self._value(obs, best))

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.tanh(self.policy(obs)[:, : self.width]), None  # means come before deviations

    @torch.inference_mode()
    def _value(self, obs: Obs, action: Floats) -> Floats:
        device = next(self.critic.parameters()).device
        q = self.q_value(tensors(obs, device), torch.from_numpy(action).to(device))
        return q.cpu().numpy()
