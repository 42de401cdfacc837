"""Action distributions of policies: categorical, multi-categorical (MultiDiscrete) or Gaussian.

    out = network(obs)                                   # [B, policy.width]
    action = policy.sample(out, rng)                     # acting, in numpy
    policy.log_prob(out, action)                         # [B]
    log_prob, entropy = policy.evaluate(out, action)     # learning, in torch, with gradients

The numpy and torch versions give the same log-probabilities, because importance ratios compare
those that actors stored with those that the learner computes.
"""

import math
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algorithms.exploration import (
    explore_continuous,
    explore_discrete,
    explore_multi_discrete,
    normal,
    sample_categorical,
)
from rookery.types import ActionSpec, Array, Bools, Floats

LOG_TAU = math.log(2.0 * math.pi)


class ActionEvaluation(NamedTuple):
    """Log-probabilities of a batch of actions, and the policy's entropies in the same states."""

    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]


class PolicyDistribution(nn.Module):
    """Base class of action distributions, whose parameters are a network's outputs.

    A subclass may also have learned parameters of its own, such as the log std of `GaussianPolicy`.
    """

    width: int  # number of network outputs it needs

    def sample(self, out: Floats, rng: np.random.Generator) -> Array:
        """Samples an action for each of E environments, given network outputs [E, width]."""
        raise NotImplementedError

    def mode(self, out: Floats) -> Array:
        """Returns the most likely action in each of E environments, given outputs [E, width]."""
        raise NotImplementedError

    def explore(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        """Replaces each of E environments' actions by a random one with probability `epsilon`.

        Random actions are uniform. With an action mask [E, n], random actions are allowed ones.
        Masks are supported for a single discrete action only.
        """
        raise NotImplementedError

    def log_prob(self, out: Floats, action: Array) -> Floats:
        """Returns the log-probabilities (or log-densities) of actions, in numpy, for acting.

        `out` are the network outputs for each of E environments; the result is [E].
        """
        raise NotImplementedError

    def evaluate(self, out: Tensor, action: Tensor) -> ActionEvaluation:
        """Returns log-probabilities of actions and the policy's entropies, in torch with gradients.

        `out` are the network outputs for a batch. Used for learning.
        """
        raise NotImplementedError


class CategoricalPolicy(PolicyDistribution):
    """Categorical distribution of one discrete action with n choices."""

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.width = action.n

    def sample(self, out: Floats, rng: np.random.Generator) -> Array:
        return sample_categorical(out, rng)

    def mode(self, out: Floats) -> Array:
        action: Array = out.argmax(1)
        return action

    def explore(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return explore_discrete(action, self.width, epsilon, rng, mask)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        return _log_softmax(out)[np.arange(len(out)), action]

    def evaluate(self, out: Tensor, action: Tensor) -> ActionEvaluation:
        log_prob = F.log_softmax(out, 1)
        entropy = -(log_prob.exp() * log_prob).sum(1)
        return ActionEvaluation(log_prob.gather(1, action[:, None]).squeeze(1), entropy)


class MultiCategoricalPolicy(PolicyDistribution):
    """Independent categorical distributions of several discrete actions (MultiDiscrete)."""

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.parts = [CategoricalPolicy(ActionSpec(n=size)) for size in action.sizes]
        self.sizes, self.width = action.sizes, sum(action.sizes)
        self._cuts = list(accumulate(action.sizes))[:-1]

    def sample(self, out: Floats, rng: np.random.Generator) -> Array:
        return np.stack([sample_categorical(part, rng) for part in self._cut(out)], axis=1)

    def mode(self, out: Floats) -> Array:
        return np.stack([part.argmax(1) for part in self._cut(out)], axis=1)

    def explore(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return explore_multi_discrete(action, self.sizes, epsilon, rng)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        parts = zip(self.parts, self._cut(out), action.T, strict=True)
        total: Floats = np.sum([part.log_prob(own, chosen) for part, own, chosen in parts], axis=0)
        return total

    def evaluate(self, out: Tensor, action: Tensor) -> ActionEvaluation:
        outs = torch.split(out, list(self.sizes), 1)
        parts = zip(self.parts, outs, action.unbind(1), strict=True)
        evaluated = [part.evaluate(own, chosen) for part, own, chosen in parts]
        log_probs, entropies = zip(*evaluated, strict=True)
        return ActionEvaluation(torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0))

    def _cut(self, out: Floats) -> list[Floats]:
        return np.split(out, self._cuts, axis=1)


class GaussianPolicy(PolicyDistribution):
    """Gaussian actions: the mean is the network's output, the log std a learned parameter.

    The log std does not depend on the state. A sampled action may lie outside [-1, 1]. The
    environment gets the clipped action. Replay stores the sample itself, because the
    log-probability belongs to it.
    """

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.shape, self.width = action.shape, math.prod(action.shape)
        self.log_std = nn.Parameter(torch.zeros(self.width))

    def sample(self, out: Floats, rng: np.random.Generator) -> Array:
        return self._shaped(out + np.exp(self._log_std()) * normal(out.shape, rng))

    def mode(self, out: Floats) -> Array:
        return self._shaped(out)

    def explore(
        self, action: Array, epsilon: float, rng: np.random.Generator, mask: Bools | None = None
    ) -> Array:
        return explore_continuous(action, epsilon, rng)

    def log_prob(self, out: Floats, action: Array) -> Floats:
        log_std = self._log_std()
        far = (action.reshape(out.shape) - out) * np.exp(-log_std)
        each = -0.5 * (far * far + np.float32(LOG_TAU)) - log_std
        return each.sum(1)  # type: ignore[no-any-return]

    def evaluate(self, out: Tensor, action: Tensor) -> ActionEvaluation:
        far = (action.reshape(out.shape) - out) * torch.exp(-self.log_std)
        each = -0.5 * (far.square() + LOG_TAU) - self.log_std
        entropy = (0.5 * (1.0 + LOG_TAU) + self.log_std).sum()
        return ActionEvaluation(each.sum(1), entropy.expand(len(out)))

    def _shaped(self, action: Floats) -> Array:
        return action.reshape(len(action), *self.shape)

    def _log_std(self) -> Floats:
        return self.log_std.detach().cpu().numpy()


def distribution_for(action: ActionSpec) -> PolicyDistribution:
    """Returns the action distribution for an environment's action space."""
    kind: Any = (
        CategoricalPolicy
        if action.discrete
        else MultiCategoricalPolicy
        if action.several
        else GaussianPolicy
    )
    policy: PolicyDistribution = kind(action)
    return policy


def _log_softmax(logits: Floats) -> Floats:
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))  # type: ignore[no-any-return]
