"""Target networks: slowly updated copies of the online network."""

import copy

import torch
from torch import Tensor, nn

from rookery.networks.encoders import Normalize


class TargetNetwork:
    """Target network: a copy (`network`) of the online network that gets no gradients.

    The copy normalises observations with the running statistics of the online network. If the
    online network is to share statistics with other modules, set that up before creating the copy.
    """

    def __init__(self, online: nn.Module):
        self.online = online
        self.network = copy.deepcopy(online).requires_grad_(False)
        share_normalizers(online, self.network)
        self._online_parameters: list[Tensor] = list(online.parameters())
        self._target_parameters: list[Tensor] = list(self.network.parameters())
        self._buffers = _own_buffers(online, self.network)

    def update(self, step: int, *, tau: float | None, period: int = 1) -> None:
        """Updates the target network after gradient step `step`.

        It is a soft (Polyak) update if `tau` is given, else a hard update every `period` steps.
        Step 0, before the first gradient step, copies all weights.
        """
        if self.is_copied(step, tau=tau, period=period):
            self.copy()
        elif tau is not None:
            self.soft_update(tau)

    @staticmethod
    def is_copied(step: int, *, tau: float | None, period: int = 1) -> bool:
        """Returns whether `update` makes a hard update after gradient step `step`."""
        return step % period == 0 if tau is None else step == 0

    @torch.no_grad()  # otherwise autograd would record every update
    def soft_update(self, tau: float) -> None:
        """Soft (Polyak) update: target = (1 - tau) x target + tau x online; copies buffers."""
        torch._foreach_lerp_(self._target_parameters, self._online_parameters, tau)
        self._copy_buffers()

    @torch.no_grad()
    def copy(self) -> None:
        """Hard update: copies all weights of the online network to the target network."""
        torch._foreach_copy_(self._target_parameters, self._online_parameters)
        self._copy_buffers()

    def _copy_buffers(self) -> None:
        for name in self._buffers:  # by name: a module that moves to a device gets new tensors
            self.network.get_buffer(name).copy_(self.online.get_buffer(name))


def share_normalizers(original: nn.Module, copied: nn.Module) -> None:
    """Makes a copied module normalise inputs with the running statistics of the original."""
    originals = dict(original.named_modules(remove_duplicate=False))
    for name, module in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(module, Normalize):
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, originals[name])


def _own_buffers(original: nn.Module, copied: nn.Module) -> list[str]:
    """Returns names of the saved buffers that a copied module does not share with the original."""
    saved = copied.state_dict().keys()
    originals = dict(original.named_buffers(remove_duplicate=False))
    buffers = copied.named_buffers(remove_duplicate=False)
    return [name for name, buffer in buffers if name in saved and buffer is not originals[name]]
