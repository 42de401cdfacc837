"""Policies that give probabilities: one choice, several at once, or a point of a Gaussian.

    out = network(obs)                                   # [B, policy.width]
    action = policy.draw(out, rng)                       # acting, in numpy
    policy.log_prob(out, action)                         # [B]
    log_prob, entropy = policy.judge(out, action)        # learning, in torch, with gradients

Both sides compute the same numbers: those that an actor wrote are compared with those of later.
"""

import math
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.chance import drawn, normal, some_other, some_others, some_random
from rookery.types import ActionSpec, Array, Bools, Floats

LOG_TAU = math.log(2.0 * math.pi)


class Judged(NamedTuple):
    """What a policy thinks of B actions that were taken."""

    log_prob: Tensor  # [B]
    entropy: Tensor  # [B] of the policy where they were taken


class Policy(nn.Module):
    """Turns a network's outputs into actions. It may have parameters of its own."""

    width: int  # outputs it needs

    def draw(self, out: Floats, rng: np.random.Generator) -> Array:
        """Draws actions for [E, width] outputs."""
        raise NotImplementedError

    def best(self, out: Floats) -> Array:
        """Returns the likeliest actions."""
        raise NotImplementedError

    def disturb(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        """Puts uniformly random actions in the place of a share of them.

        Of one choice a mask [E, n] says which are allowed; nothing else has one.
        """
        raise NotImplementedError

    def log_prob(self, out: Floats, action: Array) -> Floats:
        """Returns [E] log-probabilities, or log-densities."""
        raise NotImplementedError

    def judge(self, out: Tensor, action: Tensor) -> Judged:
        """Returns log-probabilities and entropies, with gradients."""
        raise NotImplementedError


class Choice(Policy):
    """One of n options."""

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.width = action.n

    def draw(self, out: Floats, rng: np.random.Generator) -> Array:
        return drawn(out, rng)

    def best(self, out: Floats) -> Array:
        action: Array = out.argmax(1)
        return action

    def disturb(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return some_other(action, self.width, epsilon, rng, mask)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        return _log_softmax(out)[np.arange(len(out)), action]

    def judge(self, out: Tensor, action: Tensor) -> Judged:
        log_prob = F.log_softmax(out, 1)
        entropy = -(log_prob.exp() * log_prob).sum(1)
        return Judged(log_prob.gather(1, action[:, None]).squeeze(1), entropy)


class Choices(Policy):
    """Several choices at once, each by itself."""

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.parts = [Choice(ActionSpec(n=size)) for size in action.sizes]
        self.sizes, self.width = action.sizes, sum(action.sizes)
        self._cuts = list(accumulate(action.sizes))[:-1]

    def draw(self, out: Floats, rng: np.random.Generator) -> Array:
        return np.stack([drawn(part, rng) for part in self._cut(out)], axis=1)

    def best(self, out: Floats) -> Array:
        return np.stack([part.argmax(1) for part in self._cut(out)], axis=1)

    def disturb(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return some_others(action, self.sizes, epsilon, rng)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        parts = zip(self.parts, self._cut(out), action.T, strict=True)
        total: Floats = np.sum([part.log_prob(own, chosen) for part, own, chosen in parts], axis=0)
        return total

    def judge(self, out: Tensor, action: Tensor) -> Judged:
        outs = torch.split(out, list(self.sizes), 1)
        parts = zip(self.parts, outs, action.unbind(1), strict=True)
        judged = [part.judge(own, chosen) for part, own, chosen in parts]
        log_probs, entropies = zip(*judged, strict=True)
        return Judged(torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0))

    def _cut(self, out: Floats) -> list[Floats]:
        return np.split(out, self._cuts, axis=1)


class Gaussian(Policy):
    """A point near the network's output. How near does not depend on the observation.

    A point may lie outside of -1 to 1; the environment gets the nearest one inside, and the row
    keeps what was drawn, whose probability is known.
    """

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.shape, self.width = action.shape, math.prod(action.shape)
        self.log_std = nn.Parameter(torch.zeros(self.width))

    def draw(self, out: Floats, rng: np.random.Generator) -> Array:
        return self._shaped(out + np.exp(self._log_std()) * normal(out.shape, rng))

    def best(self, out: Floats) -> Array:
        return self._shaped(out)

    def disturb(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return some_random(action, epsilon, rng)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        log_std = self._log_std()
        far = (action.reshape(out.shape) - out) * np.exp(-log_std)
        each = -0.5 * (far * far + np.float32(LOG_TAU)) - log_std
        return each.sum(1)  # type: ignore[no-any-return]

    def judge(self, out: Tensor, action: Tensor) -> Judged:
        far = (action.reshape(out.shape) - out) * torch.exp(-self.log_std)
        each = -0.5 * (far.square() + LOG_TAU) - self.log_std
        entropy = (0.5 * (1.0 + LOG_TAU) + self.log_std).sum()
        return Judged(each.sum(1), entropy.expand(len(out)))

    def _shaped(self, action: Floats) -> Array:
        return action.reshape(len(action), *self.shape)

    def _log_std(self) -> Floats:
        return self.log_std.detach().cpu().numpy()


def policy_for(action: ActionSpec) -> Policy:
    """Returns the policy that an environment's actions need."""
    kind: Any = Choice if action.discrete else Choices if action.several else Gaussian
    policy: Policy = kind(action)
    return policy


def _log_softmax(logits: Floats) -> Floats:
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))  # type: ignore[no-any-return]
