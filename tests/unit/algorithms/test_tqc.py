"""Truncated quantile critics: what is dropped, and their losses by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from continuous_algorithms import (
    ROWS,
    Plain,
    batch,
    losses,
    made,
    noises,
    plain_critics,
    squashed,
    steps_of_each_loss,
)
from rookery.algorithms.tqc import Tqc, quantile_regression_loss
from rookery.config.algorithms import TqcConfig
from rookery.errors import ConfigError

FEW = TqcConfig(quantiles=5, dropped_quantiles=2, temperature=0.3)


def pinball(said: Any, wanted: Any) -> float:
    """Returns the mean Huber loss of all pairs, tilted to each quantile's level."""
    total = 0.0
    for i, q in enumerate(said):
        for w in wanted:
            error = w - q
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs((i + 0.5) / len(said) - (error < 0)) * huber
    return total / (len(said) * len(wanted))


def test_the_critics_loss_is_of_the_smallest_quantiles_of_all_critics_together() -> None:
    algorithm, on, noise = made(Tqc, FEW), batch(), noises(1)[0]
    policy, critics = Plain(algorithm.policy), plain_critics(algorithm.critic)
    targets = plain_critics(algorithm.target.network)
    total, errors = 0.0, []
    for i in range(ROWS):
        next_obs = on.next_obs[i].numpy()
        action, log_prob = squashed(policy(next_obs), noise[i])
        quantiles = sorted(np.concatenate([target(next_obs, action) for target in targets]))[:6]
        reward, discount = on.reward[i].item(), on.discount[i].item()
        wanted = [reward + discount * (q - 0.3 * log_prob) for q in quantiles]
        said = [critic(on.obs[i].numpy(), on.action[i].numpy()) for critic in critics]
        total += on.weight[i].item() * np.mean([pinball(s, wanted) for s in said]) / ROWS
        errors.append(np.mean(wanted) - np.mean(said))

    loss = losses(algorithm, on)["critic"]

    assert loss.value.item() == pytest.approx(total, rel=1e-5)
    assert loss.td_error is not None
    assert loss.td_error.numpy() == pytest.approx(errors, rel=1e-4, abs=1e-6)


def test_the_actor_climbs_the_mean_of_all_quantiles() -> None:
    algorithm, on, noise = made(Tqc, FEW), batch(), noises(2)[1]
    policy, critics = Plain(algorithm.policy), plain_critics(algorithm.critic)
    each = []
    for i, obs in enumerate(on.obs.numpy()):
        action, log_prob = squashed(policy(obs), noise[i])
        each.append(0.3 * log_prob - np.mean([critic(obs, action) for critic in critics]))

    assert losses(algorithm, on)["actor"].value.item() == pytest.approx(np.mean(each), rel=1e-5)


def test_quantiles_that_were_learned_are_those_of_the_distribution() -> None:
    """Of 0, 1, ..., 99, each as likely: the middles of four quarters."""
    wanted, q = torch.arange(100.0)[None], torch.zeros(1, 1, 4, requires_grad=True)
    optimizer = torch.optim.SGD([q], lr=20.0)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_regression_loss(q, wanted).sum().backward()
        optimizer.step()

    assert q.detach().flatten().tolist() == pytest.approx([12.0, 37.0, 62.0, 87.0], abs=1.0)


def test_each_loss_changes_what_it_is_for_and_nothing_else() -> None:
    algorithm = made(Tqc, TqcConfig())
    parts = {
        "critic": algorithm.critic,
        "actor": algorithm.policy,
        "temperature": algorithm.temperature,
        "target": algorithm.target.network,
    }

    changed = steps_of_each_loss(algorithm, parts, batch())

    assert changed == {name: {name} for name in ("critic", "actor", "temperature")}


def test_values_of_actors_are_means_of_quantiles() -> None:
    algorithm, obs = made(Tqc, FEW), batch().obs.numpy()
    acted = algorithm.act(obs, np.random.default_rng(0), values=True)

    for i, o in enumerate(obs):
        said = [critic(o, acted.action[i]) for critic in plain_critics(algorithm.critic)]
        assert acted.taken[i] == pytest.approx(np.mean(said), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("dropped", "allowed"), [(-1, "at least 0"), (25, r"below algo\.quantiles 25")]
)
def test_something_must_be_left(dropped: int, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"dropped_quantiles must be {allowed}"):
        TqcConfig(dropped_quantiles=dropped)
