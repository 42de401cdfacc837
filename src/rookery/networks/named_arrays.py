"""Network weights and optimizer states as named numpy arrays, to publish, save and compare."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rookery.errors import CheckpointError
from rookery.types import Array


def fingerprint(arrays: Mapping[str, Array]) -> str:
    """Returns the SHA-256 hash of named arrays, including names, shapes and dtypes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def misfits(arrays: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names that only one of the two has, and the arrays of another shape."""
    return sorted(tensors.keys() ^ arrays.keys()) + [
        f"{name} {np.shape(arrays[name])} for {tuple(tensor.shape)}"
        for name, tensor in tensors.items()
        if name in arrays and np.shape(arrays[name]) != tuple(tensor.shape)
    ]


def load_arrays(module: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Loads named arrays into a torch module, in place.

    Raises `CheckpointError` if names or shapes differ from those of the module.
    """
    own = module.state_dict()
    if wrong := misfits(arrays, own):
        raise CheckpointError(
            "these weights are of another network: "
            + ", ".join(wrong[:8])
            + "; use the config they were trained with"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])).view(tensor.shape))


def arrays_of(module: nn.Module) -> dict[str, Array]:
    """Returns a module's parameters and buffers as numpy arrays, by name.

    For a module on the CPU they share its memory.
    """
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> dict[str, Array]:
    """Returns copies of what an optimizer keeps, such as moments, by parameter index and name."""
    return {
        f"{index}.{key}": torch.as_tensor(value).cpu().numpy().copy()
        for index, slots in optimizer.state_dict()["state"].items()
        for key, value in slots.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, arrays: Mapping[str, Array]) -> None:
    """Loads arrays of `optimizer_arrays` into an optimizer of the same parameters."""
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in arrays.items():
        index, _, key = name.partition(".")
        slots.setdefault(int(index), {})[key] = torch.from_numpy(value.copy())
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
