"""Deep Q-learning (DQN) and its extensions, which settings switch on and which can be combined.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling); Schaul et al. 2016
(prioritised replay, through `batch.weight` and the returned TD errors); Fortunato et al. 2018
(noisy); Vieillard et al. 2020 (Munchausen); Hessel et al. 2018 (Rainbow: most of them at once).
`return_distributions.py` has the value representations (C51, QR-DQN, IQN).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algorithms.algorithm import Acted, Algorithm, Loss, require_actions
from rookery.algorithms.exploration import BatchedGenerators, explore_discrete, greedy_or_random
from rookery.algorithms.masking import allowed, masked
from rookery.algorithms.return_distributions import VALUES
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.forward import FastForward
from rookery.networks.noisy import remove_noise, resample_noise
from rookery.networks.target_network import TargetNetwork
from rookery.types import MASK, Array, EnvSpec, Floats, Obs, TensorBatch


class QLearning(Algorithm):
    """Base class of algorithms that train one Q-network, with a target network.

    A subclass calls `set_network` in its constructor.
    """

    def set_network(self, online: nn.Module, *, tau: float | None, period: int) -> None:
        """Sets the Q-network, which also acts, and makes its target network.

        `tau` and `period` say how the target network is updated, as in `TargetNetwork.update`.
        """
        self.acting, self.target = online, TargetNetwork(online)
        self._tau, self._period = tau, period
        self.networks = nn.ModuleDict({"online": online, "target": self.target.network})

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.networks["online"].parameters())}

    def update_targets(self, step: int) -> None:
        self.target.update(step, tau=self._tau, period=self._period)

    def phase(self, step: int) -> int:
        return int(self.target.is_copied(step, tau=self._tau, period=self._period))


class QNetwork(nn.Module):
    """Q-network: maps B observations to the values of A actions, optionally with dueling heads.

    Its output is [B, A]. For distributional Q-learning it is [B, A, K]: K numbers describe the
    return distribution of each action.
    """

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__()
        self.dueling, self.rows = config.dueling, spec.action.n + config.dueling
        self.values = VALUES[config.values](config)
        self.body = self.values.body(
            net,
            spec,
            self.rows,
            normalize=env.normalize_obs,
            noisy=config.noisy,
            sigma0=config.noise,
        )

    def forward(self, obs: Any, tau: Tensor | None = None) -> Tensor:
        return self.combine(self.body(obs) if tau is None else self.body(obs, tau))

    def combine(self, out: Tensor) -> Tensor:
        """Converts the outputs of the last layer to the action values that `forward` returns.

        With dueling heads, the outputs are a state value and advantages; the action values are the
        state value plus the advantages minus their mean.
        """
        if self.values.distributional:
            out = out.reshape(out.shape[0], self.rows, -1)  # [B, A or 1 + A, K]
        if not self.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]  # [B, 1, ...], [B, A, ...]
        return value + advantage - advantage.mean(1, keepdim=True)


class Dqn(QLearning):
    """DQN with n-step returns; double, dueling, noisy and distributional DQN are options."""

    capturable = True

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require_actions(spec.action.discrete, "dqn", "Discrete actions", spec, "use sac or ppo")
        self.config, self.spec = config, spec
        self.online = QNetwork(config, net, env, spec)
        self.values = self.online.values
        self.set_network(self.online, tau=config.target_tau, period=config.target_period)
        self.batches_actors = not config.noisy  # one call has one noise for all of its rows
        self._forward = FastForward(self.online.body)
        self._by_advantage = config.dueling and not self.values.distributional

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        if self.config.noisy:
            resample_noise(self.networks, rng)
        tau = self.values.sample_tau(len(batch.action), rng)
        prediction = self.values.select(self.online(batch.obs, tau), batch.action)  # [B] or [B, K]
        with torch.no_grad():
            target = self._bellman_target(batch, rng)
        row_loss, td_error = self.values.loss(prediction, target, tau)
        loss = row_loss @ batch.weight / len(prediction)
        metrics = {"q_mean": self.values.mean(prediction.detach()).mean()}
        yield Loss("q", loss, td_error, metrics)

    def _bellman_target(self, batch: TensorBatch, rng: torch.Generator) -> Tensor:
        """Returns the Bellman targets [B] of a batch of B transitions.

        For distributional Q-learning they are [B, K]: K numbers describe each distribution.
        """
        tau = self.values.sample_tau(len(batch.action), rng)
        next_values = self.target.network(batch.next_obs, tau)  # [B, A] or [B, A, K]
        if self.config.munchausen:
            return self._munchausen_target(batch, next_values, tau)
        next_action = self._next_action(batch, next_values, tau, rng)
        next_value = self.values.select(next_values, next_action)
        return self.values.bellman_backup(next_value, batch.reward, batch.discount)

    def _next_action(
        self, batch: TensorBatch, next_values: Tensor, tau: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        """Returns the greedy next actions for the Bellman target, among allowed actions.

        The online network selects them in double DQN, else the target network.
        """
        if not self.config.double:
            next_q = self._target_mean(batch.next_obs, next_values, tau)
        else:
            if self.config.noisy:  # other noise than that of the prediction
                resample_noise(self.online, rng)
            next_q = self.values.mean(self.online(batch.next_obs))
        return self._allowed_only(next_q, batch.next_obs).argmax(1)

    def _target_mean(self, obs: Any, values: Tensor, tau: Tensor | None) -> Tensor:
        """Returns the target network's expected return of each action, [B, A] for a batch.

        `values` are the network's outputs for `obs`. For IQN they are quantiles at random fractions
        `tau`, so the network is called again with evenly spaced fractions.
        """
        return self.values.mean(values if tau is None else self.target.network(obs))

    def _munchausen_target(
        self, batch: TensorBatch, next_values: Tensor, tau: Tensor | None
    ) -> Tensor:
        """Returns the Bellman targets of Munchausen DQN (eq. 1 of Vieillard et al. 2020).

        In an n-step return only the first step gets the log-policy bonus, because a batch does not
        hold the observations of the other steps.
        """
        config = self.config
        q = self.values.mean(self.target.network(batch.obs))
        log_policy = self._log_policy(batch.obs, q)
        taken = log_policy.gather(1, batch.action[:, None]).squeeze(1)
        reward = batch.reward + config.munchausen_scale * taken.clamp(config.munchausen_clip, 0.0)
        next_q = self._target_mean(batch.next_obs, next_values, tau)
        next_log = self._log_policy(batch.next_obs, next_q)
        next_log = next_log if next_values.dim() == 2 else next_log[:, :, None]
        prob = (next_log / config.temperature).exp()
        soft_value = (prob * (next_values - next_log)).sum(1)
        return self.values.bellman_backup(soft_value, reward, batch.discount)

    def _log_policy(self, obs: Any, q: Tensor) -> Tensor:
        """Returns temperature x log-probability of each action, for the softmax policy over `q`.

        `q` are Q values, [B, A] for a batch; so is the result. Forbidden actions are masked.
        """
        temperature = self.config.temperature
        return temperature * F.log_softmax(self._allowed_only(q, obs) / temperature, 1)

    def _allowed_only(self, q: Tensor, obs: Any) -> Tensor:
        """Returns Q values in which forbidden actions have a very low value.

        The action masks in `obs` tell which actions are forbidden. Without masks, `q` is returned
        unchanged.
        """
        return masked(q, allowed(obs, self.spec)) if self.spec.masked else q

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
        """Returns epsilon-greedy actions [E], one for each of E environments.

        Noisy layers get new noise at every call, the same for all environments.
        """
        if self.config.noisy:
            self._set_noise(rng if noise else None)
        scores = self._action_scores(obs, exact=values)
        if self.spec.masked and not values and not isinstance(rng, BatchedGenerators):
            raw_mask = obs[MASK][:, -self.spec.action.n :]
            return Acted(greedy_or_random(scores, raw_mask, epsilon, rng))
        mask = allowed(obs, self.spec) if self.spec.masked else None
        q = scores if mask is None else masked(scores, mask)
        action = explore_discrete(q.argmax(1), self.spec.action.n, epsilon, rng, mask)
        return Acted(action, q[np.arange(len(q)), action], q.max(1)) if values else Acted(action)

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        remove_noise(self.online)
        return self._allowed_only(self.values.mean(self.online(obs)), obs), None

    def _set_noise(self, rng: np.random.Generator | None) -> None:
        """Samples new noise for the noisy layers, or removes their noise if `rng` is None."""
        if rng is None:
            remove_noise(self.online)
        else:
            seed = int(rng.integers(2**63))
            resample_noise(self.online, torch.Generator().manual_seed(seed))

    def _action_scores(self, obs: Obs, *, exact: bool) -> Array:
        """Returns a score for each action in each of E environments; the largest is the greedy one.

        With `exact`, the scores are the Q values. Without it, a dueling network may return only its
        advantages, which rank the actions in the same order.
        """
        out = self._forward(obs)
        if self._by_advantage and not exact:
            return out[:, 1:]  # the state value does not change which action is best
        if not (self.values.distributional or self.config.dueling):
            return out
        return self.values.mean(self.online.combine(torch.from_numpy(out))).numpy()
