"""Deep Q-learning: double, dueling, n-step, importance-weighted.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling);
Schaul et al. 2016 (prioritised replay, through `batch.weight` and the returned TD errors).
"""

import copy
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.build import build
from rookery.nets.features import Normalize
from rookery.nets.quick import Quick
from rookery.types import Array, Batch, EnvSpec, Floats, Obs


class QNetwork(nn.Module):
    """Obs → [B, A] action values; dueling: a state value plus centred advantages."""

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__()
        self.dueling = config.dueling
        self.body = build(net, spec, spec.action.n + config.dueling, normalize=env.normalize_obs)

    def forward(self, obs: Any) -> Tensor:
        return self.values(self.body(obs))

    def values(self, out: Tensor) -> Tensor:
        """Puts the body's outputs together."""
        if not self.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]  # [B, 1], [B, A]
        return value + advantage - advantage.mean(1, keepdim=True)


class Dqn(Algorithm):
    """Learns action values from n-step transitions."""

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require(spec.action.discrete, "dqn", "Discrete actions", spec, "use sac or ppo")
        self.config, self.spec = config, spec
        online = QNetwork(config, net, env, spec)
        target = copy.deepcopy(online).requires_grad_(False)
        _share_statistics(online, target)
        self.networks = nn.ModuleDict({"online": online, "target": target})
        self.acting: nn.Module = online
        self._online = online
        self._quick: Quick | Literal[False] | None = None  # None: not looked for yet
        self._target = target
        self._followers: list[Tensor] = list(target.parameters())
        self._leaders: list[Tensor] = list(online.parameters())

    def groups(self) -> dict[str, list[nn.Parameter]]:
        self._quick = False  # an optimizer relies on weights to stay where they are in memory
        return {"q": list(self.acting.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        q = self.acting(batch.obs).gather(1, batch.action[:, None]).squeeze(1)  # [B]
        with torch.no_grad():
            next_q = self._target(batch.next_obs)  # [B, A]
            choosing = self.acting(batch.next_obs) if self.config.double else next_q
            best = choosing.argmax(1, keepdim=True)  # [B, 1]
            wanted = batch.reward + batch.discount * next_q.gather(1, best).squeeze(1)  # [B]
        loss = F.smooth_l1_loss(q, wanted, reduction="none") @ batch.weight / len(q)
        said = q.detach()
        yield Loss("q", loss, wanted - said, {"q_mean": said.mean()})

    @torch.no_grad()  # or every Polyak step would be remembered as part of one long graph
    def settle(self, step: int) -> None:
        """Copies the trained network into the target: now and then, or a little every time."""
        if self.config.target_tau is not None and step > 0:
            torch._foreach_lerp_(self._followers, self._leaders, self.config.target_tau)
        elif step % self.config.target_period == 0:
            self._target.load_state_dict(self.acting.state_dict())

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
        """Chooses [E] actions, each of them random with probability `epsilon`."""
        q = self._compared(obs, exact=values)
        action: Array = q.argmax(1)
        if epsilon > 0:
            chance = rng.random(len(action))
            explore = np.flatnonzero(chance < epsilon)  # below it, `chance` is still uniform
            action[explore] = chance[explore] / epsilon * self.spec.action.n
        return Acted(action, q[np.arange(len(q)), action], q.max(1)) if values else Acted(action)

    def _compared(self, obs: Obs, *, exact: bool) -> Array:
        """Returns [E, A] action values; where they need not be exact, perhaps advantages."""
        if self._quick is None:
            self._quick = Quick.of(self._online.body) or False
        if not (self._quick and self._quick.fits(obs)):
            with torch.inference_mode():
                seen = tensors(obs, self._leaders[0].device)
                return self.acting(seen).cpu().numpy()  # type: ignore[no-any-return]
        out = self._quick(obs)  # type: ignore[arg-type]
        if not exact:
            return out[:, self.config.dueling :]  # a state's value favours no action
        return self._online.values(torch.from_numpy(out)).numpy()


def tensors(obs: Obs, device: torch.device) -> Any:
    """Gives an observation's arrays to torch, on the CPU without copying."""
    if isinstance(obs, dict):
        return {name: torch.from_numpy(leaf).to(device) for name, leaf in obs.items()}
    return torch.from_numpy(obs).to(device)


def _share_statistics(online: nn.Module, target: nn.Module) -> None:
    """Makes the target see observations exactly as the trained network does."""
    ours = dict(online.named_modules())
    for name, module in list(target.named_modules()):
        if isinstance(module, Normalize):
            parent, _, child = name.rpartition(".")
            setattr(target.get_submodule(parent), child, ours[name])
