"""A learner that computes gradients and applies them in two calls, e.g. for a parameter server.

    computed = learner.gradients(batch)          # clipped gradients of all losses
    learner.take(computed.arrays)                # applies them with one optimizer step
    learner.load(parameters, learner_steps)      # or loads parameters that a server has updated

For an algorithm with one loss, `gradients` and `take` together equal one `learn`. Gradients and
parameters are dicts of arrays, named as in `algorithm.networks`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rookery.errors import ConfigError
from rookery.learner.learner import Learner, trained
from rookery.networks.named_arrays import misfits
from rookery.types import Array, SampledBatch


class ComputedGradients(NamedTuple):
    """The clipped gradients of a batch, its TD errors, and metrics for the log."""

    arrays: dict[str, Array]
    td_error: Array | None  # [B]
    metrics: dict[str, Tensor]


class GradientLearner(Learner):
    """A learner that can also compute gradients without applying them.

    For an algorithm with several losses, `learn` takes an optimizer step after each loss, while
    `gradients` computes the gradients of all losses at the same parameters.
    """

    @cached_property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in the order of the optimizers."""
        return trained(self.algorithm)

    def gradients(self, batch: SampledBatch) -> ComputedGradients | None:
        """Computes the clipped gradients of a batch without an optimizer step.

        Returns None if a loss or gradient is not finite; raises LostError if that has happened for
        `learner.max_bad_steps` batches in a row.
        """
        learned = self._descend_finite(batch, apply=lambda group: None)
        if learned is None:
            self._skip()
            return None
        return ComputedGradients(_arrays(self._grads()), *learned)

    def _grads(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trained.items():
            assert parameter.grad is not None, "gradients are views of one flat tensor"
            yield name, parameter.grad

    def take(self, gradients: Mapping[str, Array]) -> None:
        """Applies gradients: takes one optimizer step with them, and updates target networks.

        Raises ConfigError if names or shapes are not those of the trained parameters.
        """
        refuse_others(gradients, self.trained, "gradients")
        for name, grad in self._grads():
            grad.copy_(_tensor(gradients[name]))
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._update_targets(1)

    def parameters(self) -> dict[str, Array]:
        """Returns copies of the trained parameters, by name."""
        return _arrays(iter(self.trained.items()))

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Array], learner_steps: int) -> None:
        """Loads parameters, e.g. of a parameter server, and updates the target networks.

        `learner_steps` is the number of gradient steps between the present and the new parameters;
        target networks are updated that many times. With 0, the parameters are the initial ones,
        and target networks are set to them. Raises ConfigError for parameters of another network.
        """
        refuse_others(parameters, self.trained, "parameters")
        for name, parameter in self.trained.items():
            parameter.copy_(_tensor(parameters[name]))
        if learner_steps == 0:
            self.algorithm.update_targets(0)
        self._update_targets(learner_steps)


def refuse_others(
    given: Mapping[str, Array], parameters: Mapping[str, nn.Parameter], what: str
) -> None:
    """Raises ConfigError if names or shapes are not those of a network's parameters."""
    if wrong := misfits(given, parameters):
        raise ConfigError(
            f"these {what} are of another network: {', '.join(wrong[:8])}; use the same "
            "algorithm, environment and settings on both sides"
        )


def _arrays(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Array]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors}


def _tensor(array: Array) -> Tensor:
    """Copies an array to a tensor; without a copy, torch would warn about read-only arrays."""
    return torch.from_numpy(np.array(array))
