"""Observation encoders, which turn an observation into one feature vector.

Each entry ("leaf") of a dict observation has its own encoder; their outputs are concatenated.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.config.schema import Image
from rookery.networks.convolutions import ImageEncoder
from rookery.types import EnvSpec, Leaf, LeafKind

EPSILON = 1e-8
CLIP = 10.0  # normalised observations are clipped to ± this many standard deviations


class Normalize(nn.Module):
    """Normalises inputs by a running mean and standard deviation.

    Mean and variance are buffers, so they are published to actors and saved with the weights. Only
    the learner process calls `observe`, with the data that was newly inserted into replay.
    Statistics are merged as in Chan et al. 1979.
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
        """Updates the running mean and variance with N new inputs [N, width]."""
        x = x.to(self.mean.device)
        total = self.count + len(x)
        delta = x.mean(0) - self.mean
        spread = self.variance * self.count + x.var(0, unbiased=False) * len(x)
        self.variance.copy_((spread + delta**2 * self.count * len(x) / total) / total)
        self.mean += delta * len(x) / total
        self.count.copy_(total)


class VectorEncoder(nn.Module):
    """Encodes a numeric entry (leaf) of the observations as feature vectors.

    Flattens each array, and optionally normalises it by running statistics.
    """

    def __init__(self, leaf: Leaf, frames: int, normalize: bool):
        super().__init__()
        self.frame = prod(leaf.shape)
        self.width = frames * self.frame
        self.norm = Normalize(self.frame) if normalize else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.float().flatten(1)
        if self.norm is None:
            return flat
        normal: Tensor = self.norm(flat.view(flat.shape[0], -1, self.frame))
        return normal.flatten(1)


class OneHotEncoder(nn.Module):
    """Encodes discrete observations (class numbers) as concatenated one-hot vectors."""

    def __init__(self, leaf: Leaf, frames: int):
        super().__init__()
        self.sizes = leaf.sizes * frames
        self.width = sum(self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        parts = [F.one_hot(x[:, i], size) for i, size in enumerate(self.sizes)]
        return torch.cat(parts, 1).float()


ENCODERS: dict[LeafKind, Callable[[Leaf, int, bool, Image], Any]] = {  # masks are no network input
    LeafKind.VECTOR: lambda leaf, frames, normalize, image: VectorEncoder(leaf, frames, normalize),
    LeafKind.BINARY: lambda leaf, frames, normalize, image: VectorEncoder(
        leaf, frames, normalize=False
    ),
    LeafKind.DISCRETE: lambda leaf, frames, normalize, image: OneHotEncoder(leaf, frames),
    LeafKind.IMAGE: lambda leaf, frames, normalize, image: ImageEncoder(leaf, frames, image),
    LeafKind.CODES: lambda leaf, frames, normalize, image: VectorEncoder(leaf, frames, normalize),
}


class Features(nn.Module):
    """Encodes every entry of an observation, and concatenates the features to one vector.

    The output is [B, width] for a batch of B. Action masks are left out.
    """

    def __init__(self, spec: EnvSpec, normalize: bool, image: Image = Image.AUTO):
        super().__init__()
        leaves = input_leaves(spec)
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


def normalizers(module: nn.Module) -> dict[Normalize, str]:
    """Returns the running observation statistics of a module's networks.

    The values are the names of the observation entries that they normalise. Statistics that several
    networks share are returned once.
    """
    found: dict[Normalize, str] = {}
    for features in (part for part in module.modules() if isinstance(part, Features)):
        for name, encode in zip(features.names, features.encoders, strict=True):
            norm = getattr(encode, "norm", None)
            if norm is not None:
                found.setdefault(norm, name)
    return found


def observe(statistics: Mapping[Normalize, str], leaves: Mapping[str, Tensor]) -> None:
    """Updates running observation statistics with N new observations.

    `statistics` are as `normalizers` returns them. `leaves` are the entries of the observations by
    name, [N, *shape] each, without frame stacking.
    """
    for norm, name in statistics.items():
        norm.observe(leaves[name].float().flatten(1))


def input_leaves(spec: EnvSpec) -> list[Leaf]:
    """Returns the entries of an observation that are network inputs: all but action masks."""
    return [leaf for leaf in spec.obs if leaf.kind is not LeafKind.MASK]


def is_plain(spec: EnvSpec) -> bool:
    """Returns whether an observation is one float32 vector, with or without an action mask."""
    leaves = [(leaf.kind, len(leaf.shape), leaf.dtype) for leaf in input_leaves(spec)]
    return leaves == [(LeafKind.VECTOR, 1, "float32")] and spec.is_dict == spec.masked
