"""An algorithm of SB3's with the weights of one of ours, and both taught the same batches.

SB3's own `train` runs, on a replay that gives what it is told, so whole updates are compared:
losses, gradients, the order of steps and the targets.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from continuous_algorithms import NET
from rookery.types import Batch

LR = 0.01


class Arm(gym.Env[Any, Any]):
    """Has the spaces of `continuous.SPEC`, and is never stepped."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


def twin(cls: type[Any], **settings: Any) -> Any:
    """Returns an algorithm of SB3's that has our architecture."""
    arch = {"net_arch": list(NET.hidden)}
    model = cls("MlpPolicy", Arm(), learning_rate=LR, policy_kwargs=arch, device="cpu", **settings)
    model.set_logger(Logger(None, []))
    return model


def teach(model: Any, batches: Sequence[Batch]) -> None:
    """Takes an update of SB3's on each batch."""
    given = iter(batches)
    model.replay_buffer = SimpleNamespace(sample=lambda *_, **__: _samples(next(given)))
    for _ in batches:
        model.train(1, len(batches[0].reward))


def _samples(on: Batch) -> ReplayBufferSamples:
    return ReplayBufferSamples(
        observations=on.obs,
        actions=on.action,
        next_observations=on.next_obs,
        dones=(on.discount == 0).float()[:, None],
        rewards=on.reward[:, None],
        discounts=on.discount[:, None],
    )


@torch.no_grad()
def copy_critic(theirs: Any, ours: Any) -> None:
    for q, network in zip(theirs.q_networks, ours.networks, strict=True):
        copy_layers([layer for layer in q if hasattr(layer, "weight")], network)


@torch.no_grad()
def copy_layers(theirs: list[Any], ours: Any, heads: int = 1) -> None:
    """Copies our perceptron into SB3's layers; its last one may be in several pieces there."""
    layers = [*ours.hidden, ours.out]
    for to, of in zip(theirs[:-heads], layers[:-1], strict=True):
        to.weight.copy_(of.weight)
        to.bias.copy_(of.bias)
    weights, biases = layers[-1].weight.chunk(heads), layers[-1].bias.chunk(heads)
    for to, weight, bias in zip(theirs[-heads:], weights, biases, strict=True):
        to.weight.copy_(weight)
        to.bias.copy_(bias)


def sac_actor(actor: Any) -> list[Any]:
    return [layer for layer in actor.latent_pi if hasattr(layer, "weight")] + [
        actor.mu,
        actor.log_std,
    ]


def td3_actor(actor: Any) -> list[Any]:
    return [layer for layer in actor.mu if hasattr(layer, "weight")]


def flat(layers: list[Any]) -> Any:
    """Returns all weights, then all biases, in one vector."""
    weights = [layer.weight.detach().flatten() for layer in layers]
    return torch.cat(weights + [layer.bias.detach() for layer in layers]).numpy()


def flat_ours(net: Any) -> Any:
    return flat([*net.hidden, net.out])


def flat_critics(theirs: Any) -> Any:
    nets = [[layer for layer in q if hasattr(layer, "weight")] for q in theirs.q_networks]
    return np.concatenate([flat(net) for net in nets])


def flat_our_critics(ours: Any) -> Any:
    return np.concatenate([flat_ours(net) for net in ours.networks])
