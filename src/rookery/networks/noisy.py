"""Noisy networks: linear layers with learned noise for exploration (Fortunato et al. 2018).

resample_noise(network, generator)    # new noise for all noisy layers
remove_noise(network)                 # noisy layers use their mean weights
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIGMA0 = 0.5  # of Fortunato et al. 2018, section 3.2


class NoisyLinear(nn.Module):
    """A linear layer with a learned mean and standard deviation of each weight.

    The layer starts without noise. The noise is factorised: one random number for each input and
    one for each output. The noise is not part of the weights, so it is neither published to actors
    nor saved.
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
        self.is_noiseless = True

    def forward(self, x: Tensor) -> Tensor:
        """Returns the layer's output with noisy weights, without storing the noisy weight matrix.

        The noisy weights are weight + weight_sigma * outer(noise_out, noise_in), and the noisy bias
        is bias + bias_sigma * noise_out.
        """
        mean = F.linear(x, self.weight, self.bias)
        if self.is_noiseless:
            return mean
        deviation = F.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma)
        return torch.addcmul(mean, self.noise_out, deviation)

    @torch.inference_mode(False)
    def remove_noise(self) -> None:
        """Sets the noise to zero: the layer uses its mean weights."""
        self._set_noise(torch.zeros_like(self.noise_in), torch.zeros_like(self.noise_out))
        self.is_noiseless = True

    @torch.inference_mode(False)  # noise sampled while acting may be used for a gradient later
    def resample_noise(self, generator: torch.Generator) -> None:
        """Samples new noise for the layer with `generator`, which may be on another device."""
        self._set_noise(
            _noise(len(self.noise_in), generator), _noise(len(self.noise_out), generator)
        )
        self.is_noiseless = False

    def _set_noise(self, noise_in: Tensor, noise_out: Tensor) -> None:
        """Sets new noise tensors instead of overwriting the old ones in place.

        A later backward pass may still need the old ones.
        """
        device = self.weight.device
        self.noise_in, self.noise_out = noise_in.to(device), noise_out.to(device)


def resample_noise(module: nn.Module, generator: torch.Generator) -> None:
    """Samples new noise for all noisy layers of a module."""
    for layer in _noisy(module):
        layer.resample_noise(generator)


def remove_noise(module: nn.Module) -> None:
    """Makes all noisy layers of a module use their mean weights."""
    for layer in _noisy(module):
        if not layer.is_noiseless:  # an ONNX export must not change the module
            layer.remove_noise()


def _noisy(module: nn.Module) -> Iterator[NoisyLinear]:
    return (layer for layer in module.modules() if isinstance(layer, NoisyLinear))


def _noise(count: int, generator: torch.Generator) -> Tensor:
    """Returns sgn(x) sqrt(|x|) for `count` standard normal numbers x: factorised noise."""
    x = torch.randn(count, generator=generator, device=generator.device)
    return x.sign() * x.abs().sqrt()
