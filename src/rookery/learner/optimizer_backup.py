"""A copy of trained parameters and of their optimizer's state, to undo an optimizer step.

backup.save()
optimizer.step()
backup.restore()       # bit for bit as before the step
"""

import torch
from torch import Tensor, nn


class OptimizerBackup:
    """Copies one parameter group and its optimizer's state, into memory that is reused."""

    def __init__(self, parameter: nn.Parameter, optimizer: torch.optim.Optimizer):
        self._parameter, self._optimizer = parameter, optimizer
        self._saved: list[Tensor] = []

    def save(self) -> None:
        live = self._live()
        if len(self._saved) != len(live):
            self._saved = [torch.empty_like(tensor) for tensor in live]
        torch._foreach_copy_(self._saved, live)

    def restore(self) -> None:
        """Restores what `save` copied last."""
        live = self._live()
        torch._foreach_copy_(live[: len(self._saved)], self._saved)
        if len(live) > len(self._saved):  # the step was the first one
            self._optimizer.state.clear()

    def restore_where(self, undo: Tensor) -> None:
        """Restores what `save` copied last if the scalar `undo` is not 0, without reading it.

        The optimizer's state must have existed when it was saved (see `create_state`).
        """
        for live, saved in zip(self._live(), self._saved, strict=True):
            live.copy_(torch.where(undo > 0, saved, live))

    def create_state(self) -> None:
        """Creates the optimizer's state, which it otherwise creates in its first step.

        It is that before the first step: all zero.
        """
        parameter = self._parameter.detach().clone()
        assert self._parameter.grad is not None, "gradients are one flat tensor"
        self._parameter.grad.zero_()
        self._optimizer.step()
        live, *moments = self._live()
        live.copy_(parameter)
        for moment in moments:
            moment.zero_()

    def _live(self) -> list[Tensor]:
        """Returns the parameters, then the tensors of the optimizer's state, such as moments."""
        state = self._optimizer.state.get(self._parameter, {})
        moments = [value for value in state.values() if isinstance(value, Tensor)]
        return [self._parameter.detach(), *moments]
