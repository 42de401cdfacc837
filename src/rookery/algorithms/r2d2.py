"""Recurrent deep Q-learning (R2D2) from sequences with stored recurrent states.

Kapturowski et al. 2019; double and dueling as in `dqn.py`; values rescaled as in Pohlen et al.
2018. Unlike in the paper, the network does not get the previous action and reward; an environment
wrapper can add them to the observation.

The first `burn_in` steps of a sequence only recompute its recurrent state with the present weights;
the loss covers the steps after them. A sequence that starts with its episode has an exact recurrent
state (zeros), so its loss covers all steps. If the stride between sequences is at most `length`,
every step of an episode is covered by the loss of at least one sequence.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algorithms.algorithm import Acted, Loss, require_actions
from rookery.algorithms.dqn import QLearning
from rookery.algorithms.exploration import explore_discrete
from rookery.algorithms.masking import allowed, masked
from rookery.config.algorithms import R2d2Config
from rookery.config.schema import EnvConfig, NetConfig, Recurrent
from rookery.networks.forward import tensors
from rookery.networks.mlp import build
from rookery.networks.recurrent import RecurrentCore
from rookery.types import Array, EnvSpec, Extra, Floats, Obs, TensorBatch

SLOPE = 1e-3  # linear part of the rescaling; it keeps the inverse Lipschitz continuous
MEMORY, FRESH = "memory", "fresh"  # extra columns: recurrent state, 1 where an episode begins


class RecurrentQ(nn.Module):
    """A recurrent Q-network: body, LSTM or GRU, then action values with optional dueling heads."""

    def __init__(self, config: R2d2Config, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__()
        kind = Recurrent.LSTM if net.recurrent is Recurrent.NONE else net.recurrent
        self.dueling = config.dueling
        self.body = build(net, spec, net.memory, normalize=env.normalize_obs)
        self.core = RecurrentCore(kind, net.memory, net.memory)
        self.head = nn.Linear(net.memory, spec.action.n + config.dueling)

    def forward(self, obs: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one step in each of E environments.

        Returns the values of A actions [E, A] and the next recurrent state [E, M], of size M.
        """
        y, memory = self.core.step(torch.relu(self.body(obs)), memory)
        return self._values(y), memory

    def unroll(self, obs: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes B sequences of T steps, from the recurrent state `memory` before the first step.

        Returns the values of A actions [B, T, A] and the last recurrent state.
        """
        x = torch.relu(self.body(_map_leaves(obs, lambda leaf: leaf.flatten(0, 1))))  # [B * T, F]
        y, memory = self.core.unroll(x.view(len(memory), -1, x.shape[1]), memory)
        return self._values(y), memory

    def _values(self, y: Tensor) -> Tensor:
        out: Tensor = self.head(y)
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


class R2d2(QLearning):
    """R2D2: recurrent Q-learning from sequences of steps, each within one episode."""

    batches_actors = True

    def __init__(self, config: R2d2Config, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require_actions(
            spec.action.discrete, config.name, "Discrete actions", spec, "use sac or ppo"
        )
        self.config, self.spec = config, spec
        self.online = RecurrentQ(config, net, env, spec)
        self.set_network(self.online, tau=config.target_tau, period=config.target_period)
        self.memory = self.online.core.memory
        self.extras = (
            Extra(MEMORY, (self.memory,), each=False, own=True),  # before the step
            Extra(FRESH, each=False),  # 1 where an episode begins
        )

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        q = self._unroll(self.online, batch)  # [B, T + 1, A]
        prediction = q[:, :-1].gather(2, batch.action[..., None]).squeeze(2)  # [B, T]
        with torch.no_grad():
            target = self._bellman_target(batch, q.detach())
            loss_mask = self._loss_mask(batch)  # [B, T]
        td_error = (target - prediction) * loss_mask
        huber = F.smooth_l1_loss(td_error, torch.zeros_like(td_error), reduction="none")
        count = loss_mask.sum()
        loss = (huber.sum(1) @ batch.weight) / count.clamp(min=1.0)
        metrics = {"q_mean": (prediction.detach() * loss_mask).sum() / count.clamp(min=1.0)}
        priority = self._priority(td_error.detach().abs(), loss_mask)
        yield Loss("q", loss, priority, metrics, count)

    def _unroll(self, network: Any, batch: TensorBatch) -> Tensor:
        """Returns the network's action values for B sequences of T + 1 observations.

        They are [B, T + 1, A] for A actions. No gradient flows through the burn-in steps of a
        sequence, unless the sequence starts at the beginning of an episode (extra column `FRESH`).
        """
        burn_in, memory = self.config.burn_in, batch.extras[MEMORY]
        if burn_in == 0:
            return network.unroll(batch.obs, memory)[0]  # type: ignore[no-any-return]
        fresh = batch.extras[FRESH] > 0  # [B]
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(fresh.any())):  # a sync point
            early, memory = network.unroll(_map_leaves(batch.obs, lambda x: x[:, :burn_in]), memory)
        memory = torch.where(fresh[:, None], memory, memory.detach())
        late, _ = network.unroll(_map_leaves(batch.obs, lambda x: x[:, burn_in:]), memory)
        return torch.cat([early, late], 1)

    def _bellman_target(self, batch: TensorBatch, q: Tensor) -> Tensor:
        """Returns the n-step Bellman targets [B, T] of B sequences of T steps.

        They are rescaled if `algo.rescale` is set. `q` are the online network's action values.
        Steps with fewer than n steps after them bootstrap from the sequence's last observation.
        """
        next_q = self._unroll(self.target.network, batch)
        scores = masked(q if self.config.double else next_q, allowed(batch.obs, self.spec))
        best = scores.argmax(2, keepdim=True)
        value = self._inverse_rescale(next_q.gather(2, best).squeeze(2))  # [B, T + 1]
        exists, target = batch.mask > 0, value
        for _ in range(self.config.n_step):
            backup = batch.reward + batch.discount * target[:, 1:]
            target = torch.cat([torch.where(exists, backup, value[:, :-1]), value[:, -1:]], 1)
        return rescale(target[:, :-1]) if self.config.rescale else target[:, :-1]

    def _inverse_rescale(self, value: Tensor) -> Tensor:
        return inverse_rescale(value) if self.config.rescale else value

    def _loss_mask(self, batch: TensorBatch) -> Tensor:
        """Returns 1 for steps that the loss covers, 0 for burn-in and padding.

        The result is [B, T], for B sequences of T steps.
        """
        steps = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        late: Tensor = steps >= self.config.burn_in
        loss_mask: Tensor = batch.mask * (late | (batch.extras[FRESH] > 0)[:, None])
        return loss_mask

    def _priority(self, error: Tensor, loss_mask: Tensor) -> Tensor:
        """Returns the replay priorities of B sequences: a mix of largest and mean |TD error|.

        `error` [B, T] are the absolute TD errors of T steps, 0 for steps that the loss does not
        cover. `algo.eta` is the weight of the largest.
        """
        mean = error.sum(1) / loss_mask.sum(1).clamp(min=1.0)
        return self.config.eta * error.amax(1) + (1.0 - self.config.eta) * mean

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

        `memory` is the recurrent state [E, M], of size M; None means zeros, as at the start of an
        episode.
        """
        if memory is None:
            count = len(next(iter(self.spec.unpack(obs).values())))
            memory = np.zeros((count, self.memory), dtype=np.float32)
        q, after = self._step(obs, memory)
        mask = allowed(obs, self.spec)
        action = explore_discrete(masked(q, mask).argmax(1), self.spec.action.n, epsilon, rng, mask)
        fresh = np.asarray(~memory.any(1))  # an episode begins with a recurrent state of zeros
        acted = Acted(action, extras={MEMORY: memory, FRESH: fresh}, memory=after)
        if not values:
            return acted
        raw = self._inverse_rescale(torch.from_numpy(q)).numpy()
        best = masked(raw, mask).max(1)
        return acted._replace(taken=raw[np.arange(len(raw)), action], best=best)

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        q, after = self.online(obs, memory)
        return masked(q, allowed(obs, self.spec)), after

    @torch.inference_mode()
    def _step(self, obs: Obs, memory: Floats) -> tuple[Array, Floats]:
        device = self.online.head.weight.device
        q, after = self.online(tensors(obs, device), torch.from_numpy(memory).to(device))
        return q.cpu().numpy(), after.cpu().numpy()


def rescale(x: Tensor) -> Tensor:
    """Rescales values of returns x to sign(x)(sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + SLOPE * x


def inverse_rescale(y: Tensor) -> Tensor:
    """Applies the inverse of the value rescaling `rescale`, without cancellation errors."""
    inside = y.abs() + 1.0 + SLOPE
    root = 2.0 * inside / (1.0 + (1.0 + 4.0 * SLOPE * inside).sqrt())  # sqrt(|x| + 1)
    return y.sign() * (root.square() - 1.0)


def _map_leaves(obs: Any, change: Any) -> Any:
    """Applies a function to an observation array, or to every array of a dict observation."""
    if isinstance(obs, dict):
        return {name: change(leaf) for name, leaf in obs.items()}
    return change(obs)
