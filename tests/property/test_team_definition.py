"""What a team learns: equal to the definition, one agent after the other in plain Python."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plain_team_network import GAMMA, MEM, RADIUS, N, after, codes, crowd, heard, made
from rookery.algorithms.algorithm import Loss
from rookery.pathfinding.settings import Talk
from rookery.pathfinding.team_dqn import COMM, FRESH, MEMORY, PLACE, REWARD, VALUES, VIEW, TeamDQN
from rookery.types import Batch

B = 5


def sequences(length: int) -> Batch:
    """Returns B worlds: whole sequences, and such as end by success or by a time limit.

    In the second nobody has the last number; in none is everybody heard that could be.
    """
    torch.manual_seed(4)
    counts = torch.tensor([length, length, length - 1, length - 2, length - 1])
    mask = (torch.arange(length) < counts[:, None]).float()
    ends = torch.tensor([False, True, True, False, True])
    last = torch.arange(length) == counts[:, None] - 1
    place, comm = crowd(B, length + 1, N), torch.randint(2, (B, length, N, N), dtype=torch.uint8)
    place[1, :, -1] = -1
    comm[..., range(N), range(N)] = 1
    comm[mask == 0] = 0  # nobody wrote anything there
    fresh = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0])
    return Batch(
        obs={VIEW: codes(B, length + 1, N), PLACE: place, REWARD: torch.randn(B, length + 1, N)},
        action=torch.randint(5, (B, length, N)),
        reward=torch.full((B, length), math.nan),  # the team's: each learns from its own
        discount=GAMMA * mask * ~(last & ends[:, None]),
        next_obs=None,
        weight=torch.rand(B) + 0.1,
        rows=np.arange(B),
        mask=mask,
        extras={
            MEMORY: torch.randn(B, N * MEM) * (1 - fresh[:, None]),
            FRESH: fresh,
            COMM: comm,
            VALUES: torch.randn(B, length, N, 5),
        },
    )


def loss_of(algorithm: TeamDQN, batch: Batch) -> Loss:
    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())
    return loss


def remembered(algorithm: TeamDQN, net: Any, batch: Batch, b: int) -> list[Tensor]:
    """Returns the values [N, A] at every moment of one world, one moment after another."""
    h, values = batch.extras[MEMORY][b].view(N, MEM), []
    steps = int(batch.mask[b].sum())
    for t in range(steps + 1):
        place = batch.obs[PLACE][b, t].tolist()
        near = [heard(place, i, radius=RADIUS, most=algorithm.config.neighbours) for i in range(N)]
        if t < steps:
            near = [[j for j in near[i] if batch.extras[COMM][b, t, i, j]] for i in range(N)]
        h = after(net, batch.obs[VIEW][b, t], place, h, near)
        out = net.head(h)
        advantage = out[:, 1:] - out[:, 1:].sum(1, keepdim=True) / 5
        values.append(out[:, :1] + advantage)
    return values


def plain(algorithm: TeamDQN, batch: Batch) -> tuple[Tensor, list[float]]:
    """Returns the loss and the worlds' priorities as they are defined."""
    config, total, count, priorities = algorithm.config, torch.zeros(()), 0, []
    for b in range(B):
        q = remembered(algorithm, algorithm.online, batch, b)
        target = remembered(algorithm, algorithm.target.network, batch, b)
        steps, each = int(batch.mask[b].sum()), []
        for i in range(N):
            if batch.obs[PLACE][b, 0, i, 0] < 0:
                continue
            errors = []
            for t in range(0 if batch.extras[FRESH][b] else config.burn_in, steps):
                wanted = aim(config, batch, b, i, t, steps, q, target)
                error = wanted - q[t][i, batch.action[b, t, i]]
                total = total + batch.weight[b] * F.huber_loss(error, torch.zeros(()))
                count += 1
                errors.append(abs(error.item()))
            each.append(mixed(config.eta, errors))
        priorities.append(mixed(config.eta, each))
    return total / max(1, count), priorities


def aim(
    config: Any, batch: Batch, b: int, i: int, t: int, steps: int, q: Any, target: Any
) -> Tensor:
    """Returns what the value of agent i's step t of world b should have been."""
    stop = min(t + config.n_step, steps)
    wanted, factor = 0.0, 1.0
    for k in range(t, stop):
        wanted += factor * felt(config, batch, b, i, k)
        factor *= batch.discount[b, k].item()
    best = (q if config.double else target)[stop][i].argmax()
    ahead: Tensor = wanted + factor * target[stop][i, best].detach()
    return ahead


def felt(config: Any, batch: Batch, b: int, i: int, k: int) -> float:
    """Returns what step k earned agent i of world b, less its share of what those it heard lost."""
    place, earned = batch.obs[PLACE][b, k].tolist(), batch.obs[REWARD][b, k + 1].tolist()
    near = heard(place, i, radius=RADIUS, most=reach(config))
    others = [j for j in near if j != i and batch.extras[COMM][b, k, i, j]]
    return earned[i] + config.care * sum(min(earned[j], 0.0) for j in others)


def reach(config: Any) -> int:
    return 0 if config.talk is Talk.NONE else config.neighbours


def mixed(eta: float, errors: list[float]) -> float:
    mean = sum(errors) / max(1, len(errors))
    return eta * max(errors, default=0.0) + (1 - eta) * mean


CASES: dict[str, dict[str, Any]] = {
    "three steps": {},
    "one step": {"n_step": 1},
    "more steps than there are": {"n_step": 9},
    "without burn-in": {"burn_in": 0},
    "single, one round": {"double": False, "rounds": 1},
    "without a word": {"talk": Talk.NONE},
    "priority by the mean": {"eta": 0.0},
    "with care": {"care": 0.5},
    "without a word, with care": {"care": 0.3, "talk": Talk.NONE},
    "room for more than there are": {"neighbours": 6},
}


@pytest.mark.parametrize("case", CASES)
def test_loss_priorities_and_gradient_are_those_of_single_agents(case: str) -> None:
    settings = {"n_step": 3, "length": 3, "burn_in": 2} | CASES[case]
    algorithm = made(**settings)
    batch = sequences(algorithm.config.sequence)
    parameters = list(algorithm.online.parameters())
    value, priorities = plain(algorithm, batch)

    loss = loss_of(algorithm, batch)

    assert loss.value.item() == pytest.approx(value.item(), rel=1e-5)
    assert loss.td_error is not None
    assert loss.td_error.tolist() == pytest.approx(priorities, rel=1e-4)
    found = torch.autograd.grad(loss.value, parameters)
    for mine, theirs in zip(found, torch.autograd.grad(value, parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_what_comes_after_an_episodes_end_is_never_looked_at() -> None:
    algorithm = made(n_step=3, length=3, burn_in=2)
    batch = sequences(5)
    other = batch._replace(obs={name: leaf.clone() for name, leaf in batch.obs.items()})
    for name, leaf in other.obs.items():
        leaf[3, 4:] = 0 if name == PLACE else 7

    assert loss_of(algorithm, other).value.item() == loss_of(algorithm, batch).value.item()


def test_where_nothing_was_written_gradients_are_finite() -> None:
    """Masks of who is heard are 0 after an episode's end: nobody hears even itself."""
    algorithm = made(n_step=3, length=3, burn_in=2)
    loss_of(algorithm, sequences(5)).value.backward()

    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in algorithm.online.parameters()
    )
