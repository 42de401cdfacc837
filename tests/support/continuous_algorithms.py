"""Algorithms of continuous actions, small enough to be computed again by hand.

A `Plain` network is the same perceptron in numpy, in double precision, one observation at a time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rookery.algorithms.algorithm import Loss
from rookery.config.schema import EnvConfig, LearnerConfig, NetConfig
from rookery.learner.learner import Learner
from rookery.types import ActionSpec, Array, Batch, EnvSpec, Leaf, LeafKind

BOX = ActionSpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
SPEC = EnvSpec("arm", (Leaf("", (3,), "float32", LeafKind.VECTOR),), BOX)
NET = NetConfig(hidden=(8, 6))
ROWS = 16


def made(
    cls: Callable[..., Any],
    config: Any,
    spec: EnvSpec = SPEC,
    net: NetConfig = NET,
    **env: Any,
) -> Any:
    """Returns an algorithm whose targets differ from what they follow."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        algorithm = cls(config, net, EnvConfig(**env), spec)
        with torch.no_grad():
            for parameter in algorithm.target.network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return algorithm


def batch(seed: int = 0, rows: int = ROWS, spec: EnvSpec = SPEC) -> Batch:
    """Returns transitions of which every fourth is the last of its episode."""
    rng = np.random.default_rng(seed)
    action = spec.action
    arrays = {
        "obs": rng.normal(size=(rows, 3)).astype(np.float32),
        "next_obs": rng.normal(size=(rows, 3)).astype(np.float32),
        "reward": rng.normal(size=rows).astype(np.float32),
        "discount": np.where(np.arange(rows) % 4, 0.9, 0.0).astype(np.float32),
        "weight": rng.uniform(0.2, 1.0, size=rows).astype(np.float32),
        "action": rng.integers(action.n, size=rows)
        if action.discrete
        else rng.uniform(-1, 1, size=(rows, *action.shape)).astype(np.float32),
    }
    return Batch(rows=np.arange(rows), **{k: torch.from_numpy(v) for k, v in arrays.items()})


def arrays(on: Batch) -> Batch:
    """Returns the batch as a replay gives it to a learner."""
    fields = on._asdict().items()
    return Batch(**{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in fields})


def noises(count: int, seed: int = 0, rows: int = ROWS) -> list[Array]:
    """Returns what a generator of this seed gives to an algorithm: [B, A] each."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn((rows, 2), generator=draw).double().numpy() for _ in range(count)]


def losses(algorithm: Any, on: Batch, step: int = 2, seed: int = 0) -> dict[str, Loss]:
    """Returns all losses of one step, without taking it."""
    draw = torch.Generator().manual_seed(seed)
    return {loss.group: loss for loss in algorithm.losses(on, step=step, rng=draw)}


class Own(nn.Module):
    """A user's own network. A critic shows it the action as one more part of the observation."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        width = sum(leaf.shape[0] for leaf in spec.obs)
        self.stack = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, obs: Any) -> Any:
        parts = list(obs.values()) if isinstance(obs, dict) else [obs]
        return self.stack(torch.cat(parts, 1))


class Plain:
    """A perceptron's arithmetic without torch."""

    def __init__(self, net: Any):
        layers = [*net.hidden, net.out]
        self.layers = [(_double(layer.weight), _double(layer.bias)) for layer in layers]

    def __call__(self, *parts: Array) -> Array:
        x = np.concatenate(parts)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(weight @ x + bias, 0.0)
        weight, bias = self.layers[-1]
        return weight @ x + bias  # type: ignore[no-any-return]


def plain_critics(critic: Any) -> list[Plain]:
    return [Plain(network) for network in critic.networks]


def squashed(out: Any, noise: Any) -> tuple[Any, float]:
    """Returns an action and its log-probability, by the change of variables, in plain numpy."""
    mean, log_std = np.split(out, 2)
    raw = mean + np.exp(log_std) * noise
    density = sum(
        -0.5 * n * n - s - 0.5 * math.log(2 * math.pi) for n, s in zip(noise, log_std, strict=True)
    )
    return np.tanh(raw), density - sum(math.log(1 - math.tanh(r) ** 2) for r in raw)


def _double(tensor: Any) -> Array:
    return tensor.detach().double().numpy()  # type: ignore[no-any-return]


def learner(algorithm: Any, lr: float = 0.01) -> Learner:
    config = LearnerConfig(lr=lr, max_grad_norm=None)
    return Learner(algorithm, config, EnvConfig(), torch.device("cpu"))


def weights(module: nn.Module) -> list[Array]:
    return [p.detach().numpy().copy() for p in module.parameters()]


def same(before: list[Array], module: nn.Module) -> bool:
    """Is every weight still what it was?"""
    return all(np.array_equal(a, b) for a, b in zip(before, weights(module), strict=True))


def steps_of_each_loss(
    algorithm: Any, parts: dict[str, nn.Module], on: Batch, step: int = 2
) -> dict[str, set[str]]:
    """Returns which of the parts a gradient step on each loss changes."""
    taught, changed = learner(algorithm), {}
    for loss in algorithm.losses(on, step=step, rng=torch.Generator().manual_seed(0)):
        before = {name: weights(part) for name, part in parts.items()}
        assert taught._clip(*taught._descend(loss))
        taught.optimizers[loss.group].step()
        changed[loss.group] = {n for n, part in parts.items() if not same(before[n], part)}
    return changed
