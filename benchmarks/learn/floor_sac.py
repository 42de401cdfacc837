"""The floor of a SAC update: plain PyTorch on tensors that are already there.

Two critics, their targets, a squashed Gaussian policy and a learned temperature, all 2x256, batch
256, with fused Adam. The actor's step asks for no gradient of the critics' weights. Reads nothing
of Rookery, so that a change there cannot move the floor.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

OBS, ACTIONS = 3, 1  # Pendulum's
WIDTHS, BATCH, READY = (256, 256), 256, 64
GAMMA, TAU, LR = 0.99, 0.005, 1e-3


def network(inputs: int, outputs: int) -> nn.Module:
    widths = (inputs, *WIDTHS)
    layers = [
        part
        for before, after in itertools.pairwise(widths)
        for part in (nn.Linear(before, after), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def judged(critics: Iterable[nn.Module], obs: Tensor, action: Tensor) -> Tensor:
    """Returns [C, B]."""
    seen = torch.cat((obs, action), 1)
    return torch.stack([critic(seen).squeeze(1) for critic in critics])


def sample(policy: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns actions [B, A] and their log-probabilities [B]."""
    mean, log_std = policy(obs).chunk(2, 1)
    log_std = log_std.clamp(-20.0, 2.0)
    noise = torch.randn_like(mean)
    raw = mean + log_std.exp() * noise
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    squashed = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
    return torch.tanh(raw), (density - squashed).sum(1)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=LR, fused=True)


def learn(seed: int) -> Callable[[], int]:
    """Returns one update as a callable."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy = network(OBS, 2 * ACTIONS)
    critics = nn.ModuleList(network(OBS + ACTIONS, 1) for _ in range(2))
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = nn.Parameter(torch.zeros(()))
    optimizers = adam(critics.parameters()), adam(policy.parameters()), adam([log_alpha])
    followers, leaders = list(targets.parameters()), list(critics.parameters())
    ready = itertools.cycle([batch() for _ in range(READY)])

    def step(which: int, loss: Tensor) -> None:
        optimizers[which].zero_grad(set_to_none=True)
        loss.backward()
        optimizers[which].step()

    def update() -> int:
        obs, action, reward, discount, next_obs = next(ready)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = sample(policy, next_obs)
            next_q = judged(targets, next_obs, next_action).amin(0) - alpha * next_log_prob
            wanted = reward + discount * next_q
        q = judged(critics, obs, action)
        step(0, 0.5 * (wanted - q).square().sum(0).mean())
        new, log_prob = sample(policy, obs)
        critics.requires_grad_(False)
        step(1, (alpha * log_prob - judged(critics, obs, new).amin(0)).mean())
        critics.requires_grad_(True)
        step(2, log_alpha * (-log_prob.detach() + ACTIONS).mean())
        with torch.no_grad():
            torch._foreach_lerp_(followers, leaders, TAU)
        return 1

    return update


def batch() -> tuple[Tensor, ...]:
    return (
        torch.randn(BATCH, OBS),
        torch.rand(BATCH, ACTIONS) * 2.0 - 1.0,
        torch.randn(BATCH),
        GAMMA * (torch.rand(BATCH) > 0.05),
        torch.randn(BATCH, OBS),
    )
