"""Multi-layer perceptrons (MLPs), and `build`, which builds the network of the settings `net`."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery import plugins
from rookery.config.schema import Activation, Init, NetConfig
from rookery.errors import ConfigError
from rookery.networks.encoders import Features, Normalize
from rookery.networks.noisy import SIGMA0, NoisyLinear
from rookery.types import EnvSpec

# Some work in place: their input is the output of the layer before, and has no other use.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.RELU: torch.relu_,
    Activation.TANH: torch.tanh_,
    Activation.ELU: F.elu,
    Activation.GELU: F.gelu,
    Activation.SILU: F.silu,
}


class Perceptron(nn.Module):
    """A multi-layer perceptron with observation encoders, from B observations to [B, outputs]."""

    def __init__(
        self,
        spec: EnvSpec,
        outputs: int,
        config: NetConfig,
        *,
        normalize: bool,
        layer: Callable[[int, int], Any] = nn.Linear,
    ):
        super().__init__()
        self.features = Features(spec, normalize, config.image)
        self._plain = self.features.plain and not self.features.names[0]  # the input is one vector
        widths = [self.features.width, *config.hidden]
        self.hidden = nn.ModuleList(layer(a, b) for a, b in pairwise(widths))
        self.out = layer(widths[-1], outputs)
        self.activate = ACTIVATIONS[config.activation]
        if config.init is Init.ORTHOGONAL:
            _make_orthogonal(self)

    def forward(self, obs: Any) -> Tensor:
        """Returns the outputs [B, outputs] for a batch of B observations.

        Calls torch functions instead of layer modules, which halves the cost of small layers.
        """
        x = obs if self._plain else self.features(obs)
        for layer in self.hidden:
            x = self.activate(F.linear(x, layer.weight, layer.bias))  # type: ignore[arg-type]
        return F.linear(x, self.out.weight, self.out.bias)


@torch.no_grad()
def _make_orthogonal(network: Perceptron) -> None:
    """Draws orthogonal weights (Saxe et al. 2014): gain sqrt(2), but 1 for the last layer."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, 1.0 if layer is network.out else math.sqrt(2.0))
            if layer.bias is not None:
                layer.bias.zero_()


class NoisyPerceptron(Perceptron):
    """A multi-layer perceptron whose linear layers are noisy (Fortunato et al. 2018)."""

    def forward(self, obs: Any) -> Tensor:
        x = self.features(obs)
        for layer in self.hidden:
            x = self.activate(layer(x))
        return self.out(x)  # type: ignore[no-any-return]


def build(
    config: NetConfig,
    spec: EnvSpec,
    outputs: int,
    *,
    normalize: bool = False,
    noisy: bool = False,
    sigma0: float = SIGMA0,
) -> nn.Module:
    """Builds the network that the settings `net` describe.

    It is an MLP with observation encoders, or the custom network that `net.custom` names, and maps
    a batch of B observations to [B, outputs].
    """
    if config.custom is not None:
        made = _custom(config, spec, outputs)
        _refuse_missing(config.custom, made, normalize=normalize, noisy=noisy)
        return made
    if not noisy:
        return Perceptron(spec, outputs, config, normalize=normalize)
    layer = partial(NoisyLinear, sigma0=sigma0)
    return NoisyPerceptron(spec, outputs, config, normalize=normalize, layer=layer)


def _refuse_missing(custom: str, made: nn.Module, *, normalize: bool, noisy: bool) -> None:
    if normalize and not any(isinstance(part, Normalize) for part in made.modules()):
        raise ConfigError(
            f"env.normalize_obs is true, but net.custom {custom!r} does not normalise; "
            "begin it with rookery.networks.encoders.Features(spec, normalize=True), or switch "
            "normalisation off"
        )
    if noisy and not any(isinstance(part, NoisyLinear) for part in made.modules()):
        raise ConfigError(
            f"algo.noisy is true, but net.custom {custom!r} has none; "
            "build it with rookery.networks.noisy.NoisyLinear layers, or set algo.noisy=false"
        )


def _custom(config: NetConfig, spec: EnvSpec, outputs: int) -> nn.Module:
    try:
        made = plugins.load(str(config.custom))(spec, outputs, **config.kwargs)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"net.custom {config.custom!r} could not be built: {error}; it must be module:Class, "
            "importable from here, called as Class(spec, outputs, **net.kwargs)"
        ) from error
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"net.custom {config.custom!r} made a {type(made).__name__}; "
            "it must be a torch.nn.Module that maps observations to [B, outputs]"
        )
    return made
