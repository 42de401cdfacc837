"""Convolutional network for board games.

    net:
      custom: rookery.games.board_network:BoardNetwork
      kwargs: {kernel: 4, channels: 64, hidden: [128]}

One convolution with a kernel of kernel x kernel squares, so that a pattern is recognized anywhere
on the board, then fully connected hidden layers. Observations are boards [height, width, planes].
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rookery.errors import ConfigError
from rookery.types import EnvSpec, LeafKind


class BoardNetwork(nn.Module):
    """Convolutional network for board games: from B boards to outputs [B, outputs].

    The boards are [B, height, width, planes], such as one plane per player.
    """

    def __init__(
        self,
        spec: EnvSpec,
        outputs: int,
        kernel: int = 3,
        channels: int = 64,
        hidden: Sequence[int] = (128,),
    ):
        super().__init__()
        self.leaf, (height, width, planes) = _board(spec)
        if not 1 <= kernel <= min(height, width):
            raise ConfigError(
                f"the kernel is {kernel}, and the board of {spec.name} has {height} x {width} "
                f"squares; give a kernel from 1 to {min(height, width)}"
            )
        self.look = nn.Conv2d(planes, channels, kernel)
        windows = (height - kernel + 1) * (width - kernel + 1)
        widths = [channels * windows, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.out = nn.Linear(widths[-1], outputs)

    def forward(self, obs: Any) -> Tensor:
        board = obs[self.leaf] if self.leaf else obs  # [B, H, W, P]
        x = torch.relu(self.look(board.permute(0, 3, 1, 2))).flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        out: Tensor = self.out(x)
        return out


def _board(spec: EnvSpec) -> tuple[str, tuple[int, ...]]:
    """Returns the name and shape [height, width, planes] of the board in a game's observation.

    Raises `ConfigError` unless the board is the only array besides the action mask.
    """
    seen = [leaf for leaf in spec.obs if leaf.kind is not LeafKind.MASK]
    if len(seen) != 1 or len(seen[0].shape) != 3 or seen[0].kind is not LeafKind.VECTOR:
        shapes = ", ".join(f"{leaf.name or 'observation'} {leaf.shape}" for leaf in seen)
        raise ConfigError(
            f"net.custom BoardNetwork reads one board [height, width, planes], but {spec.name} has "
            f"{shapes}; leave net.custom out"
        )
    return seen[0].name, seen[0].shape
