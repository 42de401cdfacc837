"""A plain perceptron's forward pass, compiled.

Acting asks small networks about few observations, thousands of times a second. There torch spends
its time on everything but arithmetic, and its code pushes the environment's out of the caches.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import nn

from rookery.nets.build import Perceptron
from rookery.types import Array

MOST_WORK = 1 << 20  # multiplications beyond which torch is the faster one


class Quick:
    """Computes what a Perceptron does, for flat float32 observations, without torch.

    It reads the network's own memory: weights that are loaded in place are seen at once.
    """

    def __init__(self, net: Perceptron):
        layers: list[nn.Linear] = [*net.hidden, net.out]
        self._widths = np.array(
            [layers[0].in_features, *(layer.out_features for layer in layers)], dtype=np.int64
        )
        self._widest, self._outputs = int(self._widths.max()), net.out.out_features
        self._scratch = np.empty((2, 0, self._widest), dtype=np.float32)
        self._flat = _flatten(layers)
        self._first, self._place = layers[0].weight, layers[0].weight.data_ptr()
        self.leaf = net.features.names[0]  # of a Dict, the one leaf that is no mask; "": no Dict

    @classmethod
    def of(cls, net: nn.Module) -> "Quick | None":
        """Returns the compiled form of a network that has one and whose weights may be moved."""
        if type(net) is not Perceptron or not net.features.plain:
            return None
        movable = all(p.device.type == "cpu" and _is_alone(p) for p in net.parameters())
        return cls(net) if movable and net.activate is torch.relu_ else None

    def fits(self, obs: Any) -> bool:
        """Is this little enough work, and are the weights still where they were laid?"""
        little = isinstance(obs, np.ndarray) and len(obs) * self._flat.size <= MOST_WORK
        return little and self._first.data_ptr() == self._place

    def __call__(self, obs: Array) -> Array:
        """Returns [E, outputs] for [E, inputs]."""
        if self._scratch.shape[1] < len(obs):
            self._scratch = np.empty((2, len(obs), self._widest), dtype=np.float32)
        out = np.empty((len(obs), self._outputs), dtype=np.float32)
        _forward(obs, self._flat, self._widths, self._scratch, out)
        return out


def _is_alone(parameter: nn.Parameter) -> bool:
    """Does nothing else lie in its memory? Where something does, an optimizer may rely on that."""
    return parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


def _flatten(layers: list[nn.Linear]) -> Array:
    """Moves layers into one piece of memory, in which they stay views; returns it.

    Weights lie there as [inputs, outputs], so that the compiled loops run along outputs.
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
    """Adds x @ weight to y, four inputs at a time: y then goes through the registers less often."""
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
