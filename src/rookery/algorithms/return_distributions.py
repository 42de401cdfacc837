"""Value representations of deep Q-learning: the expected return, or its distribution.

For a batch of B observations and A actions, a Q-network returns expected returns [B, A], or, for
each action, K numbers that describe the return distribution, [B, A, K]. The classes of this module
define what the K numbers mean.

Bellemare et al. 2017 (categorical: C51); Dabney et al. 2018a (quantiles: QR-DQN); Dabney et al.
2018b (implicit: IQN).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.config.algorithms import DqnConfig, Values
from rookery.config.schema import NetConfig
from rookery.networks.implicit_quantiles import ImplicitQuantileNetwork, midpoints
from rookery.networks.mlp import build
from rookery.types import EnvSpec


class RowLosses(NamedTuple):
    """The Q-learning loss and the TD error of each transition of a batch."""

    loss: Tensor  # [B]
    td_error: Tensor  # [B] for priorities; no gradient


class MeanValues:
    """Standard Q-learning: the network outputs one expected return for each action.

    Replay priorities are |TD errors|. Also the base class of the distributional representations.
    """

    distributional = False  # True: outputs have an axis [K] after that of the actions

    def __init__(self, config: DqnConfig):
        self.config = config

    @property
    def outputs(self) -> int:
        """Number of network outputs for each action."""
        return 1

    def body(self, net: NetConfig, spec: EnvSpec, rows: int, **how: Any) -> nn.Module:
        """Builds the neural network, whose outputs are `rows` groups of `outputs` numbers.

        There is one group for each action, and one more for the state value of a dueling network.
        """
        return build(net, spec, rows * self.outputs, **how)

    def sample_tau(self, batch: int, rng: torch.Generator) -> Tensor | None:
        """Samples K random quantile fractions for each of `batch` transitions, for IQN.

        Returns None in all other value representations.
        """
        return None

    def select(self, values: Tensor, action: Tensor) -> Tensor:
        """Selects the values of the given actions from those of all actions.

        `action` [B] has one action for each of B transitions. The result is [B], or [B, K] if K
        numbers describe the return distribution of an action.
        """
        return values.gather(1, action[:, None]).squeeze(1)

    def mean(self, values: Tensor) -> Tensor:
        """Returns the expected returns that network outputs stand for.

        Removes the last axis of outputs that describe distributions.
        """
        return values

    def bellman_backup(self, next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns the Bellman targets: reward + discount x next value.

        Their shape is [B] (batch), or [B, K] if K numbers describe a return distribution.
        """
        return reward + discount * next_value

    def loss(self, prediction: Tensor, target: Tensor, tau: Tensor | None) -> RowLosses:
        """Returns the loss and the TD error of each transition.

        The loss is the Huber loss here; subclasses have other losses.
        """
        loss = F.smooth_l1_loss(prediction, target, reduction="none")
        return RowLosses(loss, target - prediction.detach())


class CategoricalValues(MeanValues):
    """C51: the network outputs logits of the probabilities of `atoms` evenly spaced returns.

    The loss is the KL divergence from the target distribution, whose gradient equals that of the
    cross-entropy. It also serves as the replay priority, as in Hessel et al. 2018.
    """

    distributional = True

    @property
    def outputs(self) -> int:
        return self.config.atoms

    def support(self, like: Tensor) -> Tensor:
        """Returns the support of the return distribution: the return of each atom."""
        config = self.config
        return torch.linspace(
            config.value_min, config.value_max, config.atoms, device=like.device, dtype=like.dtype
        )

    def select(self, values: Tensor, action: Tensor) -> Tensor:
        return _select(values, action)

    def mean(self, values: Tensor) -> Tensor:
        return F.softmax(values, -1) @ self.support(values)

    def bellman_backup(self, next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns the Bellman targets of C51: target probabilities [B, K] (batch, atoms).

        They are the distribution of reward + discount x next return, projected onto the support.
        """
        prob, support = F.softmax(next_value, -1), self.support(next_value)
        low, last = self.config.value_min, len(support) - 1
        width = (self.config.value_max - low) / last
        shifted = reward[:, None] + discount[:, None] * support  # [B, K]
        position = ((shifted - low) / width).clamp(0, last)
        below = position.floor()
        above = position - below  # the share of the upper neighbour; 0 where there is none
        index = below.long()
        target = torch.zeros_like(prob).scatter_add_(1, index, prob * (1 - above))
        return target.scatter_add_(1, (index + 1).clamp(max=last), prob * above)

    def loss(self, prediction: Tensor, target: Tensor, tau: Tensor | None) -> RowLosses:
        divergence = F.kl_div(F.log_softmax(prediction, -1), target, reduction="none").sum(1)
        return RowLosses(divergence, divergence.detach())


class QuantileValues(MeanValues):
    """QR-DQN: the network outputs quantiles of the return at evenly spaced fractions.

    `algo.quantiles` is their number. Replay priorities are the TD errors of the mean, which actors
    can compute too.
    """

    distributional = True

    @property
    def outputs(self) -> int:
        return self.config.quantiles

    def select(self, values: Tensor, action: Tensor) -> Tensor:
        return _select(values, action)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(-1)

    def bellman_backup(self, next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward[:, None] + discount[:, None] * next_value

    def loss(self, prediction: Tensor, target: Tensor, tau: Tensor | None) -> RowLosses:
        if tau is None:
            tau = midpoints(prediction.shape[1], prediction.device)
        td_error = target.mean(1) - prediction.detach().mean(1)
        return RowLosses(quantile_huber_loss(prediction, target, tau), td_error)


class ImplicitQuantileValues(QuantileValues):
    """IQN: learns quantiles of the return at random fractions, acts with evenly spaced ones."""

    def body(self, net: NetConfig, spec: EnvSpec, rows: int, **how: Any) -> nn.Module:
        return ImplicitQuantileNetwork(net, spec, rows, self.outputs, **how)

    def sample_tau(self, batch: int, rng: torch.Generator) -> Tensor | None:
        return torch.rand(batch, self.outputs, generator=rng, device=rng.device)


VALUES: dict[Values, type[MeanValues]] = {
    Values.MEAN: MeanValues,
    Values.CATEGORICAL: CategoricalValues,
    Values.QUANTILES: QuantileValues,
    Values.IMPLICIT: ImplicitQuantileValues,
}


def quantile_huber_loss(prediction: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """Returns the quantile regression loss, with Huber loss, of each of B transitions.

    `prediction` are N predicted quantiles [B, N]; `tau` are their fractions, [N] or [B, N];
    `target` are M samples [B, M] of the target distribution (Dabney et al. 2018a, eq. 10, with
    kappa 1).
    """
    shape = (*prediction.shape, target.shape[1])
    prediction = prediction[:, :, None].expand(shape)
    target = target[:, None, :].expand(shape)
    weight = (tau[..., None] - (target < prediction).to(tau.dtype)).abs()  # [B, N, M]
    return (weight * F.smooth_l1_loss(prediction, target, reduction="none")).mean(2).sum(1)


def _select(values: Tensor, action: Tensor) -> Tensor:
    """Selects the return distributions [B, K] of the given actions [B] from those of all actions.

    `values` are [B, A, K]: batch, actions, numbers that describe a distribution.
    """
    index = action[:, None, None].expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)
