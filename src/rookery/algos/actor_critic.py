"""What algorithms share that learn a policy and the value of states: networks, and how they act."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.interface import NOTHING, Acted, Algorithm, Loss
from rookery.algos.masks import allowed, masked
from rookery.algos.policies import Judged, policy_for
from rookery.config.algorithms import ActorCriticConfig, RolloutConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import Ask
from rookery.nets.build import Perceptron, build
from rookery.nets.critic import share
from rookery.types import ADVANTAGE, AHEAD, RETURN, Batch, EnvSpec, Extra, Floats, Obs

LOG_PROB = "log_prob"  # of the action, by the policy that took it
FIRST_SCALE = 0.01  # of the policy's last layer: it begins undecided (Andrychowicz et al. 2021)
TINY = 1e-8


class ActorCritic(Algorithm):
    """Acts by the probabilities of a policy network beside a value network, or one for both."""

    extras: tuple[Extra, ...] = (Extra(LOG_PROB),)
    together = True

    def __init__(self, config: ActorCriticConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        self.config, self.spec = config, spec
        self.policy = policy_for(spec.action)
        widths = (self.policy.width + 1,) if config.shared_net else (self.policy.width, 1)
        self.nets = nn.ModuleList(
            build(net, spec, width, normalize=env.normalize_obs) for width in widths
        )
        if not config.shared_net:
            share(self.nets[0], self.nets[1])
        _undecided(self.nets[0], self.policy.width)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "nets": self.nets})
        self.networks = nn.ModuleDict({"acting": self.acting})
        self._asks = [Ask(module) for module in self.nets]

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.acting.parameters())}

    def judge(self, obs: Any, action: Tensor) -> tuple[Judged, Tensor]:
        """Returns what the policy thinks of actions, and the values [B] of the states."""
        out, value = self.outputs(obs)
        return self.policy.judge(out, action), value

    def outputs(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Returns the policy's outputs [B, width], masked, and the values [B]."""
        out, mask = self.nets[0](obs), allowed(obs, self.spec)
        if self.config.shared_net:
            return masked(out[:, :-1], mask), out[:, -1]
        return masked(out, mask), self.nets[1](obs).squeeze(1)

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
        """Draws [E, *action] actions; without noise the likeliest. `best` is the state's value."""
        out = self._asks[0](obs)
        value = out[:, -1] if self.config.shared_net else None
        mask = allowed(obs, self.spec)
        out = masked(out[:, : self.policy.width], mask)
        action = self.policy.draw(out, rng) if noise else self.policy.best(out)
        action = self.policy.disturb(action, epsilon, rng, mask)
        extras = {LOG_PROB: self.policy.log_prob(out, action)} if noise else NOTHING
        if not values:
            return Acted(action, extras=extras)
        value = self._asks[1](obs)[:, 0] if value is None else value
        return Acted(action, value, value, extras)

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out = self.nets[0](obs)[:, : self.policy.width]
        return masked(out, allowed(obs, self.spec)), None


class OnPolicy(ActorCritic):
    """Learns from rollouts, whose rows have advantages and returns."""

    config: RolloutConfig
    extras = (Extra(LOG_PROB), Extra(AHEAD))

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        judged, value = self.judge(batch.obs, batch.action)
        advantage = batch.extras[ADVANTAGE]
        if self.config.normalize_advantage and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + TINY)
        policy_loss, metrics = self.surrogate(judged.log_prob, batch.extras[LOG_PROB], advantage)
        value_loss = F.mse_loss(value, batch.extras[RETURN])
        yield together(self.config, policy_loss, value_loss, judged.entropy.mean(), metrics)

    def surrogate(
        self, log_prob: Tensor, played: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns what makes actions with an advantage likelier, and what was learned on the way.

        `played` are the log-probabilities [B] by the policy that took the actions.
        """
        raise NotImplementedError


def together(
    config: ActorCriticConfig,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
    metrics: Mapping[str, Tensor],
) -> Loss:
    """Adds up what is to be lowered, and the entropy that is not; metrics have SB3's names."""
    loss = policy + config.value_weight * value - config.entropy_bonus * entropy
    parts = {"policy_gradient_loss": policy, "value_loss": value, "entropy_loss": -entropy}
    said = {name: part.detach() for name, part in parts.items()}
    return Loss("net", loss, None, {**said, **metrics})


@torch.no_grad()
def _undecided(net: nn.Module, width: int) -> None:
    """Makes all actions nearly equally likely at first, where we know the last layer."""
    if isinstance(net, Perceptron):
        net.out.weight[:width] *= FIRST_SCALE
        net.out.bias[:width] *= FIRST_SCALE
