"""Recurrent deep Q-learning from sequences that begin with the memory their actors had.

Kapturowski et al. 2019; double and dueling as in `dqn.py`; values rescaled as in Pohlen et al.
2018. The previous action and reward, which that agent sees too, are not put in: a wrapper of the
environment can add them to the observation.

The first `burn_in` steps of a sequence only bring its memory up to date with the present weights;
those after them are learned from. Where an episode begins the memory is exact, so a sequence that
begins there is learned from as a whole. With sequences a stride of at most `length` apart, each
step of an episode is in one that learns from it, however short the episode is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.chance import some_other
from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.algos.masks import allowed, masked
from rookery.config.algorithms import R2d2Config
from rookery.config.schema import EnvConfig, NetConfig, Recurrent
from rookery.nets.ask import tensors
from rookery.nets.build import build
from rookery.nets.follow import Follower
from rookery.nets.recurrent import Core
from rookery.types import Array, Batch, EnvSpec, Extra, Floats, Obs

SLOPE = 1e-3  # of the rescaling far from 0: keeps its inverse from growing without bounds
MEMORY, FRESH = "memory", "fresh"


class RecurrentQ(nn.Module):
    """Body → recurrent core → action values; dueling: a state value plus centred advantages."""

    def __init__(self, config: R2d2Config, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__()
        kind = Recurrent.LSTM if net.recurrent is Recurrent.NONE else net.recurrent
        self.dueling = config.dueling
        self.body = build(net, spec, net.memory, normalize=env.normalize_obs)
        self.core = Core(kind, net.memory, net.memory)
        self.head = nn.Linear(net.memory, spec.action.n + config.dueling)

    def forward(self, obs: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one step of E environments: [E, A] values, and the memory afterwards, [E, M]."""
        y, memory = self.core.step(torch.relu(self.body(obs)), memory)
        return self._values(y), memory

    def unroll(self, obs: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Takes [B, T, *obs] and the memory before them: [B, T, A] values, and the memory after."""
        x = torch.relu(self.body(_each(obs, lambda leaf: leaf.flatten(0, 1))))  # [B * T, F]
        y, memory = self.core.unroll(x.view(len(memory), -1, x.shape[1]), memory)
        return self._values(y), memory

    def _values(self, y: Tensor) -> Tensor:
        out: Tensor = self.head(y)
        if not self.dueling:
            return out
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


class R2d2(Algorithm):
    """Learns action values from sequences; acts on what it has seen since the episode began."""

    together = True

    def __init__(self, config: R2d2Config, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require(spec.action.discrete, config.name, "Discrete actions", spec, "use sac or ppo")
        self.config, self.spec = config, spec
        self.online = RecurrentQ(config, net, env, spec)
        self.target = Follower(self.online)
        self.acting: nn.Module = self.online
        self.networks = nn.ModuleDict({"online": self.online, "target": self.target.network})
        self.memory = self.online.core.memory
        self.extras = (
            Extra(MEMORY, (self.memory,), each=False, own=True),  # before the step
            Extra(FRESH, each=False),  # 1 where an episode begins
        )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.online.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        q = self._values(self.online, batch)  # [B, T + 1, A]
        said = q[:, :-1].gather(2, batch.action[..., None]).squeeze(2)  # [B, T]
        with torch.no_grad():
            wanted = self._wanted(batch, q.detach())
            taught = self._taught(batch)  # [B, T]
        error = (wanted - said) * taught
        huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
        count = taught.sum()
        loss = (huber.sum(1) @ batch.weight) / count.clamp(min=1.0)
        metrics = {"q_mean": (said.detach() * taught).sum() / count.clamp(min=1.0)}
        yield Loss("q", loss, self._surprise(error.detach().abs(), taught), metrics, count)

    def _values(self, network: Any, batch: Batch) -> Tensor:
        """Returns [B, T + 1, A] values; no gradient reaches back into what is only burnt in."""
        burn_in, memory = self.config.burn_in, batch.extras[MEMORY]
        if burn_in == 0:
            return network.unroll(batch.obs, memory)[0]  # type: ignore[no-any-return]
        fresh = batch.extras[FRESH] > 0  # [B]
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(fresh.any())):  # a sync point
            early, memory = network.unroll(_each(batch.obs, lambda x: x[:, :burn_in]), memory)
        memory = torch.where(fresh[:, None], memory, memory.detach())
        late, _ = network.unroll(_each(batch.obs, lambda x: x[:, burn_in:]), memory)
        return torch.cat([early, late], 1)

    def _wanted(self, batch: Batch, q: Tensor) -> Tensor:
        """Returns what values should have been, [B, T]: backed up n times, by the present means.

        A step nearer than n to its sequence's end bootstraps there, from the last observation.
        """
        next_q = self._values(self.target.network, batch)
        judge = masked(q if self.config.double else next_q, allowed(batch.obs, self.spec))
        best = judge.argmax(2, keepdim=True)
        value = self._unscaled(next_q.gather(2, best).squeeze(2))  # [B, T + 1]
        there, ahead = batch.mask > 0, value
        for _ in range(self.config.n_step):
            backed_up = batch.reward + batch.discount * ahead[:, 1:]
            ahead = torch.cat([torch.where(there, backed_up, value[:, :-1]), value[:, -1:]], 1)
        return rescaled(ahead[:, :-1]) if self.config.rescale else ahead[:, :-1]

    def _unscaled(self, value: Tensor) -> Tensor:
        return unscaled(value) if self.config.rescale else value

    def _taught(self, batch: Batch) -> Tensor:
        """Returns 1 for the steps that are learned from, [B, T]."""
        steps = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        late: Tensor = steps >= self.config.burn_in
        taught: Tensor = batch.mask * (late | (batch.extras[FRESH] > 0)[:, None])
        return taught

    def _surprise(self, error: Tensor, taught: Tensor) -> Tensor:
        """Returns the sequences' priorities, [B], from |TD errors| that are 0 where not taught."""
        mean = error.sum(1) / taught.sum(1).clamp(min=1.0)
        return self.config.eta * error.amax(1) + (1.0 - self.config.eta) * mean

    def settle(self, step: int) -> None:
        self.target.settle(step, tau=self.config.target_tau, period=self.config.target_period)

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
        """Chooses [E] actions; without a memory as if every episode had just begun."""
        if memory is None:
            count = len(next(iter(self.spec.unpack(obs).values())))
            memory = np.zeros((count, self.memory), dtype=np.float32)
        q, after = self._step(obs, memory)
        mask = allowed(obs, self.spec)
        action = some_other(masked(q, mask).argmax(1), self.spec.action.n, epsilon, rng, mask)
        fresh = np.asarray(~memory.any(1))  # zeros are the memory at an episode's beginning
        acted = Acted(action, extras={MEMORY: memory, FRESH: fresh}, memory=after)
        if not values:
            return acted
        raw = self._unscaled(torch.from_numpy(q)).numpy()
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


def rescaled(x: Tensor) -> Tensor:
    """Shrinks large returns: sign(x)(sqrt(|x| + 1) - 1) + SLOPE x."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + SLOPE * x


def unscaled(y: Tensor) -> Tensor:
    """The inverse of `rescaled`, written so that nothing of it cancels."""
    inside = y.abs() + 1.0 + SLOPE
    root = 2.0 * inside / (1.0 + (1.0 + 4.0 * SLOPE * inside).sqrt())  # sqrt(|x| + 1)
    return y.sign() * (root.square() - 1.0)


def _each(obs: Any, change: Any) -> Any:
    """Changes every leaf of an observation."""
    if isinstance(obs, dict):
        return {name: change(leaf) for name, leaf in obs.items()}
    return change(obs)
