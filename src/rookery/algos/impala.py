"""IMPALA: actors that play with old weights, and V-trace, which corrects what they did.

Espeholt et al. 2018. Stretches of `algo.length` steps are drawn from a small replay.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.algos.actor_critic import LOG_PROB, ActorCritic, together
from rookery.algos.interface import Loss
from rookery.algos.policies import Judged
from rookery.config.algorithms import ImpalaConfig
from rookery.types import Batch


class Traced(NamedTuple):
    """What V-trace makes of B stretches of T steps."""

    wanted: Tensor  # [B, T] what the values should have been
    advantage: Tensor  # [B, T] of the actions, weighed by how likely they are now


class Impala(ActorCritic):
    """Discrete, several discrete, and continuous actions."""

    config: ImpalaConfig

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        mask, steps = batch.mask, batch.mask.sum()  # [B, T]
        judged, value = self._judged(batch)
        log_ratio = judged.log_prob.detach() - batch.extras[LOG_PROB]
        traced = vtrace(
            log_ratio,
            batch.reward,
            batch.discount,
            value.detach(),
            mask,
            rho_clip=self.config.rho_clip,
            c_clip=self.config.c_clip,
        )
        error = (traced.wanted - value[:, :-1]) * mask
        loss = together(
            self.config,
            policy=-(traced.advantage * judged.log_prob * mask).sum() / steps,
            value=error.square().sum() / steps,
            entropy=(judged.entropy * mask).sum() / steps,
            metrics={"ratio": (log_ratio.exp() * mask).sum() / steps},
        )
        yield loss._replace(amount=steps)

    def _judged(self, batch: Batch) -> tuple[Judged, Tensor]:
        """Returns what the policy thinks of [B, T] actions, and the values [B, T + 1]."""
        many, length = batch.mask.shape
        leaves = self.spec.unpack(batch.obs)
        flat = {name: leaf.flatten(0, 1) for name, leaf in leaves.items()}  # [B * (T + 1), *leaf]
        out, value = self.outputs(self.spec.pack(flat))
        acted = out.view(many, length + 1, -1)[:, :-1].flatten(0, 1)  # nobody acts in the last one
        judged = self.policy.judge(acted, batch.action.flatten(0, 1))
        shaped = Judged(*(part.view(many, length) for part in judged))
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
) -> Traced:
    """Returns targets and advantages for [B, T] steps with [B, T + 1] values.

    `log_ratio` says how much likelier the actions are by now. After an episode's end `mask` is 0;
    the state there is bootstrapped from where the last step's discount is not 0.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), discount * ratio.clamp(max=c_clip)
    delta = mask * rho * (reward + discount * value[:, 1:] - value[:, :-1])
    wanted = value.clone()  # [B, T + 1]
    carried = torch.zeros_like(value[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        carried = delta[:, t] + c[:, t] * carried
        wanted[:, t] += carried
    advantage = rho * (reward + discount * wanted[:, 1:] - value[:, :-1])
    return Traced(wanted[:, :-1], advantage)
