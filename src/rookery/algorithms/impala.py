"""IMPALA: off-policy actor-critic with V-trace corrections for actors with older weights.

Espeholt et al. 2018. Sequences of `algo.length` steps are sampled from a small replay buffer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.algorithms.actor_critic import LOG_PROB, ActorCritic
from rookery.algorithms.algorithm import Loss
from rookery.algorithms.policy_distributions import ActionEvaluation
from rookery.config.algorithms import ImpalaConfig
from rookery.types import TensorBatch


class VTrace(NamedTuple):
    """V-trace value targets and policy-gradient advantages of B sequences of T steps."""

    value_target: Tensor  # [B, T]
    advantage: Tensor  # [B, T] weighted by the clipped importance ratio


class Impala(ActorCritic):
    """IMPALA for discrete, multi-discrete and continuous actions."""

    config: ImpalaConfig

    def losses(self, batch: TensorBatch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        mask, steps = batch.mask, batch.mask.sum()  # [B, T]
        evaluated, value = self._evaluate(batch)
        log_ratio = evaluated.log_prob.detach() - batch.extras[LOG_PROB]
        traced = vtrace(
            log_ratio,
            batch.reward,
            batch.discount,
            value.detach(),
            mask,
            rho_clip=self.config.rho_clip,
            c_clip=self.config.c_clip,
        )
        error = (traced.value_target - value[:, :-1]) * mask
        loss = self.combined(
            policy=-(traced.advantage * evaluated.log_prob * mask).sum() / steps,
            value=error.square().sum() / steps,
            entropy=(evaluated.entropy * mask).sum() / steps,
            metrics={"ratio": (log_ratio.exp() * mask).sum() / steps},
        )
        yield loss._replace(amount=steps)

    def _evaluate(self, batch: TensorBatch) -> tuple[ActionEvaluation, Tensor]:
        """Evaluates the policy on B sequences of T steps.

        Returns log-probabilities of the actions and entropies, [B, T] each, and the state values
        [B, T + 1].
        """
        many, length = batch.mask.shape
        leaves = self.spec.unpack(batch.obs)
        flat = {name: leaf.flatten(0, 1) for name, leaf in leaves.items()}  # [B * (T + 1), *leaf]
        out, value = self.outputs(self.spec.pack(flat))
        acted = out.view(many, length + 1, -1)[:, :-1].flatten(0, 1)  # the last state has no action
        evaluated = self.policy.evaluate(acted, batch.action.flatten(0, 1))
        shaped = ActionEvaluation(*(part.view(many, length) for part in evaluated))
        return shaped, value.view(many, length + 1)


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    rho_clip: float,
    c_clip: float,
) -> VTrace:
    """Returns V-trace value targets and advantages for B sequences of T steps (IMPALA).

    `value` are the state values [B, T + 1]; all other arrays are [B, T].

    `log_ratio` is log(pi / mu), where pi is the present policy and mu the policy that acted. `mask`
    is 1 for steps of the episode and 0 for padding after its end. The targets bootstrap from the
    value of the state after the last step, unless the discount of that step is 0.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), discount * ratio.clamp(max=c_clip)
    delta = mask * rho * (reward + discount * value[:, 1:] - value[:, :-1])
    value_target = value.clone()  # [B, T + 1]
    carried = torch.zeros_like(value[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        carried = delta[:, t] + c[:, t] * carried
        value_target[:, t] += carried
    advantage = rho * (reward + discount * value_target[:, 1:] - value[:, :-1])
    return VTrace(value_target[:, :-1], advantage)
