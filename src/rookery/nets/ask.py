"""Questions to a network: observations of numpy in, answers of numpy out."""

from typing import Any, Literal

import torch
from torch import nn

from rookery.nets.quick import Quick
from rookery.types import Array, Obs


class Ask:
    """Asks a module that returns one tensor, by the quickest way there is.

    That way is looked for at the first question: by then an optimizer that needs the parameters
    to stay where they are has laid them out.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._parameter = next(module.parameters(), None)
        self._quick: Quick | Literal[False] | None = None  # None: not looked for yet

    def __call__(self, obs: Obs) -> Array:
        """Returns [E, outputs] for [E, *obs]."""
        if self._quick is None:
            self._quick = Quick.of(self.module) or False
        if self._quick:
            flat = obs[self._quick.leaf] if isinstance(obs, dict) else obs
            if self._quick.fits(flat):
                return self._quick(flat)
        with torch.inference_mode():
            return self.module(tensors(obs, self._device)).cpu().numpy()  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self._parameter is None else self._parameter.device


def tensors(obs: Obs, device: torch.device) -> Any:
    """Gives an observation's arrays to torch, on the CPU without copying."""
    if isinstance(obs, dict):
        return {name: torch.from_numpy(leaf).to(device) for name, leaf in obs.items()}
    return torch.from_numpy(obs).to(device)
