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

from rookery.algos.chance import drawn, normal, some_other
from rookery.algos.continuous import Continuous
from rookery.algos.interface import Acted, Algorithm, Loss
from rookery.algos.masks import allowed, masked
from rookery.config.algorithms import SacConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import Ask, tensors
from rookery.nets.build import build
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


class Sac(Continuous):
    """Continuous actions: a Gaussian policy squashed into -1 to 1."""

    def __init__(
        self,
        config: SacConfig,
        net: NetConfig,
        env: EnvConfig,
        spec: EnvSpec,
        *,
        outputs: int = 1,  # of a critic
    ):
        super().__init__(config, net, env, spec, each=2, critics=config.critics, outputs=outputs)
        self.config = config
        self.target = Follower(self.critic)
        wanted = -float(self.width) if config.entropy_target is None else config.entropy_target
        self.temperature = Temperature(config, wanted)
        self.networks = nn.ModuleDict(
            {"acting": self.acting, "target": self.target.network, "temperature": self.temperature}
        )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return super().groups() | self.temperature.group()

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self.critic_loss(batch, self._wanted(batch, alpha, rng), scale=0.5)
        action, log_prob = self.sample(batch.obs, rng)  # [B, A], [B]
        loss = (alpha * log_prob - self.judged(batch.obs, action)).mean()
        entropy = -log_prob.detach()
        yield Loss("actor", loss, None, {"entropy": entropy.mean()})
        yield from self.temperature.losses(entropy)

    @torch.no_grad()
    def _wanted(self, batch: Batch, alpha: Tensor, rng: torch.Generator) -> Tensor:
        """Returns what a critic should have said, [B, 1]."""
        action, log_prob = self.sample(batch.next_obs, rng)
        next_q = self.believed(self.target.network(batch.next_obs, action))
        soft = next_q - (alpha * log_prob)[:, None]
        wanted: Tensor = batch.reward[:, None] + batch.discount[:, None] * soft
        return wanted

    def believed(self, q: Tensor) -> Tensor:
        """Returns the part that is bootstrapped from of all that the critics say, [C, B, 1]."""
        return q.amin(0)

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
        self.target.settle(step, tau=self.config.target_tau)

    def chosen(self, out: Floats, rng: np.random.Generator, *, noise: bool) -> Floats:
        mean, log_std = np.split(out, 2, axis=1)
        if not noise:
            return np.tanh(mean)
        raw = mean + np.exp(log_std.clip(LEAST, MOST)) * normal(mean.shape, rng)
        return np.tanh(raw)  # type: ignore[no-any-return]


class DiscreteSac(Algorithm):
    """Discrete actions: expectations over all of them take the place of samples."""

    together = True

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

    settle = Sac.settle

    def groups(self) -> dict[str, list[nn.Parameter]]:
        own = {"critic": self.critic, "actor": self.policy}
        return {
            name: list(net.parameters()) for name, net in own.items()
        } | self.temperature.group()

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        alpha = self.temperature()
        yield self._critic_loss(batch, self._wanted(batch, alpha))
        log_prob = self._log_prob(batch.obs)  # [B, A]
        prob = log_prob.exp()
        with torch.no_grad():
            judged = smallest(self.critic, batch.obs)  # [B, A]
        loss = (prob * (alpha * log_prob - judged)).sum(1).mean()
        entropy = -(prob * log_prob).sum(1)
        yield Loss("actor", loss, None, {"entropy": entropy.detach().mean()})
        yield from self.temperature.losses(self._as_of_all(entropy, batch.obs))

    def _log_prob(self, obs: Any) -> Tensor:
        """Returns the policy's [B, A] log-probabilities."""
        return F.log_softmax(masked(self.policy(obs), allowed(obs, self.spec)), 1)

    def _as_of_all(self, entropy: Tensor, obs: Any) -> Tensor:
        """Returns entropies [B] to be compared with a target for all actions.

        Where a mask allows few there is less to have. What our own target asks less of is added.
        """
        mask = allowed(obs, self.spec)
        if mask is None or self.config.entropy_target is not None:
            return entropy
        room: Tensor = math.log(self.spec.action.n) - mask.sum(1).log()
        return entropy + GREEDY_SHARE * room

    @torch.no_grad()
    def _wanted(self, batch: Batch, alpha: Tensor) -> Tensor:
        log_prob = self._log_prob(batch.next_obs)
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
        mask = allowed(obs, self.spec)
        logits = masked(self._ask(obs), mask)
        action = drawn(logits, rng) if noise else logits.argmax(1)
        action = some_other(action, self.spec.action.n, epsilon, rng, mask)
        if not values:
            return Acted(action)
        with torch.inference_mode():
            device = next(self.critic.parameters()).device
            q = smallest(self.critic, tensors(obs, device)).cpu().numpy()
        q = masked(q, mask)
        return Acted(action, q[np.arange(len(q)), action], q.max(1))

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return masked(self.policy(obs), allowed(obs, self.spec)), None


def smallest(critics: Any, obs: Any) -> Tensor:
    """Returns the smallest opinion of several critics of observations, [B, A]."""
    return torch.stack([critic(obs) for critic in critics]).amin(0)
