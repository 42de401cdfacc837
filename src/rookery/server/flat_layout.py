"""Conversion between named arrays and one flat vector; arrays that do not fit are refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from rookery.errors import ConfigError, RefusedError
from rookery.types import Array, Floats

Named: TypeAlias = Mapping[str, Array | torch.Tensor]
SHOWN = 8  # differences in one message
FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Layout:
    """Names and shapes in the order of the vector; everything is float32."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, arrays: Named) -> "Layout":
        """Takes the layout of a network's parameters."""
        kinds = {name: _kind(array) for name, array in arrays.items()}
        wrong = [f"{name!r} is {kind}" for name, kind in kinds.items() if kind not in FLOATS]
        if wrong or not arrays or "" in arrays:
            raise ConfigError(
                "initial_parameters must be named arrays of floats, and at least one, got "
                f"{', '.join(wrong[:SHOWN]) or list(arrays)}; name all, without counters or buffers"
            )
        return cls({name: tuple(array.shape) for name, array in arrays.items()})

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(math.prod, self.shapes.values()))

    @cached_property
    def total(self) -> int:
        return sum(self.sizes)

    def start(self, arrays: Named) -> Floats:
        """Returns the [P] vector of initial parameters, of whatever float type."""
        vector = self._joined(arrays).astype(np.float32)
        if not np.isfinite(vector).all():
            raise ConfigError("initial_parameters have NaN or Inf in them; start from finite ones")
        return vector

    def join(self, arrays: Named) -> Floats:
        """Returns a new [P] vector; names, shapes and dtypes must be exactly these."""
        if wrong := self.differences(arrays):
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise RefusedError(
                f"the update does not fit the server's parameters: {', '.join(wrong[:SHOWN])}"
                f"{more}; push float32 arrays with the names and shapes of get_parameters()",
                "schema",
            )
        return self._joined(arrays)

    def differences(self, arrays: Named) -> list[str]:
        """Lists what another set of arrays has that this one has not, and the other way round."""
        wrong = [f"{name!r} is missing" for name in self.shapes if name not in arrays]
        for name, array in arrays.items():
            if name not in self.shapes:
                wrong.append(f"{name!r} is unknown")
            elif tuple(array.shape) != self.shapes[name]:
                wrong.append(f"{name!r} is {tuple(array.shape)} for {self.shapes[name]}")
            elif _kind(array) != "float32":
                wrong.append(f"{name!r} is {_kind(array)} for float32")
        return wrong

    def split(self, vector: Floats) -> dict[str, Array]:
        """Returns named views of a [P] vector."""
        parts = zip(np.split(vector, np.cumsum(self.sizes)[:-1]), self.shapes.items(), strict=True)
        return {name: part.reshape(shape) for part, (name, shape) in parts}

    def _joined(self, arrays: Named) -> Floats:
        return np.concatenate([_array(arrays[name]).reshape(-1) for name in self.shapes])


def _kind(array: Array | torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _array(array: Array | torch.Tensor) -> Array:
    if isinstance(array, torch.Tensor):
        detached = array.detach().cpu()
        return (detached.float() if detached.dtype is torch.bfloat16 else detached).numpy()
    return array
