"""A learner whose step is in two: gradients first, the step afterwards or by somebody else.

    computed = learner.gradients(batch)          # what `learn` would have stepped by
    learner.take(computed.arrays)                # here: together they are `learn`
    learner.load(parameters, learner_steps)      # or: parameters that a server has stepped

Gradients and parameters are named as in `algorithm.networks`, in the optimizers' order.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from rookery.algos.interface import Loss
from rookery.errors import ConfigError
from rookery.learner import Learner, trained
from rookery.types import Array, Batch


class Computed(NamedTuple):
    """A batch's gradients, clipped as they are stepped by, and what was learned on the way."""

    arrays: dict[str, Array]
    td_error: Array | None  # [B]
    metrics: dict[str, Tensor]


class _Still:
    """An optimizer that takes no step."""

    def step(self) -> None: ...


def still() -> torch.optim.Optimizer:
    """Returns one. Not derived from torch's: the first of those imports a compiler, for seconds."""
    return cast(torch.optim.Optimizer, _Still())


class Apart(Learner):
    """Learns as a `Learner` does, bit for bit, or in two parts.

    Where an algorithm has several losses, `learn` takes a step after each, and in two parts all
    gradients are of the same parameters.
    """

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.trained = trained(self.algorithm)

    def gradients(self, batch: Batch) -> Computed | None:
        """Computes and steps nothing; None where a loss or a gradient is not finite."""
        td_error: Tensor | None = None
        metrics: dict[str, Tensor] = {}
        step = self.learner_steps + 1
        for own in self.algorithm.losses(self._here(batch), step=step, rng=self.rng):
            loss, norm = self._descend(own)
            if not self._clipped(loss, norm):
                self._skip()
                return None
            td_error = loss.td_error if loss.td_error is not None else td_error
            metrics[f"loss_{loss.group}" if metrics else "loss"] = loss.value.detach()
            metrics.update(loss.metrics)
        self.bad_steps = 0
        ranked = None if td_error is None else td_error.cpu().numpy()
        return Computed(_arrays(self._grads()), ranked, metrics)

    def _clipped(self, loss: Loss, norm: Tensor) -> bool:
        """Does what a step does before the optimizer; False where the gradient is not finite."""
        stepping = self.optimizers
        self.optimizers = dict.fromkeys(stepping, still())
        try:
            return self._step(loss, norm)
        finally:
            self.optimizers = stepping

    def _grads(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trained.items():
            assert parameter.grad is not None, "they are views of one piece of memory"
            yield name, parameter.grad

    def take(self, gradients: Mapping[str, Array]) -> None:
        """Takes an optimizer step by gradients that were computed elsewhere, or before."""
        self._refuse_others(gradients, "gradients")
        for name, grad in self._grads():
            grad.copy_(_tensor(gradients[name]))
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._settle(1)

    def parameters(self) -> dict[str, Array]:
        """Returns copies of everything that is trained, by name."""
        return _arrays(iter(self.trained.items()))

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Array], learner_steps: int) -> None:
        """Takes parameters over that were stepped so many times since the last ones.

        With 0 they are where learning begins: target networks take them too.
        """
        self._refuse_others(parameters, "parameters")
        for name, parameter in self.trained.items():
            parameter.copy_(_tensor(parameters[name]))
        self._settle(learner_steps)

    def _settle(self, learner_steps: int) -> None:
        if learner_steps == 0:
            self.algorithm.settle(0)
        for _ in range(learner_steps):
            self.learner_steps += 1
            self.algorithm.settle(self.learner_steps)

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
    """A copy: a server's parameters cannot be written to, which torch warns of."""
    return torch.from_numpy(np.array(array))
