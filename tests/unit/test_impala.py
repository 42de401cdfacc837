"""IMPALA: V-trace as it was published, and losses over stretches that end with their episodes."""

from typing import Any

import numpy as np
import pytest
import torch

from experience import DIALS, MIXED, VECTOR
from rookery.algos import build_algorithm
from rookery.algos.actor_critic import LOG_PROB
from rookery.algos.impala import vtrace
from rookery.config.load import load
from rookery.types import Batch, EnvSpec
from traced import by_hand

GAMMA = 0.9


def test_on_policy_the_targets_are_n_step_returns():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(3, 6)), rng.normal(size=(3, 7))

    traced = vtrace(
        torch.zeros(3, 6),
        torch.tensor(reward),
        torch.full((3, 6), GAMMA),
        torch.tensor(value),
        torch.ones(3, 6),
        rho_clip=1.0,
        c_clip=1.0,
    )

    for t in range(6):
        rest = sum(GAMMA ** (k - t) * reward[:, k] for k in range(t, 6))
        expected = rest + GAMMA ** (6 - t) * value[:, 6]
        np.testing.assert_allclose(traced.wanted[:, t], expected, atol=1e-6)
        np.testing.assert_allclose(traced.advantage[:, t], expected - value[:, t], atol=1e-6)


def made(spec: EnvSpec, **changes: Any) -> Any:
    base = {"net.hidden": [16], "algo.entropy_bonus": 0.02, "algo.length": 4}
    return build_algorithm(load("impala-cartpole", changes=base | changes), spec)


def stretches(spec: EnvSpec, algorithm: Any, size: int = 3, length: int = 4) -> Batch:
    """Returns stretches of which the second ends with a death, the third with a time limit."""
    rng = np.random.default_rng(0)
    flat = size * (length + 1)
    leaves = {
        leaf.name: rng.integers(
            0, 3, size=(flat, spec.frame_stack * leaf.shape[0], *leaf.shape[1:])
        ).astype(leaf.dtype)
        for leaf in spec.obs
    }
    acted = algorithm.act(spec.pack(leaves), rng)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=np.float32)
    discount = (GAMMA * mask).astype(np.float32)
    discount[1, 1] = 0.0

    def shaped(array: Any) -> torch.Tensor:
        return torch.from_numpy(array.reshape(size, length + 1, *array.shape[1:]))

    played = shaped(acted.extras[LOG_PROB])[:, :-1]
    noise = torch.from_numpy(rng.normal(scale=0.4, size=(size, length)).astype(np.float32))
    return Batch(
        obs=spec.pack({name: shaped(leaf) for name, leaf in leaves.items()}),
        action=shaped(acted.action)[:, :-1],
        reward=torch.from_numpy(rng.normal(size=(size, length)).astype(np.float32) * mask),
        discount=torch.from_numpy(discount),
        next_obs=None,
        weight=torch.ones(size),
        rows=np.arange(size),
        mask=torch.from_numpy(mask),
        extras={LOG_PROB: played + noise},
    )


@pytest.mark.parametrize("spec", [VECTOR, DIALS, MIXED], ids=lambda spec: spec.name)
def test_the_loss_equals_a_computation_step_by_step(spec):
    algorithm = made(spec)
    batch = stretches(spec, algorithm)

    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())

    total, steps = 0.0, 0
    for b in range(3):
        played = int(batch.mask[b].sum())
        own = spec.pack({n: leaf[b] for n, leaf in spec.unpack(batch.obs).items()})
        out, value = algorithm.outputs(own)
        judged = algorithm.policy.judge(out[:played], batch.action[b, :played])
        log_prob = judged.log_prob.detach()
        ratio = (log_prob - batch.extras[LOG_PROB][b, :played]).exp().tolist()
        values = value[: played + 1].tolist()
        reward, discount = (x[b, :played].tolist() for x in (batch.reward, batch.discount))
        wanted, advantage = by_hand(ratio, reward, discount, values, 1.0, 1.0)
        for t in range(played):
            total -= advantage[t] * log_prob[t].item()
            total += 0.5 * (wanted[t] - values[t]) ** 2
            total -= 0.02 * judged.entropy[t].item()
            steps += 1
    assert steps == 4 + 2 + 1
    assert loss.value.item() == pytest.approx(total / steps, rel=1e-4)


def test_targets_are_not_learned_through():
    """The gradient is that of targets given from outside."""
    algorithm = made(VECTOR, **{"algo.entropy_bonus": 0.0})
    batch = stretches(VECTOR, algorithm)
    judged, value = algorithm._judged(batch)
    ratio = judged.log_prob.detach() - batch.extras[LOG_PROB]
    traced = vtrace(
        ratio,
        batch.reward,
        batch.discount,
        value.detach(),
        batch.mask,
        rho_clip=1.0,
        c_clip=1.0,
    )
    error = (traced.wanted - value[:, :-1]) * batch.mask
    own = (0.5 * error.square() - traced.advantage * judged.log_prob * batch.mask).sum() / 7
    parameters = list(algorithm.nets.parameters())
    wanted = torch.autograd.grad(own, parameters)

    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())

    for gradient, expected in zip(torch.autograd.grad(loss.value, parameters), wanted, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_what_lies_after_an_episodes_end_changes_nothing():
    algorithm = made(VECTOR)
    batch = stretches(VECTOR, algorithm)
    obs, action = batch.obs.clone(), batch.action.clone()
    obs[1, 3:], obs[2, 2:], action[1, 2:], action[2, 1:] = 9.0, 9.0, 0, 0

    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())
    (other,) = algorithm.losses(
        batch._replace(obs=obs, action=action), step=1, rng=torch.Generator()
    )

    torch.testing.assert_close(loss.value, other.value)
