"""DDPG and TD3: their losses by hand, against SB3's, and when what moves."""

import math
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch

from continuous_algorithms import (
    ROWS,
    SPEC,
    Own,
    Plain,
    arrays,
    batch,
    learner,
    losses,
    made,
    noises,
    plain_critics,
    same,
    steps_of_each_loss,
    weights,
)
from rookery.algorithms.ddpg import Ddpg
from rookery.algorithms.td3 import Td3
from rookery.config.algorithms import ALGORITHMS, DdpgConfig, Td3Config, load_class
from rookery.config.schema import NetConfig
from rookery.errors import ConfigError
from rookery.types import ActionSpec, EnvSpec
from sb3_twins import (
    LR,
    copy_critic,
    copy_layers,
    flat,
    flat_critics,
    flat_our_critics,
    flat_ours,
    td3_actor,
    teach,
    twin,
)

BOTH = [(Ddpg, DdpgConfig()), (Td3, Td3Config())]
NAMES = ["ddpg", "td3"]


@pytest.mark.parametrize(
    ("cls", "config", "deviation", "clip"),
    [
        (Ddpg, DdpgConfig(), 0.0, 0.0),
        (Td3, Td3Config(), 0.2, 0.5),
        (Td3, Td3Config(target_policy_noise=0.8, target_noise_clip=0.3), 0.8, 0.3),
        (
            Td3,
            Td3Config(target_policy_noise=3.0, target_noise_clip=3.0),
            3.0,
            3.0,
        ),  # beyond all bounds
    ],
)
def test_the_critics_loss_is_the_weighted_squared_error_to_the_smallest_target(
    cls: Any, config: Any, deviation: float, clip: float
) -> None:
    algorithm, on, noise = made(cls, config), batch(), noises(1)[0]
    critics = plain_critics(algorithm.critic)
    policy = Plain(algorithm.target.network["policy"])
    targets = plain_critics(algorithm.target.network["critic"])
    total, errors = 0.0, []
    for i in range(ROWS):
        next_obs = on.next_obs[i].numpy()
        around = [min(max(deviation * n, -clip), clip) for n in noise[i]]
        action = np.clip(np.tanh(policy(next_obs)) + around, -1.0, 1.0)
        least = min(target(next_obs, action)[0] for target in targets)
        wanted = on.reward[i].item() + on.discount[i].item() * least
        missed = [wanted - c(on.obs[i].numpy(), on.action[i].numpy())[0] for c in critics]
        total += on.weight[i].item() * sum(m * m for m in missed) / ROWS
        errors.append(sum(missed) / len(missed))

    loss = losses(algorithm, on)["critic"]

    assert len(critics) == (2 if cls is Td3 else 1)
    assert loss.value.item() == pytest.approx(total, rel=1e-5)
    assert loss.td_error is not None
    assert loss.td_error.numpy() == pytest.approx(errors, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("cls", "config"), BOTH, ids=NAMES)
def test_the_policy_climbs_the_first_critic(cls: Any, config: Any) -> None:
    algorithm, on = made(cls, config), batch()
    policy, first = Plain(algorithm.policy), plain_critics(algorithm.critic)[0]
    worth = [first(obs, np.tanh(policy(obs)))[0] for obs in on.obs.numpy()]

    assert losses(algorithm, on)["actor"].value.item() == pytest.approx(-np.mean(worth), rel=1e-5)


@pytest.mark.parametrize(("cls", "config"), BOTH, ids=NAMES)
def test_each_loss_changes_what_it_is_for_and_nothing_else(cls: Any, config: Any) -> None:
    algorithm = made(cls, config)
    parts = {
        "critic": algorithm.critic,
        "actor": algorithm.policy,
        "target": algorithm.target.network,
    }

    changed = steps_of_each_loss(algorithm, parts, batch())

    assert changed == {"critic": {"critic"}, "actor": {"actor"}}


@pytest.mark.parametrize(
    ("cls", "config", "moving"),
    [
        (Ddpg, DdpgConfig(), {1, 2, 3, 4, 5, 6}),
        (Td3, Td3Config(), {2, 4, 6}),
        (Td3, Td3Config(policy_delay=3), {3, 6}),
    ],
)
def test_policy_and_targets_move_together(cls: Any, config: Any, moving: set[int]) -> None:
    algorithm = made(cls, config)
    taught, policy, target = learner(algorithm), set(), set()
    for step in range(1, 7):
        before = weights(algorithm.policy), weights(algorithm.target.network)
        taught.learn(arrays(batch(step)))
        policy |= set() if same(before[0], algorithm.policy) else {step}
        target |= set() if same(before[1], algorithm.target.network) else {step}

    assert policy == target == moving


@pytest.mark.parametrize("ours", NAMES)
def test_ten_updates_end_where_sb3s_do(ours: str) -> None:
    """With the same weights, batches and noise; SB3 knows no importance weights."""
    cls, config, theirs = {
        "ddpg": (Ddpg, DdpgConfig(), stable_baselines3.DDPG),
        "td3": (Td3, Td3Config(), stable_baselines3.TD3),
    }[ours]
    batches = [batch(seed)._replace(weight=torch.ones(ROWS)) for seed in range(10)]
    algorithm = made(cls, config)
    taught = learner(algorithm, LR)
    taught.rng.manual_seed(5)
    with torch.random.fork_rng(devices=[]):
        model = twin(theirs)
        target: Any = algorithm.target.network
        copy_critic(model.critic, algorithm.critic)
        copy_critic(model.critic_target, target["critic"])
        copy_layers(td3_actor(model.actor), algorithm.policy)
        copy_layers(td3_actor(model.actor_target), target["policy"])
        torch.manual_seed(5)
        teach(model, batches)
    for on in batches:
        taught.learn(arrays(on))

    for their, our in [(model.critic, algorithm.critic), (model.critic_target, target["critic"])]:
        assert flat_our_critics(our) == pytest.approx(flat_critics(their), abs=1e-5)
    for their, our in [(model.actor, algorithm.policy), (model.actor_target, target["policy"])]:
        assert flat_ours(our) == pytest.approx(flat(td3_actor(their)), abs=1e-5)


class TestActing:
    def test_without_noise_it_does_what_its_policy_says(self) -> None:
        algorithm, obs = made(Td3, Td3Config()), batch().obs.numpy()
        said = np.array([np.tanh(Plain(algorithm.policy)(o)) for o in obs])

        acted = algorithm.act(obs, np.random.default_rng(0), noise=False)

        assert acted.action == pytest.approx(said, rel=1e-4, abs=1e-6)

    @pytest.mark.parametrize("deviation", [0.05, 0.2])
    def test_it_explores_around_it_with_the_deviation_that_was_asked_for(
        self, deviation: float
    ) -> None:
        algorithm = made(Ddpg, DdpgConfig(noise=deviation))
        obs = np.zeros((10_000, 3), dtype=np.float32)
        said = np.tanh(Plain(algorithm.policy)(obs[0]))

        apart = algorithm.act(obs, np.random.default_rng(0)).action - said

        error = deviation / math.sqrt(10_000)
        assert (np.abs(apart.mean(0)) < 5 * error).all()
        assert (np.abs(apart.std(0) - deviation) < 5 * error).all()

    def test_actions_stay_within_bounds(self) -> None:
        algorithm = made(Ddpg, DdpgConfig(noise=5.0))
        obs = np.zeros((100, 3), dtype=np.float32)
        action = algorithm.act(obs, np.random.default_rng(0)).action

        assert (action.min(), action.max()) == (-1.0, 1.0)
        assert action.dtype == np.float32

    def test_its_values_are_of_the_action_it_took_and_of_the_one_its_policy_says(self) -> None:
        algorithm, obs = made(Td3, Td3Config(noise=0.5)), batch().obs.numpy()
        critics = plain_critics(algorithm.critic)
        said = algorithm.act(obs, np.random.default_rng(0), noise=False).action

        acted = algorithm.act(obs, np.random.default_rng(0), values=True)

        for i, o in enumerate(obs):
            taken = min(c(o, acted.action[i])[0] for c in critics)
            assert acted.taken[i] == pytest.approx(taken, rel=1e-4, abs=1e-5)
            best = min(c(o, said[i])[0] for c in critics)
            assert acted.best[i] == pytest.approx(best, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("cls", "config"), BOTH, ids=NAMES)
def test_choices_are_refused(cls: Any, config: Any) -> None:
    buttons = EnvSpec("buttons", SPEC.obs, ActionSpec(n=4))

    with pytest.raises(ConfigError, match="needs continuous actions, but buttons has 4 discrete"):
        made(cls, config, buttons)


@pytest.mark.parametrize("name", ["sac", "tqc", "td3", "ddpg"])
def test_a_users_own_network_is_policy_and_critics(name: str) -> None:
    entry = ALGORITHMS[name]
    algorithm = made(
        load_class(entry.where), entry.settings(), net=NetConfig(custom="continuous_algorithms:Own")
    )
    before = weights(algorithm.acting)
    taught = learner(algorithm)
    for step in range(2):
        assert np.isfinite(taught.learn(arrays(batch(step))).td_error).all()

    changed = [
        not np.array_equal(*pair) for pair in zip(before, weights(algorithm.acting), strict=True)
    ]
    assert all(changed)
    assert all(isinstance(net, Own) for net in [algorithm.policy, *algorithm.critic.networks])
