"""Soft actor-critic: a policy that is paid for its entropy, judged by the smallest of its critics.

Haarnoja et al. 2018 (with the learned temperature); Christodoulou 2019 (discrete actions).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.chance import drawn, normal, some_other, some_random
from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.config.algorithms import SacConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import Ask, tensors
from rookery.nets.build import build
from rookery.nets.critic import Critic, share
from rookery.nets.follow import Follower, share_statistics
from rookery.types import Batch, EnvSpec, Floats, Obs

LEAST, MOST = -20.0, 2.0  # of a policy's log-deviations
GREEDY_SHARE = 0.5  # of the largest entropy: the discrete policy's target


def sac(config: SacConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec) -> Algorithm:
    """Returns the one of the two that the environment's actions need."""
    return (DiscreteSac if spec.action.discrete else Sac)(config, net, env, spec)


class Temperature(nn.Module):
    """The weight of the entropy: given, or learned so that the entropy reaches a target."""

    log: Tensor

    def __init__(self, config: SacConfig, target: float):
        super().__init__()
        self.target, self.learned = target, config.temperature is None
        first = config.first_temperature if self.learned else config.temperature
        log = torch.tensor(math.log(first) if first else -math.inf)
        if self.learned:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)

    def forward(self) -> Tensor:
        return self.log.detach().exp()

    def losses(self, entropy: Tensor) -> Iterator[Loss]:
        """Lowers it where the policy has more entropy than the target, where it is learned."""
        if self.learned:
            value = self.log * (entropy.detach() - self.target).mean()
            yield Loss("temperature", value, None, {"temperature": self()})

    def group(self) -> dict[str, list[nn.Parameter]]:
        return {"temperature": list(self.parameters())} if self.learned else {}


class Sac(Algorithm):
    """Continuous actions: a Gaussian policy squashed into -1 to 1."""

    outputs = 1  # of a critic

    def __init__(self, config: SacConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require(spec.action.continuous, config.name, "continuous actions", spec, "use dqn or ppo")
        self.config, self.spec = config, spec
        self.width = math.prod(spec.action.shape)
        normalize = env.normalize_obs
        self.policy = build(net, spec, 2 * self.width, normalize=normalize)
        self.critic = Critic(net, spec, self.outputs, normalize, config.critics)
        share(self.policy, self.critic)
        self.target = Follower(self.critic)
        wanted = -float(self.width) if config.entropy_target is None else config.entropy_target
        self.temperature = Temperature(config, wanted)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self.networks = nn.ModuleDict(
            {"acting": self.acting, "target": self.target.network, "temperature": self.temperature}
        )
        self._ask = Ask(self.policy)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        own = {"critic": self.critic.parameters(), "actor": self.policy.parameters()}
        return {name: list(parameters) for name, parameters in own.items()} | (
            self.temperature.group()
        )

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self._critic_loss(batch, self._wanted(batch, alpha, rng))
        action, log_prob = self.sample(batch.obs, rng)  # [B, A], [B]
        entropy = -log_prob
        judged = self._judged(batch.obs, action)  # [B]
        loss = (alpha * log_prob - judged).mean()
        yield Loss("actor", loss, None, {"entropy": entropy.detach().mean()})
        yield from self.temperature.losses(entropy)

    @torch.no_grad()
    def _wanted(self, batch: Batch, alpha: Tensor, rng: torch.Generator) -> Tensor:
        """Returns what a critic should have said, [B, 1]."""
        action, log_prob = self.sample(batch.next_obs, rng)
        next_q = self.target.network(batch.next_obs, action).amin(0).squeeze(1)  # [B]
        wanted: Tensor = batch.reward + batch.discount * (next_q - alpha * log_prob)
        return wanted[:, None]

    def _critic_loss(self, batch: Batch, wanted: Tensor) -> Loss:
        q = self.critic(batch.obs, batch.action)  # [C, B, 1]
        error = wanted - q
        loss = 0.5 * (error.square().sum((0, 2)) @ batch.weight) / len(wanted)
        metrics = {"q_mean": q.detach().mean()}
        return Loss("critic", loss, error.detach().mean((0, 2)), metrics)

    def _judged(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the smallest critic's opinion, [B]."""
        return self.critic(obs, action).amin(0).squeeze(1)  # type: ignore[no-any-return]

    def sample(self, obs: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws actions [B, A] and returns their log-probabilities [B], both with gradients."""
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

    def settle(self, step: int) -> None:
        if step == 0:
            self.target.copy()
        else:
            self.target.follow(self.config.target_tau)

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
        """Chooses [E, *action] actions; without noise those in the middle."""
        mean, log_std = np.split(self._ask(obs), 2, axis=1)
        raw = mean
        if noise:
            raw = mean + np.exp(log_std.clip(LEAST, MOST)) * normal(mean.shape, rng)
        action = some_random(np.tanh(raw), epsilon, rng)
        shaped = action.reshape(-1, *self.spec.action.shape)
        if not values:
            return Acted(shaped)
        return Acted(shaped, self._value(obs, action), self._value(obs, np.tanh(mean)))

    @torch.inference_mode()
    def _value(self, obs: Obs, action: Floats) -> Floats:
        device = next(self.critic.parameters()).device
        judged = self._judged(tensors(obs, device), torch.from_numpy(action).to(device))
        return judged.cpu().numpy()


class DiscreteSac(Algorithm):
    """Discrete actions: expectations over all of them take the place of samples."""

    def __init__(self, config: SacConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        self.config, self.spec = config, spec
        choices, normalize = spec.action.n, env.normalize_obs
        self.policy = build(net, spec, choices, normalize=normalize)
        self.critic = nn.ModuleList(
            build(net, spec, choices, normalize=normalize) for _ in range(config.critics)
        )
        for critic in self.critic:
            share_statistics(self.policy, critic)
        self.target = Follower(self.critic)
        wanted = GREEDY_SHARE * math.log(choices)
        wanted = wanted if config.entropy_target is None else config.entropy_target
        self.temperature = Temperature(config, wanted)
        self.acting: nn.Module = nn.ModuleDict({"policy": self.policy, "critic": self.critic})
        self.networks = nn.ModuleDict(
            {"acting": self.acting, "target": self.target.network, "temperature": self.temperature}
        )
        self._ask = Ask(self.policy)

    groups = Sac.groups
    settle = Sac.settle

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self._critic_loss(batch, self._wanted(batch, alpha))
        log_prob = F.log_softmax(self.policy(batch.obs), 1)  # [B, A]
        prob = log_prob.exp()
        with torch.no_grad():
            judged = smallest(self.critic, batch.obs)  # [B, A]
        loss = (prob * (alpha * log_prob - judged)).sum(1).mean()
        entropy = -(prob * log_prob).sum(1)
        yield Loss("actor", loss, None, {"entropy": entropy.detach().mean()})
        yield from self.temperature.losses(entropy)

    @torch.no_grad()
    def _wanted(self, batch: Batch, alpha: Tensor) -> Tensor:
        log_prob = F.log_softmax(self.policy(batch.next_obs), 1)
        next_q = smallest(self.target.network, batch.next_obs) - alpha * log_prob
        wanted: Tensor = batch.reward + batch.discount * (log_prob.exp() * next_q).sum(1)
        return wanted

    def _critic_loss(self, batch: Batch, wanted: Tensor) -> Loss:
        chosen = batch.action[:, None]
        q = torch.cat([critic(batch.obs).gather(1, chosen) for critic in self.critic], 1)  # [B, C]
        error = wanted[:, None] - q
        loss = 0.5 * (error.square().sum(1) @ batch.weight) / len(wanted)
        return Loss("critic", loss, error.detach().mean(1), {"q_mean": q.detach().mean()})

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
        logits = self._ask(obs)
        action = drawn(logits, rng) if noise else logits.argmax(1)
        action = some_other(action, self.spec.action.n, epsilon, rng)
        if not values:
            return Acted(action)
        with torch.inference_mode():
            device = next(self.critic.parameters()).device
            q = smallest(self.critic, tensors(obs, device)).cpu().numpy()
        return Acted(action, q[np.arange(len(q)), action], q.max(1))


def smallest(critics: Any, obs: Any) -> Tensor:
    """Returns the smallest opinion of several critics of observations, [B, A]."""
    return torch.stack([critic(obs) for critic in critics]).amin(0)
