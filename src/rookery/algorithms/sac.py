"""Soft actor-critic (SAC): maximises return plus entropy; Q is the minimum of several critics.

Haarnoja et al. 2018 (with the learned temperature); Christodoulou 2019 (discrete actions).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algorithms.algorithm import Acted, Algorithm, Loss
from rookery.algorithms.continuous import Continuous
from rookery.algorithms.exploration import explore_discrete, normal, sample_categorical
from rookery.algorithms.masking import allowed, masked
from rookery.config.algorithms import SacConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.forward import FastForward, tensors
from rookery.networks.mlp import build
from rookery.networks.target_network import TargetNetwork, share_normalizers
from rookery.types import EnvSpec, Floats, Obs, TensorBatch

LEAST, MOST = -20.0, 2.0  # bounds of the policy's log standard deviations
ENTROPY_SHARE = 0.5  # the discrete policy's entropy target, as a share of the maximal entropy


def sac(config: SacConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec) -> Algorithm:
    """Builds SAC for discrete or continuous actions, depending on the environment."""
    return (DiscreteSac if spec.action.discrete else Sac)(config, net, env, spec)


class Temperature(nn.Module):
    """The entropy temperature (alpha) of SAC.

    It is fixed, or learned so that the policy's entropy reaches a target entropy.
    """

    log: Tensor

    def __init__(self, config: SacConfig, usual_target: float):
        """`usual_target` is the target entropy if `algo.target_entropy` is not set."""
        super().__init__()
        self.target = usual_target if config.target_entropy is None else config.target_entropy
        self.learned = config.temperature is None
        first = config.initial_temperature if self.learned else config.temperature
        log = torch.tensor(math.log(first) if first else -math.inf)
        if self.learned:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)

    def forward(self) -> Tensor:
        return self.log.detach().exp()

    def losses(self, entropy: Tensor) -> Iterator[Loss]:
        """Yields the temperature's loss if the temperature is learned; nothing if it is fixed."""
        if self.learned:
            value = self.log * (entropy.detach() - self.target).mean()
            yield Loss("temperature", value, None, {"temperature": self()})

    def group(self) -> dict[str, list[nn.Parameter]]:
        return {"temperature": list(self.parameters())} if self.learned else {}


class Sac(Continuous):
    """SAC for continuous actions: a tanh-squashed Gaussian policy."""

    capturable = True

    def __init__(
        self,
        config: SacConfig,
        net: NetConfig,
        env: EnvConfig,
        spec: EnvSpec,
        *,
        outputs: int = 1,  # of each critic
    ):
        super().__init__(config, net, env, spec, each=2, critics=config.critics, outputs=outputs)
        self.config = config
        self.target = TargetNetwork(self.critic)
        self.temperature = Temperature(config, usual_target=-float(self.width))
        self.networks = nn.ModuleDict(
            {"acting": self.acting, "target": self.target.network, "temperature": self.temperature}
        )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return super().groups() | self.temperature.group()

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self.critic_loss(batch, self._bellman_target(batch, alpha, rng), scale=0.5)
        action, log_prob = self.sample(batch.obs, rng)  # [B, A], [B]
        loss = (alpha * log_prob - self.q_value(batch.obs, action)).mean()
        entropy = -log_prob.detach()
        yield Loss("actor", loss, None, {"entropy": entropy.mean()})
        yield from self.temperature.losses(entropy)

    @torch.no_grad()
    def _bellman_target(self, batch: TensorBatch, alpha: Tensor, rng: torch.Generator) -> Tensor:
        """Returns the soft Bellman targets of the critics, [B, 1] for a batch of B transitions."""
        action, log_prob = self.sample(batch.next_obs, rng)
        next_q = self.bootstrap_q(self.target.network(batch.next_obs, action))
        soft = next_q - (alpha * log_prob)[:, None]
        target: Tensor = batch.reward[:, None] + batch.discount[:, None] * soft
        return target

    def bootstrap_q(self, q: Tensor) -> Tensor:
        """Returns the Q values for the Bellman target: the minimum over the target critics.

        `q` are the outputs [C, B, 1] of C critics for a batch of B; the result is [B, 1].
        """
        return q.amin(0)

    def sample(self, obs: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Samples actions from the policy for a batch of B observations, with gradients.

        Returns the actions [B, A], with A components, and their log-probabilities [B].
        """
        mean, log_std = self._gaussian(self.policy(obs))
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        raw = mean + log_std.exp() * noise
        squashed = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))  # log(1 - tanh(raw)^2)
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
        return torch.tanh(raw), (density - squashed).sum(1)

    @staticmethod
    def _gaussian(out: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = out.chunk(2, 1)
        return mean, log_std.clamp(LEAST, MOST)

    def update_targets(self, step: int) -> None:
        self.target.update(step, tau=self.config.target_tau)

    def select_action(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        mean, log_std = np.split(out, 2, axis=1)
        if not noise:
            return np.tanh(mean)
        raw = mean + np.exp(log_std.clip(LEAST, MOST)) * normal(mean.shape, rng)
        return np.tanh(raw)  # type: ignore[no-any-return]


class DiscreteSac(Algorithm):
    """SAC for discrete actions: exact expectations over all actions instead of samples."""

    batches_actors = True
    capturable = True

    def __init__(self, config: SacConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        self.config, self.spec = config, spec
        choices, normalize = spec.action.n, env.normalize_obs
        self.policy = build(net, spec, choices, normalize=normalize)
        self.critic = nn.ModuleList(
            build(net, spec, choices, normalize=normalize) for _ in range(config.critics)
        )
        for critic in self.critic:
            share_normalizers(self.policy, critic)
        self.target = TargetNetwork(self.critic)
        self.temperature = Temperature(config, usual_target=ENTROPY_SHARE * math.log(choices))
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self.networks = nn.ModuleDict(
            {"acting": self.acting, "target": self.target.network, "temperature": self.temperature}
        )
        self._forward = FastForward(self.policy)

    update_targets = Sac.update_targets

    def groups(self) -> dict[str, list[nn.Parameter]]:
        own = {"critic": list(self.critic.parameters()), "actor": list(self.policy.parameters())}
        return own | self.temperature.group()

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self._critic_loss(batch, self._bellman_target(batch, alpha))
        log_prob = self._log_prob(batch.obs)  # [B, A]
        prob = log_prob.exp()
        with torch.no_grad():
            q = min_q(self.critic, batch.obs)  # [B, A]
        loss = (prob * (alpha * log_prob - q)).sum(1).mean()
        entropy = -(prob * log_prob).sum(1)
        yield Loss("actor", loss, None, {"entropy": entropy.detach().mean()})
        yield from self.temperature.losses(self._comparable_entropy(entropy, batch.obs))

    def _log_prob(self, obs: Any) -> Tensor:
        """Returns the log-probability of each action, [B, A] for a batch; action masks apply."""
        return F.log_softmax(masked(self.policy(obs), allowed(obs, self.spec)), 1)

    def _comparable_entropy(self, entropy: Tensor, obs: Any) -> Tensor:
        """Returns policy entropies, corrected for action masks, to compare with the target entropy.

        The default target entropy is 0.5 x log(number of actions). If a mask allows fewer actions,
        the highest possible entropy is lower, so 0.5 x log(all actions / allowed actions) is added
        to the entropy. Nothing is added if the user has set the target entropy.
        """
        mask = allowed(obs, self.spec)
        if mask is None or self.config.target_entropy is not None:
            return entropy
        difference: Tensor = math.log(self.spec.action.n) - mask.sum(1).log()
        return entropy + ENTROPY_SHARE * difference

    @torch.no_grad()
    def _bellman_target(self, batch: TensorBatch, alpha: Tensor) -> Tensor:
        log_prob = self._log_prob(batch.next_obs)
        next_q = min_q(self.target.network, batch.next_obs) - alpha * log_prob
        target: Tensor = batch.reward + batch.discount * (log_prob.exp() * next_q).sum(1)
        return target

    def _critic_loss(self, batch: TensorBatch, target: Tensor) -> Loss:
        action = batch.action[:, None]
        q = torch.cat([critic(batch.obs).gather(1, action) for critic in self.critic], 1)  # [B, C]
        td_error = target[:, None] - q
        loss = 0.5 * (td_error.square().sum(1) @ batch.weight) / len(target)
        return Loss("critic", loss, td_error.detach().mean(1), {"q_mean": q.detach().mean()})

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
        mask = allowed(obs, self.spec)
        logits = masked(self._forward(obs), mask)
        action = sample_categorical(logits, rng) if noise else logits.argmax(1)
        action = explore_discrete(action, self.spec.action.n, epsilon, rng, mask)
        if not values:
            return Acted(action)
        with torch.inference_mode():
            device = next(self.critic.parameters()).device
            q = min_q(self.critic, tensors(obs, device)).cpu().numpy()
        q = masked(q, mask)
        return Acted(action, q[np.arange(len(q)), action], q.max(1))

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return masked(self.policy(obs), allowed(obs, self.spec)), None


def min_q(critics: Any, obs: Any) -> Tensor:
    """Returns the Q value of each action, [B, A] for a batch: the minimum over several critics."""
    return torch.stack([critic(obs) for critic in critics]).amin(0)
