"""Exploration that is learned: layers whose weights are disturbed (Fortunato et al. 2018).

shake(network, generator)    # other weights for what follows
quiet(network)               # the mean weights: greedy
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIGMA0 = 0.5  # of Fortunato et al. 2018, section 3.2


class NoisyLinear(nn.Module):
    """A linear layer whose weights have a mean and a deviation, both learned; born quiet.

    The noise is factorised: one number for each input and one for each output. It is no part of
    the weights: it neither travels nor is saved.
    """

    noise_in: Tensor  # [inputs]
    noise_out: Tensor  # [outputs]

    def __init__(self, inputs: int, outputs: int, sigma0: float = SIGMA0):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma0 * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma0 * bound))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)
        self.is_quiet = True

    def forward(self, x: Tensor) -> Tensor:
        """Returns (W + sigma * outer(out, in)) x + ..., without ever making that matrix."""
        mean = F.linear(x, self.weight, self.bias)
        if self.is_quiet:
            return mean
        deviation = F.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma)
        return torch.addcmul(mean, self.noise_out, deviation)

    @torch.inference_mode(False)
    def quiet(self) -> None:
        """Computes with the mean weights from now on."""
        self._hear(torch.zeros_like(self.noise_in), torch.zeros_like(self.noise_out))
        self.is_quiet = True

    @torch.inference_mode(False)  # what is drawn while acting may be needed for a gradient later
    def shake(self, generator: torch.Generator) -> None:
        """Draws new noise: on the generator's device, whichever this layer is on."""
        self._hear(_noise(len(self.noise_in), generator), _noise(len(self.noise_out), generator))
        self.is_quiet = False

    def _hear(self, noise_in: Tensor, noise_out: Tensor) -> None:
        """Takes new tensors, not new values: a gradient to come may need the old ones."""
        device = self.weight.device
        self.noise_in, self.noise_out = noise_in.to(device), noise_out.to(device)


def shake(module: nn.Module, generator: torch.Generator) -> None:
    """Draws new noise for all noisy layers of a module."""
    for layer in _noisy(module):
        layer.shake(generator)


def quiet(module: nn.Module) -> None:
    """Makes all noisy layers of a module compute with their mean weights."""
    for layer in _noisy(module):
        if not layer.is_quiet:  # a graph that is being exported must not change
            layer.quiet()


def _noisy(module: nn.Module) -> Iterator[NoisyLinear]:
    return (layer for layer in module.modules() if isinstance(layer, NoisyLinear))


def _noise(count: int, generator: torch.Generator) -> Tensor:
    """Returns sgn(x) sqrt|x| of Gaussian x."""
    x = torch.randn(count, generator=generator, device=generator.device)
    return x.sign() * x.abs().sqrt()
