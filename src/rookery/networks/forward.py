"""Fast forward passes for actors, from numpy observations to numpy outputs.

Actors call small networks with few observations, thousands of times a second. In that case torch's
overhead per call is larger than the arithmetic itself, and a small multi-layer perceptron is called
in a form that is compiled with numba (`CompiledMlp`).
"""

from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import nn

from rookery.networks.mlp import Perceptron
from rookery.types import Array, Obs

MOST_WORK = 1 << 20  # multiplications beyond which torch is faster


class FastForward:
    """Calls a network with numpy inputs and outputs, with torch or in a form compiled with numba.

    A small multi-layer perceptron on the CPU is compiled, which is faster for few observations. The
    compiled form is built at the first call, because a learner may move the parameters in memory
    before that call.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._parameter = next(module.parameters(), None)
        self._compiled: CompiledMlp | Literal[False] | None = None  # None: not decided yet

    def __call__(self, obs: Obs) -> Array:
        """Returns the network's outputs [E, outputs] for the observations of E environments."""
        if self._compiled is None:
            self._compiled = CompiledMlp.of(self.module) or False
        if self._compiled:
            flat = obs[self._compiled.leaf] if isinstance(obs, dict) else obs
            if self._compiled.fits(flat):
                return self._compiled(flat)
        with torch.inference_mode():
            return self.module(tensors(obs, self._device)).cpu().numpy()  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self._parameter is None else self._parameter.device


def tensors(obs: Obs, device: torch.device) -> Any:
    """Converts an observation's arrays to tensors on a device; on the CPU without copying."""
    if isinstance(obs, dict):
        return {name: torch.from_numpy(leaf).to(device) for name, leaf in obs.items()}
    return torch.from_numpy(obs).to(device)


class CompiledMlp:
    """Forward pass of a `Perceptron` for flat float32 observations, compiled with numba.

    It reads the memory of the network's parameters, so weights that are loaded in place take effect
    at once.
    """

    def __init__(self, net: Perceptron):
        layers: list[nn.Linear] = [*net.hidden, net.out]
        self._widths = np.array(
            [layers[0].in_features, *(layer.out_features for layer in layers)], dtype=np.int64
        )
        self._widest, self._outputs = int(self._widths.max()), net.out.out_features
        self._scratch = np.empty((2, 0, self._widest), dtype=np.float32)
        self._flat = _flatten(layers)
        self._first, self._address = layers[0].weight, layers[0].weight.data_ptr()
        self.leaf = net.features.names[0]  # of a Dict, the one besides the mask; "" without a Dict

    @classmethod
    def of(cls, net: nn.Module) -> "CompiledMlp | None":
        """Returns the compiled form of a network, or None if it cannot be compiled.

        Only a `Perceptron` with ReLU on the CPU can be, with flat observations, not normalised.
        """
        if type(net) is not Perceptron or not net.features.plain:
            return None
        movable = all(p.device.type == "cpu" and _is_alone(p) for p in net.parameters())
        return cls(net) if movable and net.activate is torch.relu_ else None

    def fits(self, obs: Any) -> bool:
        """Returns whether the compiled forward pass can be used for a batch of observations.

        The batch must be small, and the network's weights must not have moved in memory.
        """
        little = isinstance(obs, np.ndarray) and len(obs) * self._flat.size <= MOST_WORK
        return little and self._first.data_ptr() == self._address

    def __call__(self, obs: Array) -> Array:
        """Returns the outputs [E, outputs] for the observations [E, inputs] of E environments."""
        if self._scratch.shape[1] < len(obs):
            self._scratch = np.empty((2, len(obs), self._widest), dtype=np.float32)
        out = np.empty((len(obs), self._outputs), dtype=np.float32)
        _forward(obs, self._flat, self._widths, self._scratch, out)
        return out


def _is_alone(parameter: nn.Parameter) -> bool:
    """Returns whether no other tensor shares a parameter's memory, so that it can be moved."""
    return parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


def _flatten(layers: list[nn.Linear]) -> Array:
    """Moves the parameters of linear layers into one flat array and returns it.

    The parameters become views of that array. Weights are stored as [inputs, outputs], so that the
    compiled loops run along outputs.
    """
    parts = [(layer.weight.detach().t().reshape(-1), layer.bias.detach()) for layer in layers]
    flat = torch.cat([piece for pair in parts for piece in pair])
    at = 0
    for layer in layers:
        inputs, outputs = layer.in_features, layer.out_features
        bias = at + inputs * outputs
        layer.weight.data = flat[at:bias].view(inputs, outputs).t()
        layer.bias.data = flat[bias : bias + outputs]
        at = bias + outputs
    return flat.numpy()


@njit(cache=True, nogil=True)
def _forward(x, flat, widths, scratch, out):  # type: ignore[no-untyped-def]
    at, last = 0, widths.size - 2
    for layer in range(last + 1):
        inputs, outputs = widths[layer], widths[layer + 1]
        bias = at + inputs * outputs
        weight = flat[at:bias].reshape((inputs, outputs))
        for i in range(x.shape[0]):
            source = x[i] if layer == 0 else scratch[layer % 2, i, :inputs]
            target = out[i] if layer == last else scratch[(layer + 1) % 2, i, :outputs]
            target[:] = flat[bias : bias + outputs]
            _add_product(source, weight, target)
            if layer < last:
                np.maximum(target, np.float32(0.0), target)
        at = bias + outputs


@njit(cache=True, nogil=True, inline="always")
def _add_product(x, weight, y):  # type: ignore[no-untyped-def]
    """Adds x @ weight to y, four inputs at a time, which saves loads and stores of y."""
    k, inputs = 0, x.size
    while k + 4 <= inputs:
        a, b, c, d = x[k], x[k + 1], x[k + 2], x[k + 3]
        wa, wb, wc, wd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for j in range(y.size):
            y[j] += a * wa[j] + b * wb[j] + c * wc[j] + d * wd[j]
        k += 4
    while k < inputs:
        a, wa = x[k], weight[k]
        for j in range(y.size):
            y[j] += a * wa[j]
        k += 1
