"""What deep Q-learning learns of a return: its mean, or its distribution in one of three forms.

A network says something of every action: [B, A] means, or [B, A, K] numbers that stand for a
distribution. What that means is known here, and nowhere else.

Bellemare et al. 2017 (categorical: C51); Dabney et al. 2018a (quantiles: QR-DQN);
Dabney et al. 2018b (implicit: IQN).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.config.algorithms import DqnConfig, Values
from rookery.config.schema import NetConfig
from rookery.nets.build import build
from rookery.nets.implicit import Implicit as QuantileFunction
from rookery.nets.implicit import midpoints
from rookery.types import EnvSpec


class Judged(NamedTuple):
    """How far what was said of B actions is from what should have been."""

    loss: Tensor  # [B]
    error: Tensor  # [B], which ranks rows; no gradient


class Mean:
    """One number for each action. Rows are ranked by the TD error."""

    spread = False  # is there an axis [K] after that of the actions?

    def __init__(self, config: DqnConfig):
        self.config = config

    @property
    def outputs(self) -> int:
        """Numbers that a network says of an action."""
        return 1

    def body(self, net: NetConfig, spec: EnvSpec, rows: int, **how: Any) -> nn.Module:
        """Returns a network that says something of `rows` actions."""
        return build(net, spec, rows * self.outputs, **how)

    def draw(self, batch: int, rng: torch.Generator) -> Tensor | None:
        """Returns the shares of probability at which to ask, where the network needs them."""
        return None

    def of(self, said: Tensor, action: Tensor) -> Tensor:
        """Returns what was said of [B] actions."""
        return said.gather(1, action[:, None]).squeeze(1)

    def mean(self, said: Tensor) -> Tensor:
        """Returns expected returns, [B, A] or [B]."""
        return said

    def backed_up(self, said: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns what should be said before the reward, given what is said after it."""
        return reward + discount * said

    def judge(self, said: Tensor, wanted: Tensor, at: Tensor | None) -> Judged:
        """Compares, by Huber's loss."""
        loss = F.smooth_l1_loss(said, wanted, reduction="none")
        return Judged(loss, wanted - said.detach())


class Categorical(Mean):
    """The probabilities, as logits, of `atoms` returns in even distances.

    Rows are ranked by the divergence from what should have been said, as in Hessel et al. 2018;
    it is also the loss, whose gradient is that of the cross-entropy.
    """

    spread = True

    @property
    def outputs(self) -> int:
        return self.config.atoms

    def support(self, like: Tensor) -> Tensor:
        """Returns the returns that are told apart, [K]."""
        config = self.config
        return torch.linspace(
            config.value_min, config.value_max, config.atoms, device=like.device, dtype=like.dtype
        )

    def of(self, said: Tensor, action: Tensor) -> Tensor:
        return _of(said, action)

    def mean(self, said: Tensor) -> Tensor:
        return F.softmax(said, -1) @ self.support(said)

    def backed_up(self, said: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns probabilities: those said, moved, and shared among the two nearest returns."""
        prob, support = F.softmax(said, -1), self.support(said)
        low, last = self.config.value_min, len(support) - 1
        width = (self.config.value_max - low) / last
        moved = reward[:, None] + discount[:, None] * support  # [B, K]
        place = ((moved - low) / width).clamp(0, last)
        below = place.floor()
        above = place - below  # the share of the upper neighbour; 0 where there is none
        index = below.long()
        wanted = torch.zeros_like(prob).scatter_add_(1, index, prob * (1 - above))
        return wanted.scatter_add_(1, (index + 1).clamp(max=last), prob * above)

    def judge(self, said: Tensor, wanted: Tensor, at: Tensor | None) -> Judged:
        divergence = F.kl_div(F.log_softmax(said, -1), wanted, reduction="none").sum(1)
        return Judged(divergence, divergence.detach())


class Quantiles(Mean):
    """The quantiles in the middles of `quantiles` equal shares of probability.

    Rows are ranked by the TD error of the mean: a number like the one that actors can give.
    """

    spread = True

    @property
    def outputs(self) -> int:
        return self.config.quantiles

    def of(self, said: Tensor, action: Tensor) -> Tensor:
        return _of(said, action)

    def mean(self, said: Tensor) -> Tensor:
        return said.mean(-1)

    def backed_up(self, said: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward[:, None] + discount[:, None] * said

    def judge(self, said: Tensor, wanted: Tensor, at: Tensor | None) -> Judged:
        at = midpoints(said.shape[1]).to(said.device) if at is None else at
        error = wanted.mean(1) - said.detach().mean(1)
        return Judged(quantile_huber(said, wanted, at), error)


class Implicit(Quantiles):
    """The quantile at any share of probability: at random ones to learn, at even ones to act."""

    def body(self, net: NetConfig, spec: EnvSpec, rows: int, **how: Any) -> nn.Module:
        return QuantileFunction(net, spec, rows, self.outputs, **how)

    def draw(self, batch: int, rng: torch.Generator) -> Tensor | None:
        return torch.rand(batch, self.outputs, generator=rng, device=rng.device)


VALUES: dict[Values, type[Mean]] = {
    Values.MEAN: Mean,
    Values.CATEGORICAL: Categorical,
    Values.QUANTILES: Quantiles,
    Values.IMPLICIT: Implicit,
}


def quantile_huber(said: Tensor, wanted: Tensor, at: Tensor) -> Tensor:
    """Returns the loss [B] of quantiles [B, N] at shares [N] or [B, N], by samples [B, M].

    Each quantile is pulled up by samples above it and down by those below it, so that it rests
    where a share `at` of them lies below (Dabney et al. 2018a, eq. 10, with kappa 1).
    """
    shape = (*said.shape, wanted.shape[1])
    said, wanted = said[:, :, None].expand(shape), wanted[:, None, :].expand(shape)
    pull = (at[..., None] - (wanted < said).to(at.dtype)).abs()  # [B, N, M]
    return (pull * F.smooth_l1_loss(said, wanted, reduction="none")).mean(2).sum(1)


def _of(said: Tensor, action: Tensor) -> Tensor:
    """Returns [B, K] of [B, A, K]."""
    index = action[:, None, None].expand(-1, 1, said.shape[2])
    return said.gather(1, index).squeeze(1)
