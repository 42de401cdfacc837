"""Prioritized experience replay for Stable-Baselines3 (SB3); needs the extra `sb3`.

    model = PrioritizedSAC("MlpPolicy", env, replay_buffer_kwargs={"registry": registry, ...})

The buffer may be shared with other runs (`shared_buffer.py`). SB3's own `train()` neither weights
losses nor reports TD errors to the buffer, so a prioritized buffer would bias its algorithms. The
three algorithms here do both; with weights of 1 they compute exactly the updates of SB3's classes.
Only the critics' losses are weighted (Schaul et al. 2016). DDPG is TD3 with other settings, as in
SB3:

    PrioritizedTD3(
        ..., policy_delay=1, target_policy_noise=0.0, policy_kwargs={"n_critics": 1}
    )
"""

import warnings
from abc import abstractmethod
from collections import defaultdict
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
from torch.optim import Optimizer

from rookery.errors import ConfigError
from rookery.replay.ring import Ring
from rookery.replay.sampler import Prioritized
from rookery.sb3.shared_buffer import DistributedReplayBuffer
from rookery.sharing.argument_types import is_number
from rookery.sharing.mixed_batches import BORROWED
from rookery.types import Array, Rows

PATIENCE = 100  # batches without updated priorities before a warning


class PrioritizedSamples(NamedTuple):
    """A batch like SB3's `ReplayBufferSamples`, with importance weights and row numbers.

    A row is one stored transition; `update_priorities` takes the row numbers.
    """

    observations: Any  # tensor, or a dict of them
    actions: Tensor
    next_observations: Any
    dones: Tensor
    rewards: Tensor
    discounts: Any  # [B, 1]; None for the algorithm's gamma
    weights: Tensor  # [B, 1]; the largest of own rows is 1
    rows: Rows  # [B] for `update_priorities`


class SlotRange:
    """Range of the transition numbers that a replay buffer holds, read by the prioritized sampler.

    Transitions are numbered from 0 as they are added, and the buffer holds the last `capacity`:
    `oldest` is the first transition that is not overwritten yet, `committed` the next one to be
    added. `Ring`, the ring buffer of Rookery's own runs, has the same attributes.
    """

    def __init__(self, capacity: int):
        self.capacity, self.committed = capacity, 0

    @property
    def oldest(self) -> int:
        return max(0, self.committed - self.capacity)


class PrioritizedDistributedReplayBuffer(DistributedReplayBuffer):
    """SB3's replay buffer with prioritized sampling; other runs may sample from it too.

    A row is one stored transition. The probability of a row of this run is proportional to its TD
    error to the power of alpha; beta rises to 1 within `beta_steps` batches. Samples from other
    runs' replay buffers have no priorities: they are drawn by the setting `sample_strategy`, and
    get the mean importance weight of the other samples in the batch. Rows of this run are sampled
    with a random generator of the buffer.

        samples = buffer.sample(256)
        buffer.update_priorities(samples.rows, td_error)      # skips other runs' rows
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_steps: int = 200_000,
        **kwargs: Any,
    ):
        shares_are_valid = all(is_number(share) and 0 <= share <= 1 for share in (alpha, beta))
        if not (shares_are_valid and is_number(beta_steps) and beta_steps >= 1):
            raise ConfigError(
                f"alpha={alpha!r}, beta={beta!r}, beta_steps={beta_steps!r}; give alpha and beta "
                "in [0, 1], and beta_steps of at least 1"
            )
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.beta_steps = alpha, beta, beta_steps
        self._rng = np.random.default_rng([self._seed, 1])
        self._batches = self._answers = 0
        self._reset_priorities()

    def _check_arguments(self, optimize_memory_usage: bool) -> None:
        super()._check_arguments(optimize_memory_usage)
        if optimize_memory_usage:
            raise ConfigError(
                "optimize_memory_usage=True excludes a row that priorities would sample; leave it "
                "out"
            )

    def _reset_priorities(self) -> None:
        self._extent = SlotRange(self.capacity)
        ring = cast(Ring, self._extent)  # the sampler reads only these attributes
        self._ranks = Prioritized(ring, cast(Any, None), self.alpha)

    def add(self, *step: Any) -> None:
        """Stores one transition of every environment, with the largest priority so far."""
        super().add(*step)
        self._extent.committed = self._written
        self._ranks.admit(np.arange(self._written - self.n_envs, self._written))

    def reset(self) -> None:
        """Removes all transitions and their priorities."""
        super().reset()
        self._reset_priorities()

    @property
    def beta_now(self) -> float:
        return min(1.0, self.beta + (1.0 - self.beta) * self._batches / self.beta_steps)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Samples a batch: transitions of other runs first, then those of this run by priority."""
        borrowed = self._borrow(batch_size, env) or self._blank(batch_size)
        first = borrowed.filled
        rows = np.full(batch_size, BORROWED)
        weight = np.ones((batch_size, 1), dtype=np.float32)
        if first < batch_size:
            drawn = self._ranks.sample(batch_size - first, self.beta_now, self._rng)
            rows[first:], weight[first:, 0] = drawn
            weight[:first] = drawn.weight.mean()
        samples: tuple[Any, ...] = self._samples(borrowed, rows[first:] % self.capacity, env)
        self._batches += 1
        self._warn_of_missing_updates()
        return PrioritizedSamples._make((*samples, self._tensor(weight), rows))

    def update_priorities(self, rows: Rows, td_error: Array) -> None:
        """Updates the priorities of a sampled batch's rows (transitions) from their TD errors.

        Rows of other runs, and rows that were overwritten meanwhile, are skipped.
        """
        self._answers += 1
        own = rows != BORROWED
        if not own.all():
            rows, td_error = rows[own], td_error[own]
        self._ranks.update_priorities(rows, td_error)

    def _warn_of_missing_updates(self) -> None:
        if self._batches == PATIENCE and not self._answers:
            warnings.warn(
                f"{PATIENCE} batches were sampled by priority without a call of update_priorities, "
                "which SB3's own algorithms do not make; use PrioritizedDQN, PrioritizedSAC or "
                "PrioritizedTD3",
                stacklevel=3,
            )


class _Weighted(OffPolicyAlgorithm):
    """Base class of prioritized DQN, TD3 and SAC: samples weighted batches, updates priorities."""

    @abstractmethod
    def _optimizers(self) -> list[Optimizer]: ...

    @abstractmethod
    def _learn(self, batch: PrioritizedSamples, step: int) -> dict[str, float]:
        """Takes gradient step number `step` of a call of `train`; returns the values to log."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Takes gradient steps on importance-weighted batches, and updates their priorities."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers())
        logged: defaultdict[str, list[float]] = defaultdict(list)
        for step in range(gradient_steps):
            for name, value in self._learn(self._batch(batch_size), step).items():
                logged[name].append(value)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in logged.items():
            self.logger.record(f"train/{name}", np.mean(values))

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            self.replay_buffer_class = PrioritizedDistributedReplayBuffer
            returns = {"n_steps": self.n_steps, "gamma": self.gamma}
            self.replay_buffer_kwargs = {**returns, **self.replay_buffer_kwargs}
            self.n_steps = 1  # the buffer computes n-step returns; SB3 would warn otherwise
        super()._setup_model()
        _ = self._priorities

    @property
    def _priorities(self) -> PrioritizedDistributedReplayBuffer:
        if not isinstance(self.replay_buffer, PrioritizedDistributedReplayBuffer):
            raise ConfigError(
                f"{type(self).__name__} has a {type(self.replay_buffer).__name__}; give it a "
                "PrioritizedDistributedReplayBuffer or a subclass"
            )
        return self.replay_buffer

    def _batch(self, batch_size: int) -> PrioritizedSamples:
        batch: PrioritizedSamples = self._priorities.sample(batch_size, self._vec_normalize_env)
        return batch if batch.discounts is not None else batch._replace(discounts=self.gamma)

    def _update_priorities(
        self, batch: PrioritizedSamples, target: Tensor, *estimates: Tensor
    ) -> None:
        with torch.no_grad():
            error = sum((q - target).abs() for q in estimates) / len(estimates)
        td_error = cast(Tensor, error).flatten().cpu().numpy()  # waits for the device
        self._priorities.update_priorities(batch.rows, td_error)


class PrioritizedDQN(_Weighted, DQN):
    """SB3's DQN with prioritized replay."""

    def _optimizers(self) -> list[Optimizer]:
        return [self.policy.optimizer]

    def _learn(self, batch: PrioritizedSamples, step: int) -> dict[str, float]:
        with torch.no_grad():
            best = self.q_net_target(batch.next_observations).max(dim=1).values.reshape(-1, 1)
            target = _target(batch, best)
        q = self.q_net(batch.observations).gather(1, batch.actions.long())
        loss = _mean(batch, functional.smooth_l1_loss(q, target, reduction="none"))
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._update_priorities(batch, target, q)
        return {"loss": loss.item()}


class PrioritizedTD3(_Weighted, TD3):
    """SB3's TD3 with prioritized replay; with DDPG's settings it is DDPG."""

    def _optimizers(self) -> list[Optimizer]:
        return [self.actor.optimizer, self.critic.optimizer]

    def _learn(self, batch: PrioritizedSamples, step: int) -> dict[str, float]:
        losses = {"critic_loss": self._learn_critic(batch)}
        if (self._n_updates + step + 1) % self.policy_delay == 0:
            losses["actor_loss"] = self._learn_actor(batch)
            self._update_targets()
        return losses

    def _learn_critic(self, batch: PrioritizedSamples) -> float:
        with torch.no_grad():
            noise = torch.empty_like(batch.actions).normal_(0, self.target_policy_noise)
            noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
            action = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
            target = _target(batch, _lowest(self.critic_target(batch.next_observations, action)))
        estimates = self.critic(batch.observations, batch.actions)
        loss = _squared(batch, target, estimates)
        _step(self.critic.optimizer, loss)
        self._update_priorities(batch, target, *estimates)
        return loss.item()

    def _learn_actor(self, batch: PrioritizedSamples) -> float:
        action = self.actor(batch.observations)
        loss = -self.critic.q1_forward(batch.observations, action).mean()
        _step(self.actor.optimizer, loss)
        return loss.item()

    def _update_targets(self) -> None:
        polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)


class PrioritizedSAC(_Weighted, SAC):
    """SB3's SAC with prioritized replay."""

    def _optimizers(self) -> list[Optimizer]:
        learned = [] if self.ent_coef_optimizer is None else [self.ent_coef_optimizer]
        return [self.actor.optimizer, self.critic.optimizer, *learned]

    def _learn(self, batch: PrioritizedSamples, step: int) -> dict[str, float]:
        """Takes one gradient step on temperature, critic and actor.

        As in SB3, the action for the actor's loss is sampled before all three updates.
        """
        if self.use_sde:
            self.actor.reset_noise()
        action, log_prob = self.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)
        temperature, losses = self._learn_temperature(log_prob)
        losses["critic_loss"] = self._learn_critic(batch, temperature)
        q = _lowest(self.critic(batch.observations, action))
        loss = (temperature * log_prob - q).mean()
        _step(self.actor.optimizer, loss)
        if step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return {**losses, "actor_loss": loss.item(), "ent_coef": temperature.item()}

    def _learn_temperature(self, log_prob: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Takes a gradient step on the entropy temperature, unless it is fixed.

        Returns the temperature before the step, and the loss by name (no loss if it is fixed).
        """
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
        self._update_priorities(batch, target, *estimates)
        return loss.item()


def _target(batch: PrioritizedSamples, next_value: Tensor) -> Tensor:
    target: Tensor = batch.rewards + (1 - batch.dones) * batch.discounts * next_value
    return target


def _lowest(estimates: tuple[Tensor, ...]) -> Tensor:
    """Returns the minimum of the critics' values for each transition, as a column [batch, 1]."""
    return torch.cat(estimates, dim=1).min(dim=1, keepdim=True).values


def _mean(batch: PrioritizedSamples, losses: Tensor) -> Tensor:
    return (batch.weights * losses).mean()


def _squared(batch: PrioritizedSamples, target: Tensor, estimates: tuple[Tensor, ...]) -> Tensor:
    """Returns the weighted mean squared error of each critic, summed over the critics."""
    return torch.stack([_mean(batch, (q - target).square()) for q in estimates]).sum()


def _step(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
