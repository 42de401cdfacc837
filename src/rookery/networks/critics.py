"""Critics: networks that estimate Q(s, a) for continuous actions."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rookery.config.schema import NetConfig
from rookery.errors import ConfigError
from rookery.networks.encoders import Features, VectorEncoder, is_plain
from rookery.networks.mlp import build
from rookery.types import EnvSpec, Leaf, LeafKind

ACTION = "action"
OBS = "obs"  # name of an observation that is a single array


class Critic(nn.Module):
    """Several independent Q-networks for continuous actions, called as one module.

    They map a batch of B observations and actions to [count, B, outputs], for `count` networks.

    If observations are normalised, `share_normalization(actor, critic)` makes the critic use the
    actor's running statistics.
    """

    def __init__(
        self, config: NetConfig, spec: EnvSpec, outputs: int, normalize: bool, count: int = 2
    ):
        super().__init__()
        self._is_dict = spec.is_dict
        self._is_flat = config.custom is None and not normalize and is_plain(spec)
        given = _concatenated(spec) if self._is_flat else with_action(spec)
        config = for_critics(config)
        self.networks = nn.ModuleList(
            build(config, given, outputs, normalize=normalize) for _ in range(count)
        )
        if normalize:
            share_normalization(Features(_vectors(spec), normalize), self)

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the outputs of all Q-networks, [count, B, outputs] for a batch of B.

        Actions may be flattened or not. The networks are called one after another. For two hidden
        layers of 256 units, this is at least as fast as one batched matrix product.
        """
        seen = self._inputs(obs, action.flatten(1))
        return torch.stack([network(seen) for network in self.networks])

    def first(self, obs: Any, action: Tensor) -> Tensor:
        """Returns the outputs of the first Q-network only, [B, outputs] for a batch of B."""
        return self.networks[0](self._inputs(obs, action.flatten(1)))  # type: ignore[no-any-return]

    def _inputs(self, obs: Any, action: Tensor) -> Any:
        if self._is_flat:
            return torch.cat((obs, action), 1)
        return {**(obs if self._is_dict else {OBS: obs}), ACTION: action}


def for_critics(net: NetConfig) -> NetConfig:
    """Returns the settings of the networks of critics and state values."""
    return net if net.critic_hidden is None else replace(net, hidden=net.critic_hidden)


def with_action(spec: EnvSpec) -> EnvSpec:
    """Returns an environment spec of a critic's inputs: the observation's entries and the action.

    Stacked frames are part of the shape of each entry. Raises `ConfigError` if actions are not
    continuous, or an entry is named "action".
    """
    if not spec.action.continuous:
        raise ConfigError(
            f"{spec.name} has discrete actions, and a critic of actions needs continuous ones; "
            "use an environment with a Box action space, or an algorithm for discrete actions"
        )
    if ACTION in (leaf.name for leaf in spec.obs):
        raise ConfigError(
            f"an observation of {spec.name} has a part named {ACTION!r}, which is the name of a "
            "critic's action input; rename it with a wrapper in env.wrappers"
        )
    seen = (_stacked(leaf, spec.frame_stack) for leaf in spec.obs)
    action = Leaf(ACTION, (math.prod(spec.action.shape),), "float32", LeafKind.VECTOR)
    return replace(spec, obs=(*seen, action), frame_stack=1)


def share_normalization(source: nn.Module, module: nn.Module) -> None:
    """Makes `module` normalise observations with the running statistics of `source`.

    Inputs that `source` does not have, such as actions, are not normalised.
    """
    known = dict(_vectors_of(source))
    for name, encoder in _vectors_of(module):
        theirs = known.get(name)
        encoder.norm = None if theirs is None else theirs.norm
        encoder.frame = encoder.frame if theirs is None else theirs.frame


def _vectors_of(module: nn.Module) -> Iterator[tuple[str, VectorEncoder]]:
    """Yields the name and the encoder of each numeric observation entry that `module` encodes."""
    for features in (part for part in module.modules() if isinstance(part, Features)):
        for name, encoder in zip(features.names, features.encoders, strict=True):
            if isinstance(encoder, VectorEncoder):
                yield name or OBS, encoder


def _stacked(leaf: Leaf, frames: int) -> Leaf:
    """Returns the spec of an observation entry whose frames are stacked along the first axis."""
    shape = (frames * leaf.shape[0], *leaf.shape[1:])
    return replace(leaf, name=leaf.name or OBS, shape=shape, sizes=leaf.sizes * frames)


def _concatenated(spec: EnvSpec) -> EnvSpec:
    """Returns the spec of a critic's input as one vector: flat observation, then action."""
    width = sum(leaf.shape[0] for leaf in with_action(spec).obs)
    return replace(spec, obs=(Leaf("", (width,), "float32", LeafKind.VECTOR),), frame_stack=1)


def _vectors(spec: EnvSpec) -> EnvSpec:
    numbers = (LeafKind.VECTOR, LeafKind.CODES)  # what is normalised
    return replace(spec, obs=tuple(leaf for leaf in spec.obs if leaf.kind in numbers))
