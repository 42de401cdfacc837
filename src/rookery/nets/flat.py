"""Parameters laid side by side: one tensor to step, one gradient to look at.

A small network's update is mostly the calls around its arithmetic, and those are made once for each
parameter. Here all of them are views of one tensor, and so are their gradients.
"""

import torch
from torch import Tensor, nn

from rookery.errors import ConfigError


class Flat:
    """Moves parameters, and the gradients they will get, into one piece of memory each.

    `alone`: no loss goes through trained parameters but these.
    """

    def __init__(self, parameters: list[nn.Parameter], *, alone: bool = False):
        _refuse_mixture(parameters)
        self.data = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        self.grad = torch.zeros_like(self.data)
        self.data.grad = self.grad
        self._wanted = None if alone else parameters  # naming them costs 1 % of a small update
        sizes = [p.numel() for p in parameters]
        values, grads = torch.split(self.data.detach(), sizes), torch.split(self.grad, sizes)
        for parameter, value, grad in zip(parameters, values, grads, strict=True):
            parameter.data, parameter.grad = value.view_as(parameter), grad.view_as(parameter)

    def descend(self, loss: Tensor) -> Tensor:
        """Computes the loss's gradient; returns its norm, []."""
        self.grad.zero_()
        loss.backward(inputs=self._wanted)  # type: ignore[no-untyped-call]
        return torch.linalg.vector_norm(self.grad)  # type: ignore[no-any-return]


def _refuse_mixture(parameters: list[nn.Parameter]) -> None:
    kinds = {f"{p.dtype} on {p.device}" for p in parameters}
    if len(kinds) != 1:
        raise ConfigError(
            f"a network's parameters must be of one kind, got {', '.join(sorted(kinds)) or 'none'};"
            " give net.custom parameters of one dtype"
        )
