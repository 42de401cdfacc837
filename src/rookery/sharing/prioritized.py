"""Prioritized replay for Stable-Baselines3, in a pool or alone; needs the extra `sb3`.

    model = PrioritizedSAC("MlpPolicy", env, replay_buffer_kwargs={"registry": registry, ...})

SB3's own `train()` neither weighs a loss nor tells a buffer its TD errors, so that a prioritized
buffer in a stock algorithm is but a biased one. These three do both; the rest is SB3's arithmetic:
with weights of 1 they learn what the stock classes learn. Only critics are weighted (Schaul et al.
2016); the actor's loss has no TD error. DDPG is SB3's TD3 with other settings, and so is ours:
`PrioritizedTD3(..., policy_delay=1, target_policy_noise=0.0, policy_kwargs={"n_critics": 1})`.
"""

import warnings
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.dqn.dqn import DQN
from stable_baselines3.sac.sac import SAC
from stable_baselines3.td3.td3 import TD3
from torch import Tensor
from torch.nn import functional

from rookery.errors import ConfigError
from rookery.replay.ring import Ring
from rookery.replay.sampler import Prioritized
from rookery.sharing.sb3 import DistributedReplayBuffer
from rookery.types import Array, Rows

NOBODYS = -1  # the row of a loan: it is never reranked
PATIENCE = 100  # batches without a TD error, before whoever draws them is told what is missing


class PrioritizedSamples(NamedTuple):
    """SB3's samples, and what a weighted loss needs besides."""

    observations: Any  # tensor, or a dict of them
    actions: Tensor
    next_observations: Any
    dones: Tensor
    rewards: Tensor
    discounts: Any  # [B, 1], or None: the algorithm's gamma
    weights: Tensor  # [B, 1], the largest of own rows is 1
    rows: Rows  # [B] for `update_priorities`


class Extent:
    """Which row numbers there are; what a sampler of slots must know of a ring."""

    def __init__(self, capacity: int):
        self.capacity, self.committed = capacity, 0

    @property
    def oldest(self) -> int:
        return max(0, self.committed - self.capacity)


class PrioritizedDistributedReplayBuffer(DistributedReplayBuffer):
    """Draws own rows by their TD errors, to the power of alpha, and weighs them accordingly.

    beta rises to 1 within `beta_steps` batches. Rows of the pool are drawn uniformly within their
    strategy, never reranked, and get the mean weight of the batch's own rows. Own rows are drawn
    with a generator of the buffer, seeded as borrowing is.

        samples = buffer.sample(256)
        buffer.update_priorities(samples.rows, td_error)      # [B], loans among them are skipped
    """

    _needs_td_errors = ()

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_steps: int = 200_000,
        **kwargs: Any,
    ):
        if not (0 <= alpha <= 1 and 0 <= beta <= 1 and beta_steps >= 1):
            raise ConfigError(
                f"alpha={alpha}, beta={beta}, beta_steps={beta_steps}; both exponents are in "
                "[0, 1], and beta reaches 1 after at least one batch"
            )
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.beta_steps = alpha, beta, beta_steps
        self._rng = np.random.default_rng([self._seed, 1])
        self._batches = self._answers = 0
        self._rank()

    def _refuse_odd_requests(self, optimize_memory_usage: bool) -> None:
        super()._refuse_odd_requests(optimize_memory_usage)
        if optimize_memory_usage:
            raise ConfigError(
                "optimize_memory_usage=True makes one row undrawable that priorities would draw; "
                "leave it out"
            )

    def _rank(self) -> None:
        self._extent = Extent(self.capacity)
        ring = cast(Ring, self._extent)  # of which a sampler reads no more
        self._ranks = Prioritized(ring, cast(Any, None), self.alpha)

    def add(self, *step: Any) -> None:
        """Stores one step of every environment, as likely to be drawn as the likeliest so far."""
        super().add(*step)
        self._extent.committed = self._written
        self._ranks.admit(np.arange(self._written - self.n_envs, self._written))

    def reset(self) -> None:
        """Forgets every row and its priority."""
        super().reset()
        self._rank()

    @property
    def beta_now(self) -> float:
        return min(1.0, self.beta + (1.0 - self.beta) * self._batches / self.beta_steps)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draws `PrioritizedSamples`: the share of the pool first, own rows behind it."""
        loan = self._borrow(batch_size, env) or self._blank(batch_size)
        first = loan.filled
        rows = np.full(batch_size, NOBODYS)
        weight = np.ones((batch_size, 1), dtype=np.float32)
        if first < batch_size:
            drawn = self._ranks.draw(batch_size - first, self.beta_now, self._rng)
            rows[first:], weight[first:, 0] = drawn
            weight[:first] = drawn.weight.mean()
        samples: tuple[Any, ...] = self._samples(loan, rows[first:] % self.capacity, env)
        self._batches += 1
        self._mention_silence()
        return PrioritizedSamples._make((*samples, self._tensor(weight), rows))

    def update_priorities(self, rows: Rows, td_error: Array) -> None:
        """Ranks own rows by [B] TD errors; loans, and rows that are gone, are skipped."""
        self._answers += 1
        own = rows != NOBODYS
        if not own.all():
            rows, td_error = rows[own], td_error[own]
        self._ranks.rerank(rows, td_error)
        if self._borrower is not None:
            self._borrower.observe(td_error)

    def _mention_silence(self) -> None:
        if self._batches == PATIENCE and not self._answers:
            warnings.warn(
                f"{PATIENCE} batches were drawn by priority, and nobody called update_priorities: "
                "SB3's own algorithms do not; use PrioritizedDQN, PrioritizedSAC or PrioritizedTD3",
                stacklevel=3,
            )


class _Weighted(OffPolicyAlgorithm):
    """What the three have in common."""

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            self.replay_buffer_class = PrioritizedDistributedReplayBuffer
            returns = {"n_steps": self.n_steps, "gamma": self.gamma}
            self.replay_buffer_kwargs = {**returns, **self.replay_buffer_kwargs}
            self.n_steps = 1  # the buffer's matter now; SB3 would warn that it ignores it
        super()._setup_model()
        _ = self._priorities

    @property
    def _priorities(self) -> PrioritizedDistributedReplayBuffer:
        if not isinstance(self.replay_buffer, PrioritizedDistributedReplayBuffer):
            raise ConfigError(
                f"{type(self).__name__} has a {type(self.replay_buffer).__name__}; it learns from "
                "a PrioritizedDistributedReplayBuffer, or a subclass: name no other class, nor "
                "load another buffer"
            )
        return self.replay_buffer

    def _batch(self, batch_size: int) -> PrioritizedSamples:
        batch: PrioritizedSamples = self._priorities.sample(batch_size, self._vec_normalize_env)
        return batch if batch.discounts is not None else batch._replace(discounts=self.gamma)

    def _rerank(self, batch: PrioritizedSamples, target: Tensor, *estimates: Tensor) -> None:
        with torch.no_grad():
            error = sum((q - target).abs() for q in estimates) / len(estimates)
        td_error = cast(Tensor, error).flatten().cpu().numpy()  # waits for the device
        self._priorities.update_priorities(batch.rows, td_error)

    def _note(self, **means: list[float]) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in means.items():
            if values:
                self.logger.record(f"train/{name}", np.mean(values))


class PrioritizedDQN(_Weighted, DQN):
    """SB3's DQN with prioritized replay."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Makes gradient steps on weighted batches, and reranks their rows."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = [self._learn(self._batch(batch_size)) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self._note(loss=losses)

    def _learn(self, batch: PrioritizedSamples) -> float:
        with torch.no_grad():
            best = self.q_net_target(batch.next_observations).max(dim=1).values.reshape(-1, 1)
            target = _target(batch, best)
        q = self.q_net(batch.observations).gather(1, batch.actions.long())
        loss = _mean(batch, functional.smooth_l1_loss(q, target, reduction="none"))
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._rerank(batch, target, q)
        return loss.item()


class PrioritizedTD3(_Weighted, TD3):
    """SB3's TD3, and with its settings DDPG, with prioritized replay."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Makes gradient steps on weighted batches, and reranks their rows."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        critic_losses: list[float] = []
        actor_losses: list[float] = []
        for _ in range(gradient_steps):
            self._n_updates += 1
            batch = self._batch(batch_size)
            critic_losses.append(self._learn_critic(batch))
            if self._n_updates % self.policy_delay == 0:
                actor_losses.append(self._learn_actor(batch))
                self._follow()
        self._note(actor_loss=actor_losses, critic_loss=critic_losses)

    def _learn_critic(self, batch: PrioritizedSamples) -> float:
        with torch.no_grad():
            noise = torch.empty_like(batch.actions).normal_(0, self.target_policy_noise)
            noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
            action = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
            target = _target(batch, _lowest(self.critic_target(batch.next_observations, action)))
        estimates = self.critic(batch.observations, batch.actions)
        loss = _squared(batch, target, estimates)
        _step(self.critic.optimizer, loss)
        self._rerank(batch, target, *estimates)
        return loss.item()

    def _learn_actor(self, batch: PrioritizedSamples) -> float:
        action = self.actor(batch.observations)
        loss = -self.critic.q1_forward(batch.observations, action).mean()
        _step(self.actor.optimizer, loss)
        return loss.item()

    def _follow(self) -> None:
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)


class PrioritizedSAC(_Weighted, SAC):
    """SB3's SAC with prioritized replay."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Makes gradient steps on weighted batches, and reranks their rows."""
        self.policy.set_training_mode(True)
        learned = self.ent_coef_optimizer
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        self._update_learning_rate(optimizers + ([learned] if learned is not None else []))
        losses: dict[str, list[float]] = {
            "ent_coef": [],
            "actor_loss": [],
            "critic_loss": [],
            "ent_coef_loss": [],
        }
        for step in range(gradient_steps):
            for name, value in self._learn(self._batch(batch_size)).items():
                losses[name].append(value)
            if step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._n_updates += gradient_steps
        self._note(**losses)

    def _learn(self, batch: PrioritizedSamples) -> dict[str, float]:
        """Temperature, critic, actor, in this order; the action is that of before all three."""
        if self.use_sde:
            self.actor.reset_noise()
        action, log_prob = self.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)
        temperature, losses = self._learn_temperature(log_prob)
        losses["critic_loss"] = self._learn_critic(batch, temperature)
        q = _lowest(self.critic(batch.observations, action))
        loss = (temperature * log_prob - q).mean()
        _step(self.actor.optimizer, loss)
        return {**losses, "actor_loss": loss.item(), "ent_coef": temperature.item()}

    def _learn_temperature(self, log_prob: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Returns the temperature of before the step."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {}
        temperature = self.log_ent_coef.detach().exp()
        loss = -(self.log_ent_coef * (log_prob + cast(float, self.target_entropy)).detach()).mean()
        _step(self.ent_coef_optimizer, loss)
        return temperature, {"ent_coef_loss": loss.item()}

    def _learn_critic(self, batch: PrioritizedSamples, temperature: Tensor) -> float:
        with torch.no_grad():
            action, log_prob = self.actor.action_log_prob(batch.next_observations)
            best = _lowest(self.critic_target(batch.next_observations, action))
            target = _target(batch, best - temperature * log_prob.reshape(-1, 1))
        estimates = self.critic(batch.observations, batch.actions)
        loss = 0.5 * _squared(batch, target, estimates)
        _step(self.critic.optimizer, loss)
        self._rerank(batch, target, *estimates)
        return loss.item()


def _target(batch: PrioritizedSamples, next_value: Tensor) -> Tensor:
    target: Tensor = batch.rewards + (1 - batch.dones) * batch.discounts * next_value
    return target


def _lowest(estimates: tuple[Tensor, ...]) -> Tensor:
    """Returns the least of the critics' values, [B, 1]."""
    return torch.cat(estimates, dim=1).min(dim=1, keepdim=True).values


def _mean(batch: PrioritizedSamples, losses: Tensor) -> Tensor:
    return (batch.weights * losses).mean()


def _squared(batch: PrioritizedSamples, target: Tensor, estimates: tuple[Tensor, ...]) -> Tensor:
    """Returns the critics' weighted squared errors, added up."""
    return torch.stack([_mean(batch, (q - target).square()) for q in estimates]).sum()


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
