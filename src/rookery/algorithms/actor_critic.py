"""Base classes of actor-critic algorithms with a state value function: A2C, PPO and IMPALA."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algorithms.algorithm import NO_EXTRAS, Acted, Algorithm, Loss
from rookery.algorithms.masking import allowed, masked
from rookery.algorithms.policy_distributions import ActionEvaluation, distribution_for
from rookery.config.algorithms import ActorCriticConfig, RolloutConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.critics import for_critics, share_normalization
from rookery.networks.forward import FastForward
from rookery.networks.mlp import Perceptron, build
from rookery.schedule import Decay, Schedule
from rookery.types import ADVANTAGE, AHEAD, RETURN, EnvSpec, Extra, Floats, Obs, TensorBatch

LOG_PROB = "log_prob"  # extra column: log-probability of the action under the acting policy
FIRST_SCALE = 0.01  # of the policy's last layer: a high initial entropy (Andrychowicz et al. 2021)
TINY = 1e-8


class ActorCritic(Algorithm):
    """Base class of algorithms with a stochastic policy and a state value function.

    Both are in one shared network if `algo.shared_net` is set, else in two networks.
    """

    extras: tuple[Extra, ...] = (Extra(LOG_PROB),)
    batches_actors = True
    compares_policies = True

    def __init__(self, config: ActorCriticConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        self.config, self.spec = config, spec
        self.policy = distribution_for(spec.action)
        parts = [(net, self.policy.width), (for_critics(net), 1)]
        if config.shared_net:
            parts = [(net, self.policy.width + 1)]
        self.nets = nn.ModuleList(
            build(settings, spec, width, normalize=env.normalize_obs) for settings, width in parts
        )
        if not config.shared_net:
            share_normalization(self.nets[0], self.nets[1])
        _shrink_policy_layer(self.nets[0], self.policy.width)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "nets": self.nets})
        self.networks = nn.ModuleDict({"acting": self.acting})
        self._forwards = [FastForward(module) for module in self.nets]

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.acting.parameters())}

    def evaluate_actions(self, obs: Any, action: Tensor) -> tuple[ActionEvaluation, Tensor]:
        """Returns log-probabilities of actions, the policy's entropies, and the state values.

        Each is [B] (batch).
        """
        out, value = self.outputs(obs)
        return self.policy.evaluate(out, action), value

    def outputs(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Returns the policy's distribution parameters [B, width] and the state values [B] (batch).

        Logits of actions that the action mask forbids are set to a very low value.
        """
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
        """Samples an action from the policy for each of E environments, [E, *action].

        Without `noise`, returns the most likely actions. Each action is replaced by a uniformly
        random one with probability `epsilon`.

        With `values`, the fields `taken` and `best` of the result both hold the state value,
        because there is no estimate of action values.
        """
        out = self._forwards[0](obs)
        value = out[:, -1] if self.config.shared_net else None
        mask = allowed(obs, self.spec)
        out = masked(out[:, : self.policy.width], mask)
        action = self.policy.sample(out, rng) if noise else self.policy.mode(out)
        action = self.policy.explore(action, epsilon, rng, mask)
        extras = {LOG_PROB: self.policy.log_prob(out, action)} if noise else NO_EXTRAS
        if not values:
            return Acted(action, extras=extras)
        value = self._forwards[1](obs)[:, 0] if value is None else value
        return Acted(action, value, value, extras)

    def scheduled(self, first: float, last: float | None) -> float:
        """Returns a setting that goes from `first` to `last` with the run; constant if None."""
        return first if last is None else Schedule(first, last, Decay.LINEAR).at(self.progress)

    def combined(
        self, policy: Tensor, value: Tensor, entropy: Tensor, metrics: Mapping[str, Tensor]
    ) -> Loss:
        """Returns policy loss + vf_coef x value loss - ent_coef x entropy, with metrics to log.

        The metrics are named as in Stable-Baselines3.
        """
        ent_coef = self.scheduled(self.config.ent_coef, self.config.ent_coef_end)
        loss = policy + self.config.vf_coef * value - ent_coef * entropy
        parts = {"policy_gradient_loss": policy, "value_loss": value, "entropy_loss": -entropy}
        logged = {name: part.detach() for name, part in parts.items()}
        return Loss("net", loss, None, {**logged, **metrics})

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out = self.nets[0](obs)[:, : self.policy.width]
        return masked(out, allowed(obs, self.spec)), None


class OnPolicy(ActorCritic):
    """Base class of the on-policy algorithms A2C and PPO, which learn from rollouts."""

    config: RolloutConfig
    extras = (Extra(LOG_PROB), Extra(AHEAD))

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        evaluated, value = self.evaluate_actions(batch.obs, batch.action)
        advantage = batch.extras[ADVANTAGE]
        if self.config.normalize_advantage and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + TINY)
        policy_loss, metrics = self.surrogate(evaluated.log_prob, batch.extras[LOG_PROB], advantage)
        value_loss = self.value_loss(value, batch.extras[RETURN], batch.extras[ADVANTAGE])
        yield self.combined(policy_loss, value_loss, evaluated.entropy.mean(), metrics)

    def value_loss(self, value: Tensor, returns: Tensor, advantage: Tensor) -> Tensor:
        """Returns the loss of the state values [B] (batch), a scalar.

        `returns` minus `advantage` are the values [B] before the rollout was learned from.
        """
        return F.mse_loss(value, returns)

    def surrogate(
        self, log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the surrogate loss of the policy (a scalar), and metrics to log.

        All arguments are [B] (batch). `log_prob` are the actions' log-probabilities under the
        present policy, `old_log_prob` those under the policy that took the actions.
        """
        raise NotImplementedError


@torch.no_grad()
def _shrink_policy_layer(net: nn.Module, width: int) -> None:
    """Scales down the policy's last layer: the first policy hardly depends on the observation.

    A custom network is not changed, because its last layer is not known.
    """
    if isinstance(net, Perceptron):
        net.out.weight[:width] *= FIRST_SCALE
        net.out.bias[:width] *= FIRST_SCALE
