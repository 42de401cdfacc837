"""A learner that computes gradients and applies them in two calls, e.g. for a parameter server.

    computed = learner.gradients(batch)          # clipped gradients of all losses
    learner.take(computed.arrays)                # applies them with one optimizer step
    learner.load(parameters, learner_steps)      # or loads parameters that a server has updated

For an algorithm with one loss, `gradients` and `take` together equal one `learn`. Gradients and
parameters are dicts of arrays, named as in `algorithm.networks`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from rookery.algorithms.algorithm import Algorithm, Loss
from rookery.config.schema import EnvConfig, LearnerConfig
from rookery.errors import ConfigError
from rookery.learner.learner import Learner, trained
from rookery.types import Array, SampledBatch


class ComputedGradients(NamedTuple):
    """The clipped gradients of a batch, its TD errors, and metrics for the log."""

    arrays: dict[str, Array]
    td_error: Array | None  # [B]
    metrics: dict[str, Tensor]


class _NoStepOptimizer:
    """Stands in for an optimizer where gradients are only computed: `step` does nothing."""

    def step(self) -> None: ...


def no_step_optimizer() -> torch.optim.Optimizer:
    """Returns an optimizer whose `step` does nothing.

    It is not a real torch optimizer, because creating the first of those imports the torch
    compiler, which takes seconds.
    """
    return cast(torch.optim.Optimizer, _NoStepOptimizer())


class GradientLearner(Learner):
    """A learner that can also compute gradients without applying them.

    For an algorithm with several losses, `learn` takes an optimizer step after each loss, while
    `gradients` computes the gradients of all losses at the same parameters.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: LearnerConfig,
        env: EnvConfig,
        device: torch.device,
        *,
        seed: int = 0,
    ):
        super().__init__(algorithm, config, env, device, seed=seed)
        self.trained = trained(self.algorithm)

    def gradients(self, batch: SampledBatch) -> ComputedGradients | None:
        """Computes the clipped gradients of a batch without an optimizer step.

        Returns None if a loss or gradient is not finite; raises LostError if that has happened for
        `learner.max_bad_steps` batches in a row.
        """
        td_error: Tensor | None = None
        metrics: dict[str, Tensor] = {}
        step = self.learner_steps + 1
        for own in self.algorithm.losses(self._to_device(batch), step=step, rng=self.rng):
            loss, norm = self._descend(own)
            if not self._clip(loss, norm):
                self._skip()
                return None
            td_error = loss.td_error if loss.td_error is not None else td_error
            metrics[f"loss_{loss.group}" if metrics else "loss"] = loss.value.detach()
            metrics.update(loss.metrics)
        self.bad_steps = 0
        on_host = None if td_error is None else td_error.cpu().numpy()
        return ComputedGradients(_arrays(self._grads()), on_host, metrics)

    def _clip(self, loss: Loss, norm: Tensor) -> bool:
        """Clips the gradient to `max_grad_norm`; returns False if it or the loss is not finite."""
        optimizers = self.optimizers
        self.optimizers = dict.fromkeys(optimizers, no_step_optimizer())
        try:
            return self._step(loss, norm)
        finally:
            self.optimizers = optimizers

    def _grads(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trained.items():
            assert parameter.grad is not None, "gradients are views of one flat tensor"
            yield name, parameter.grad

    def take(self, gradients: Mapping[str, Array]) -> None:
        """Applies gradients: takes one optimizer step with them, and updates target networks.

        Raises ConfigError if names or shapes are not those of the trained parameters.
        """
        self._refuse_others(gradients, "gradients")
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
        self._refuse_others(parameters, "parameters")
        for name, parameter in self.trained.items():
            parameter.copy_(_tensor(parameters[name]))
        self._update_targets(learner_steps)

    def _update_targets(self, learner_steps: int) -> None:
        if learner_steps == 0:
            self.algorithm.update_targets(0)
        for _ in range(learner_steps):
            self.learner_steps += 1
            self.algorithm.update_targets(self.learner_steps)

    def _refuse_others(self, given: Mapping[str, Array], what: str) -> None:
        wrong = sorted(self.trained.keys() ^ given.keys())
        wrong += [
            f"{name} {np.shape(given[name])} for {tuple(parameter.shape)}"
            for name, parameter in self.trained.items()
            if name in given and np.shape(given[name]) != tuple(parameter.shape)
        ]
        if wrong:
            raise ConfigError(
                f"these {what} are of another network: {', '.join(wrong[:8])}; make both agents "
                "with the same algorithm, environment and settings"
            )


def _arrays(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Array]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors}


def _tensor(array: Array) -> Tensor:
    """Copies an array to a tensor; without a copy, torch would warn about read-only arrays."""
    return torch.from_numpy(np.array(array))
