"""Deep Q-learning and its parts: each is a setting, and they go together.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling);
Schaul et al. 2016 (prioritised replay, through `batch.weight` and the returned TD errors);
Fortunato et al. 2018 (noisy); Vieillard et al. 2020 (Munchausen); Hessel et al. 2018 (Rainbow:
most of them at once). What is learned of a return, its mean or more, is in `distributions.py`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.chance import Choir, best_or_other, some_other
from rookery.algos.distributions import VALUES
from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.algos.masks import allowed, masked
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import Ask
from rookery.nets.follow import Follower
from rookery.nets.noisy import quiet, shake
from rookery.types import MASK, Array, Batch, EnvSpec, Floats, Obs


class QNetwork(nn.Module):
    """Obs → [B, A] action values, or [B, A, K]; dueling: a state's plus centred advantages."""

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        super().__init__()
        self.dueling, self.rows = config.dueling, spec.action.n + config.dueling
        self.kind = VALUES[config.values](config)
        self.body = self.kind.body(
            net,
            spec,
            self.rows,
            normalize=env.normalize_obs,
            noisy=config.noisy,
            sigma0=config.noise,
        )

    def forward(self, obs: Any, at: Tensor | None = None) -> Tensor:
        return self.values(self.body(obs) if at is None else self.body(obs, at))

    def values(self, out: Tensor) -> Tensor:
        """Puts the body's outputs together."""
        if self.kind.spread:
            out = out.reshape(out.shape[0], self.rows, -1)  # [B, A or 1 + A, K]
        if not self.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]  # [B, 1, ...], [B, A, ...]
        return value + advantage - advantage.mean(1, keepdim=True)


class Dqn(Algorithm):
    """Learns action values from n-step transitions."""

    def __init__(self, config: DqnConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        require(spec.action.discrete, "dqn", "Discrete actions", spec, "use sac or ppo")
        self.config, self.spec = config, spec
        self.online = QNetwork(config, net, env, spec)
        self.kind = self.online.kind
        self.target = Follower(self.online)
        self.networks = nn.ModuleDict({"online": self.online, "target": self.target.network})
        self.acting: nn.Module = self.online
        self.together = not config.noisy  # their noise is one for all that a call answers
        self._ask = Ask(self.online.body)
        self._by_advantage = config.dueling and not self.kind.spread

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.online.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        if self.config.noisy:
            shake(self.networks, rng)
        at = self.kind.draw(len(batch.action), rng)
        said = self.kind.of(self.online(batch.obs, at), batch.action)  # [B] or [B, K]
        with torch.no_grad():
            wanted = self._wanted(batch, rng)
        judged = self.kind.judge(said, wanted, at)
        loss = judged.loss @ batch.weight / len(said)
        yield Loss("q", loss, judged.error, {"q_mean": self.kind.mean(said.detach()).mean()})

    def _wanted(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Returns what should have been said, [B] or [B, K]."""
        at = self.kind.draw(len(batch.action), rng)
        said = self.target.network(batch.next_obs, at)  # [B, A] or [B, A, K]
        if self.config.munchausen:
            return self._softly(batch, said, at)
        best = self.kind.of(said, self._best(batch, said, at, rng))
        return self.kind.backed_up(best, batch.reward, batch.discount)

    def _best(self, batch: Batch, said: Tensor, at: Tensor | None, rng: torch.Generator) -> Tensor:
        """Chooses the [B] actions to bootstrap from, among those that are allowed there."""
        if not self.config.double:
            means = self._means(batch.next_obs, said, at)
        else:
            if self.config.noisy:
                shake(self.online, rng)  # or it would choose by the noise it is trained with
            means = self.kind.mean(self.online(batch.next_obs))
        return masked(means, allowed(batch.next_obs, self.spec)).argmax(1)

    def _means(self, obs: Any, said: Tensor, at: Tensor | None) -> Tensor:
        """Returns the target's [B, A] values: of all it can say, where `said` is a sample."""
        return self.kind.mean(said if at is None else self.target.network(obs))

    def _softly(self, batch: Batch, said: Tensor, at: Tensor | None) -> Tensor:
        """Munchausen (eq. 1 of Vieillard et al. 2020): a soft policy, paid for being sure.

        Of n steps the first alone is paid: the others' observations are not in the batch.
        """
        config = self.config
        before = self._log_policy(batch.obs, self.kind.mean(self.target.network(batch.obs)))
        taken = before.gather(1, batch.action[:, None]).squeeze(1)
        reward = batch.reward + config.munchausen_scale * taken.clamp(config.munchausen_clip, 0.0)
        after = self._log_policy(batch.next_obs, self._means(batch.next_obs, said, at))
        log = after if said.dim() == 2 else after[:, :, None]
        prob = (log / config.temperature).exp()
        return self.kind.backed_up((prob * (said - log)).sum(1), reward, batch.discount)

    def _log_policy(self, obs: Any, q: Tensor) -> Tensor:
        """Returns the softmax policy's [B, A] log-probabilities, times the temperature."""
        temperature = self.config.temperature
        return temperature * F.log_softmax(masked(q, allowed(obs, self.spec)) / temperature, 1)

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
        """Chooses [E] actions, each of them random with probability `epsilon`.

        Noisy layers draw once for all environments, at every call.
        """
        if self.config.noisy:
            self._listen(rng if noise else None)
        compared = self._compared(obs, exact=values)
        if self.spec.masked and not values and not isinstance(rng, Choir):
            asked = obs[MASK][:, -self.spec.action.n :]
            return Acted(best_or_other(compared, asked, epsilon, rng))
        mask = allowed(obs, self.spec)
        q = masked(compared, mask)
        action = some_other(q.argmax(1), self.spec.action.n, epsilon, rng, mask)
        return Acted(action, q[np.arange(len(q)), action], q.max(1)) if values else Acted(action)

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        quiet(self.online)
        return masked(self.kind.mean(self.online(obs)), allowed(obs, self.spec)), None

    def _listen(self, rng: np.random.Generator | None) -> None:
        """Gives the layers new noise; none without a generator."""
        if rng is None:
            quiet(self.online)
        else:
            seed = int(rng.integers(2**63))
            shake(self.online, torch.Generator().manual_seed(seed))

    def _compared(self, obs: Obs, *, exact: bool) -> Array:
        """Returns [E, A] action values; where they need not be exact, perhaps advantages."""
        out = self._ask(obs)
        if self._by_advantage and not exact:
            return out[:, 1:]  # a state's value favours no action
        if not (self.kind.spread or self.config.dueling):
            return out
        said = self.online.values(torch.from_numpy(out))
        return self.kind.mean(said).numpy()
