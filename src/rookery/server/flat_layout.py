"""Named arrays as one vector, and back. What does not fit is refused with all its differences."""

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

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Named) -> "Layout":
        """Takes the layout of a network's parameters."""
        kinds = {name: _kind(array) for name, array in arrays.items()}
        wrong = [f"{name!r} is {kind}" for name, kind in kinds.items() if kind not in FLOATS]
        if wrong or not arrays or "" in arrays:
            raise ConfigError(
                "initial_parameters must be named arrays of floats, and at least one, got "
                + (", ".join(wrong[:SHOWN]) or str(list(arrays)))
                + "; leave out counters and buffers, and give every array a name"
            )
        return cls(tuple(arrays), tuple(tuple(array.shape) for array in arrays.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def total(self) -> int:
        return sum(self.sizes)

    def start(self, arrays: Named) -> Floats:
        """Returns the [P] vector of initial parameters, of whatever float type."""
        vector = self._joined({name: _array(a).astype(np.float32) for name, a in arrays.items()})
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
        return self._joined({name: _array(array) for name, array in arrays.items()})

    def differences(self, arrays: Named) -> list[str]:
        """Lists what another set of arrays has that this one has not, and the other way round."""
        own = dict(zip(self.names, self.shapes, strict=True))
        wrong = [f"{name!r} is missing" for name in self.names if name not in arrays]
        wrong += [f"{name!r} is unknown" for name in arrays if name not in own]
        for name, array in arrays.items():
            if name in own and tuple(array.shape) != own[name]:
                wrong.append(f"{name!r} is {tuple(array.shape)} for {own[name]}")
            if name in own and _kind(array) != "float32":
                wrong.append(f"{name!r} is {_kind(array)} for float32")
        return wrong

    def split(self, vector: Floats) -> dict[str, Array]:
        """Returns named views of a [P] vector."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1])
        shaped = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in shaped}

    def _joined(self, arrays: Mapping[str, Array]) -> Floats:
        return np.concatenate([arrays[name].reshape(-1) for name in self.names])


def _kind(array: Array | torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _array(array: Array | torch.Tensor) -> Array:
    if isinstance(array, torch.Tensor):
        detached = array.detach().cpu()
        return (detached.float() if detached.dtype is torch.bfloat16 else detached).numpy()
    return array
