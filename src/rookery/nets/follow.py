"""Target networks: copies that follow the network that is trained."""

import copy

import torch
from torch import Tensor, nn

from rookery.nets.features import Normalize


class Follower:
    """Holds a copy of a module, `network`, that is never trained.

    Both see observations alike: the running statistics are the leader's own. A leader that shares
    its statistics with others must do so before it gets a follower.
    """

    def __init__(self, leader: nn.Module):
        self.leader = leader
        self.network = copy.deepcopy(leader).requires_grad_(False)
        share_statistics(leader, self.network)
        self._leaders: list[Tensor] = list(leader.parameters())
        self._followers: list[Tensor] = list(self.network.parameters())
        self._buffers = _own_buffers(leader, self.network)

    def settle(self, step: int, *, tau: float | None, period: int = 1) -> None:
        """Comes after the leader, after learner step `step`: a little every time, or now and then.

        Before the first step it becomes equal to the leader either way.
        """
        if tau is not None and step > 0:
            self.follow(tau)
        elif step % period == 0:
            self.copy()

    @torch.no_grad()  # or every step would be remembered as part of one long graph
    def follow(self, tau: float) -> None:
        """Goes the share `tau` of the way to the leader (Polyak); buffers, if any, are copied."""
        torch._foreach_lerp_(self._followers, self._leaders, tau)
        self._copy_buffers()

    @torch.no_grad()
    def copy(self) -> None:
        """Becomes equal to the leader."""
        torch._foreach_copy_(self._followers, self._leaders)
        self._copy_buffers()

    def _copy_buffers(self) -> None:
        for name in self._buffers:  # by name: a module that moves to a device gets new tensors
            self.network.get_buffer(name).copy_(self.leader.get_buffer(name))


def share_statistics(leader: nn.Module, follower: nn.Module) -> None:
    """Makes a copy of a module normalise with the running statistics of the original."""
    ours = dict(leader.named_modules(remove_duplicate=False))
    for name, module in list(follower.named_modules(remove_duplicate=False)):
        if isinstance(module, Normalize):
            parent, _, child = name.rpartition(".")
            setattr(follower.get_submodule(parent), child, ours[name])


def _own_buffers(leader: nn.Module, follower: nn.Module) -> list[str]:
    """Returns the names of buffers that count as weights and are not shared."""
    saved = follower.state_dict().keys()
    ours = dict(leader.named_buffers(remove_duplicate=False))
    theirs = follower.named_buffers(remove_duplicate=False)
    return [name for name, buffer in theirs if name in saved and buffer is not ours[name]]
