"""Convolutional image encoders; the setting `net.image` selects one."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.config.schema import Image
from rookery.errors import ConfigError
from rookery.types import Leaf

NATURE_LEAST = 36  # pixels; its three layers reduce them to one
IMPALA_WIDTHS = (16, 32, 32)
IMPALA_LEAST = 2 ** len(IMPALA_WIDTHS)  # pixels, halved by each block


class ImageEncoder(nn.Module):
    """Convolutional network that encodes uint8 images [B, C, H, W] as features [B, width]."""

    def __init__(self, leaf: Leaf, frames: int, image: Image):
        super().__init__()
        channels, height, width = frames * leaf.shape[0], *leaf.shape[1:]
        layers = IMAGES[image](channels, min(height, width))
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            self.width = int(self.convolutions(torch.zeros(1, channels, height, width)).shape[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.convolutions(x.float() / 255.0)  # type: ignore[no-any-return]


def _nature(channels: int, side: int) -> list[nn.Module]:
    """Returns the convolutional layers of the DQN network of Mnih et al. 2015 ("Nature CNN")."""
    _refuse_below(NATURE_LEAST, side, Image.NATURE, "impala" if side >= IMPALA_LEAST else "small")
    return _plain(channels, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), padding=0)


def _small(channels: int, side: int) -> list[nn.Module]:
    padding = int(side < 5)  # without padding two 3x3 layers need at least five pixels
    return _plain(channels, ((16, 3, 1), (32, 3, 1)), padding)


def _impala(channels: int, side: int) -> list[nn.Module]:
    """Returns the layers of IMPALA's residual network (Espeholt et al. 2018), without its LSTM."""
    _refuse_below(IMPALA_LEAST, side, Image.IMPALA, "small")
    widths = (channels, *IMPALA_WIDTHS)
    return [part for a, b in pairwise(widths) for part in _block(a, b)] + [nn.ReLU()]


def _auto(channels: int, side: int) -> list[nn.Module]:
    return (_nature if side >= NATURE_LEAST else _small)(channels, side)


IMAGES: dict[Image, Callable[[int, int], list[nn.Module]]] = {  # channels, the shorter side
    Image.AUTO: _auto,
    Image.NATURE: _nature,
    Image.IMPALA: _impala,
    Image.SMALL: _small,
}


class ResidualBlock(nn.Module):
    """Residual block: two convolutions with a skip connection."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + residual


def _plain(
    channels: int, layers: tuple[tuple[int, int, int], ...], padding: int
) -> list[nn.Module]:
    """Returns convolutional layers, given as (width, kernel, stride), each followed by a ReLU."""
    parts: list[nn.Module] = []
    for width, kernel, stride in layers:
        parts += [nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU()]
        channels = width
    return parts


def _block(channels: int, width: int) -> list[nn.Module]:
    halve = nn.MaxPool2d(3, stride=2, padding=1)
    return [
        nn.Conv2d(channels, width, 3, padding=1),
        halve,
        ResidualBlock(width),
        ResidualBlock(width),
    ]


def _refuse_below(least: int, side: int, image: Image, instead: str) -> None:
    if side < least:
        raise ConfigError(
            f"net.image {image} needs images of at least {least}x{least} pixels, got one that is "
            f"{side} wide or high; use net.image={instead}, or auto"
        )
