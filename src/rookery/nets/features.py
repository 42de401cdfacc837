"""From stored observations to one vector of features: one encoder for each kind of leaf."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.config.schema import Image
from rookery.nets.images import Picture
from rookery.types import EnvSpec, Kind, Leaf

EPSILON = 1e-8
CLIP = 10.0  # normalised observations are cut to ± this many deviations


class Normalize(nn.Module):
    """Subtracts a running mean and divides by a running deviation.

    Mean and variance are buffers: they travel, and are saved, as part of the weights. Only the
    learner calls `observe`, on every row it drains (Chan et al. 1979 for the merging).
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - self.mean) / torch.sqrt(self.variance + EPSILON)
        return scaled.clamp(-CLIP, CLIP)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Takes [N, width] new observations into account."""
        x = x.to(self.mean.device)
        total = self.count + len(x)
        delta = x.mean(0) - self.mean
        spread = self.variance * self.count + x.var(0, unbiased=False) * len(x)
        self.variance.copy_((spread + delta**2 * self.count * len(x) / total) / total)
        self.mean += delta * len(x) / total
        self.count.copy_(total)


class Vector(nn.Module):
    """Numbers as they are, or normalised; [B, *leaf] → [B, F]."""

    def __init__(self, leaf: Leaf, frames: int, normalize: bool):
        super().__init__()
        self.width = frames * _size(leaf)
        self.frame = _size(leaf)
        self.norm = Normalize(self.frame) if normalize else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.float().flatten(1)
        if self.norm is None:
            return flat
        normal: Tensor = self.norm(flat.view(flat.shape[0], -1, self.frame))
        return normal.flatten(1)


class OneHot(nn.Module):
    """Class numbers → concatenated one-hot vectors."""

    def __init__(self, leaf: Leaf, frames: int):
        super().__init__()
        self.sizes = leaf.sizes * frames
        self.width = sum(self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        parts = [F.one_hot(x[:, i], size) for i, size in enumerate(self.sizes)]
        return torch.cat(parts, 1).float()


ENCODERS: dict[Kind, Callable[[Leaf, int, bool, Image], Any]] = {  # a mask has no row: unseen
    Kind.VECTOR: lambda leaf, frames, normalize, image: Vector(leaf, frames, normalize),
    Kind.BINARY: lambda leaf, frames, normalize, image: Vector(leaf, frames, normalize=False),
    Kind.DISCRETE: lambda leaf, frames, normalize, image: OneHot(leaf, frames),
    Kind.IMAGE: lambda leaf, frames, normalize, image: Picture(leaf, frames, image),
    Kind.CODES: lambda leaf, frames, normalize, image: Vector(leaf, frames, normalize),
}


class Features(nn.Module):
    """Encodes every leaf of an observation and lays the results side by side: Obs → [B, F].

    A mask is none of them: it rules actions out and says nothing else.
    """

    def __init__(self, spec: EnvSpec, normalize: bool, image: Image = Image.AUTO):
        super().__init__()
        leaves = seen(spec)
        self.names = [leaf.name for leaf in leaves]
        encoders = [
            ENCODERS[leaf.kind](leaf, spec.frame_stack, normalize, image) for leaf in leaves
        ]
        self.encoders = nn.ModuleList(encoders)
        self.plain = not normalize and is_plain(spec)
        self.width = sum(encoder.width for encoder in encoders)

    def forward(self, obs: Any) -> Tensor:
        if self.plain:
            return obs[self.names[0]] if self.names[0] else obs  # type: ignore[no-any-return]
        if not isinstance(obs, Mapping):
            return self.encoders[0](obs)  # type: ignore[no-any-return]
        parts = [encode(obs[name]) for name, encode in zip(self.names, self.encoders, strict=True)]
        return torch.cat(parts, 1)


def observe(module: nn.Module, leaves: Mapping[str, Tensor]) -> None:
    """Updates a module's running statistics, where it has any, from [N, *leaf] single frames.

    Networks may share them: whoever comes first in the module knows the observation's names.
    """
    known: set[Normalize] = set()
    for features in (part for part in module.modules() if isinstance(part, Features)):
        for name, encode in zip(features.names, features.encoders, strict=True):
            norm = getattr(encode, "norm", None)
            if norm is not None and norm not in known:
                known.add(norm)
                norm.observe(leaves[name].float().flatten(1))


def seen(spec: EnvSpec) -> list[Leaf]:
    """Returns the leaves of an observation that are there to be looked at."""
    return [leaf for leaf in spec.obs if leaf.kind is not Kind.MASK]


def is_plain(spec: EnvSpec) -> bool:
    """Is an observation a flat vector of floats, with which there is nothing to do?

    By itself, or beside a mask.
    """
    leaves = [(leaf.kind, len(leaf.shape), leaf.dtype) for leaf in seen(spec)]
    return leaves == [(Kind.VECTOR, 1, "float32")] and spec.is_dict == spec.masked


def _size(leaf: Leaf) -> int:
    size = 1
    for n in leaf.shape:
        size *= n
    return size
