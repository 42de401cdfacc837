"""IMPALA: V-trace as it was published, and losses over stretches that end with their episodes."""

from typing import Any

import numpy as np
import pytest
import torch

from plain_vtrace import by_hand
from rookery.algorithms import build_algorithm
from rookery.algorithms.actor_critic import LOG_PROB
from rookery.algorithms.impala import vtrace
from rookery.config.load import load
from rookery.types import Batch, EnvSpec
from sample_experience import DIALS, MIXED, VECTOR

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
        np.testing.assert_allclose(traced.value_target[:, t], expected, atol=1e-6)
        np.testing.assert_allclose(traced.advantage[:, t], expected - value[:, t], atol=1e-6)


def made(spec: EnvSpec, **changes: Any) -> Any:
    base = {"net.hidden": [16], "algo.ent_coef": 0.02, "algo.length": 4}
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
        evaluated = algorithm.policy.evaluate(out[:played], batch.action[b, :played])
        log_prob = evaluated.log_prob.detach()
        ratio = (log_prob - batch.extras[LOG_PROB][b, :played]).exp().tolist()
        values = value[: played + 1].tolist()
        reward, discount = (x[b, :played].tolist() for x in (batch.reward, batch.discount))
        value_target, advantage = by_hand(ratio, reward, discount, values, 1.0, 1.0)
        for t in range(played):
            total -= advantage[t] * log_prob[t].item()
            total += 0.5 * (value_target[t] - values[t]) ** 2
            total -= 0.02 * evaluated.entropy[t].item()
            steps += 1
    assert steps == 4 + 2 + 1
    assert loss.value.item() == pytest.approx(total / steps, rel=1e-4)


def test_targets_are_not_learned_through():
    """The gradient is that of targets given from outside."""
    algorithm = made(VECTOR, **{"algo.ent_coef": 0.0})
    batch = stretches(VECTOR, algorithm)
    evaluated, value = algorithm._evaluate(batch)
    ratio = evaluated.log_prob.detach() - batch.extras[LOG_PROB]
    traced = vtrace(
        ratio,
        batch.reward,
        batch.discount,
        value.detach(),
        batch.mask,
        rho_clip=1.0,
        c_clip=1.0,
    )
    error = (traced.value_target - value[:, :-1]) * batch.mask
    own = (0.5 * error.square() - traced.advantage * evaluated.log_prob * batch.mask).sum() / 7
    parameters = list(algorithm.nets.parameters())
    expected = torch.autograd.grad(own, parameters)

    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())

    for gradient, wanted in zip(torch.autograd.grad(loss.value, parameters), expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


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
