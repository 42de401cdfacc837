"""Soft actor-critic: its losses by hand, against SB3's, and what each of them changes."""

import math
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution, normal

from continuous_algorithms import (
    ROWS,
    SPEC,
    Plain,
    arrays,
    batch,
    learner,
    losses,
    made,
    noises,
    plain_critics,
    squashed,
    steps_of_each_loss,
    weights,
)
from rookery.algorithms.sac import DiscreteSac, Sac, Temperature, sac
from rookery.config.algorithms import SacConfig
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
    sac_actor,
    teach,
    twin,
)

BUTTONS = EnvSpec("buttons", SPEC.obs, ActionSpec(n=4))
DIALS = EnvSpec("dials", SPEC.obs, ActionSpec(shape=(2,), sizes=(3, 4)))


def critic_loss_by_hand(algorithm: Any, on: Any, alpha: float) -> tuple[float, list[float]]:
    policy, noise = Plain(algorithm.policy), noises(1)[0]
    critics, targets = plain_critics(algorithm.critic), plain_critics(algorithm.target.network)
    total, errors = 0.0, []
    for i in range(ROWS):
        obs, next_obs = on.obs[i].numpy(), on.next_obs[i].numpy()
        action, log_prob = squashed(policy(next_obs), noise[i])
        soft = min(target(next_obs, action)[0] for target in targets) - alpha * log_prob
        wanted = on.reward[i].item() + on.discount[i].item() * soft
        missed = [wanted - critic(obs, on.action[i].numpy())[0] for critic in critics]
        total += on.weight[i].item() * 0.5 * sum(m * m for m in missed) / ROWS
        errors.append(sum(missed) / len(missed))
    return total, errors


@pytest.mark.parametrize("critics", [1, 2, 3])
def test_the_critics_loss_is_the_weighted_squared_error_to_the_soft_target(critics: int) -> None:
    algorithm = made(Sac, SacConfig(temperature=0.3, critics=critics))
    total, errors = critic_loss_by_hand(algorithm, batch(), alpha=0.3)

    loss = losses(algorithm, batch())["critic"]

    assert loss.value.item() == pytest.approx(total, rel=1e-5)
    assert loss.td_error is not None
    assert loss.td_error.numpy() == pytest.approx(errors, rel=1e-4)  # unweighted: it ranks rows


def test_the_actors_loss_trades_the_smallest_opinion_for_entropy() -> None:
    algorithm, on = made(Sac, SacConfig(temperature=0.3)), batch()
    policy, critics, noise = Plain(algorithm.policy), plain_critics(algorithm.critic), noises(2)[1]
    each = []
    for i in range(ROWS):
        obs = on.obs[i].numpy()
        action, log_prob = squashed(policy(obs), noise[i])
        each.append((0.3 * log_prob - min(c(obs, action)[0] for c in critics), -log_prob))

    loss = losses(algorithm, on)["actor"]

    assert loss.value.item() == pytest.approx(np.mean(each, axis=0)[0], rel=1e-5)
    assert loss.metrics["entropy"].item() == pytest.approx(np.mean(each, axis=0)[1], rel=1e-5)


def test_log_probabilities_are_those_of_a_squashed_gaussian() -> None:
    algorithm, obs = made(Sac, SacConfig()), batch().obs
    mean, log_std = algorithm.policy(obs).double().chunk(2, 1)
    wanted = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])

    action, log_prob = algorithm.sample(obs, torch.Generator().manual_seed(0))

    assert torch.allclose(log_prob.double(), wanted.log_prob(action.double()).sum(1), rtol=1e-3)


@pytest.mark.parametrize("far", [-30.0, 30.0])
def test_an_action_at_the_edge_has_a_finite_log_probability_and_gradient(far: float) -> None:
    algorithm = made(Sac, SacConfig())
    with torch.no_grad():
        algorithm.policy.out.bias[:2] = far  # tanh is 1 in float32, and log(1 - 1) would not do

    _, log_prob = algorithm.sample(batch().obs, torch.Generator())
    log_prob.mean().backward()

    assert log_prob.isfinite().all()
    assert all(p.grad.isfinite().all() for p in algorithm.policy.parameters())


class TestTemperature:
    def test_its_loss_is_its_logarithm_times_the_entropy_above_the_target(self) -> None:
        entropy = torch.tensor([1.0, 2.0, 4.5])
        loss = next(
            Temperature(SacConfig(initial_temperature=2.0), usual_target=1.5).losses(entropy)
        )

        assert loss.value.item() == pytest.approx(math.log(2.0) * (2.5 - 1.5))

    @pytest.mark.parametrize(("entropy", "grows"), [(-3.0, True), (-1.0, False)])
    def test_it_rises_where_there_is_too_little_entropy(self, entropy: float, grows: bool) -> None:
        temperature = Temperature(SacConfig(), usual_target=-2.0)
        next(temperature.losses(torch.tensor([entropy]))).value.backward()

        assert (temperature.log.grad.item() < 0) == grows  # type: ignore[union-attr]

    def test_one_that_is_given_is_kept(self) -> None:
        algorithm = made(Sac, SacConfig(temperature=0.2))

        assert set(losses(algorithm, batch())) == set(algorithm.groups()) == {"critic", "actor"}
        assert algorithm.temperature().item() == pytest.approx(0.2)

    def test_it_may_be_0(self) -> None:
        algorithm = made(Sac, SacConfig(temperature=0.0))

        assert losses(algorithm, batch())["critic"].value.isfinite()

    @pytest.mark.parametrize(("spec", "target"), [(SPEC, -2.0), (BUTTONS, 0.5 * math.log(4))])
    def test_its_target_follows_from_the_actions(self, spec: EnvSpec, target: float) -> None:
        assert made(sac, SacConfig(), spec).temperature.target == pytest.approx(target)
        assert made(sac, SacConfig(target_entropy=0.7), spec).temperature.target == 0.7


@pytest.mark.parametrize("spec", [SPEC, BUTTONS], ids=["continuous", "discrete"])
def test_each_loss_changes_what_it_is_for_and_nothing_else(spec: EnvSpec) -> None:
    algorithm = made(sac, SacConfig(), spec)
    parts = {
        "critic": algorithm.critic,
        "actor": algorithm.policy,
        "temperature": algorithm.temperature,
        "target": algorithm.target.network,
    }

    changed = steps_of_each_loss(algorithm, parts, batch(spec=spec))

    assert changed == {name: {name} for name in ("critic", "actor", "temperature")}


@pytest.mark.parametrize("temperature", [None, 0.2], ids=["learned", "given"])
def test_ten_updates_end_where_sb3s_do(
    temperature: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same weights, batches and noise; SB3 knows no importance weights."""
    batches = [batch(seed)._replace(weight=torch.ones(ROWS)) for seed in range(10)]
    algorithm = made(Sac, SacConfig(temperature=temperature))
    taught = learner(algorithm, LR)
    taught.rng.manual_seed(5)
    drawn = torch.from_numpy(np.array(noises(20, seed=5), dtype=np.float32))
    pairs = iter(drawn.reshape(10, 2, ROWS, 2).flip(1).flatten(0, 1))  # theirs begins with obs
    with torch.random.fork_rng(devices=[]):
        model = twin(stable_baselines3.SAC, ent_coef=temperature or "auto")
        copy_critic(model.critic, algorithm.critic)
        copy_critic(model.critic_target, algorithm.target.network)
        copy_layers(sac_actor(model.actor), algorithm.policy, heads=2)
        monkeypatch.setattr(normal, "_standard_normal", lambda *_, **__: next(pairs))
        teach(model, batches)
    for on in batches:
        taught.learn(arrays(on))

    assert flat_our_critics(algorithm.critic) == pytest.approx(flat_critics(model.critic), abs=1e-5)
    target = flat_our_critics(algorithm.target.network)
    assert target == pytest.approx(flat_critics(model.critic_target), abs=1e-5)
    assert flat_ours(algorithm.policy) == pytest.approx(flat(sac_actor(model.actor)), abs=1e-5)
    if temperature is None:
        assert algorithm.temperature.log.item() == pytest.approx(
            model.log_ent_coef.item(), abs=1e-5
        )


@pytest.mark.parametrize("spec", [SPEC, BUTTONS], ids=["continuous", "discrete"])
def test_the_target_goes_a_share_of_the_way_after_each_step(spec: EnvSpec) -> None:
    algorithm = made(sac, SacConfig(target_tau=0.25), spec)
    before, aim = weights(algorithm.target.network), weights(algorithm.critic)
    algorithm.update_targets(1)

    for old, new, now in zip(before, aim, weights(algorithm.target.network), strict=True):
        assert np.allclose(now, 0.75 * old + 0.25 * new, atol=1e-7)


class TestDiscrete:
    def test_the_critics_loss_expects_over_all_choices(self) -> None:
        algorithm, on = made(sac, SacConfig(temperature=0.3), BUTTONS), batch(spec=BUTTONS)
        policy = Plain(algorithm.policy)
        critics = [Plain(critic) for critic in algorithm.critic]
        targets = [Plain(target) for target in algorithm.target.network]
        total, errors = 0.0, []
        for i in range(ROWS):
            next_obs, chosen = on.next_obs[i].numpy(), int(on.action[i])
            log_prob = log_softmax(policy(next_obs))
            least = np.min([target(next_obs) for target in targets], axis=0)
            soft = sum(math.exp(p) * (q - 0.3 * p) for p, q in zip(log_prob, least, strict=True))
            wanted = on.reward[i].item() + on.discount[i].item() * soft
            missed = [wanted - critic(on.obs[i].numpy())[chosen] for critic in critics]
            total += on.weight[i].item() * 0.5 * sum(m * m for m in missed) / ROWS
            errors.append(sum(missed) / 2)

        loss = losses(algorithm, on)["critic"]

        assert loss.value.item() == pytest.approx(total, rel=1e-5)
        assert loss.td_error is not None
        assert loss.td_error.numpy() == pytest.approx(errors, rel=1e-4)

    def test_the_actors_loss_needs_no_sample(self) -> None:
        algorithm, on = made(sac, SacConfig(temperature=0.3), BUTTONS), batch(spec=BUTTONS)
        policy, critics = Plain(algorithm.policy), [Plain(critic) for critic in algorithm.critic]
        total, entropy = 0.0, 0.0
        for obs in on.obs.numpy():
            log_prob = log_softmax(policy(obs))
            least = np.min([critic(obs) for critic in critics], axis=0)
            total += (
                sum(math.exp(p) * (0.3 * p - q) for p, q in zip(log_prob, least, strict=True))
                / ROWS
            )
            entropy -= sum(math.exp(p) * p for p in log_prob) / ROWS

        loss = losses(algorithm, on)["actor"]

        assert loss.value.item() == pytest.approx(total, rel=1e-5)
        assert loss.metrics["entropy"].item() == pytest.approx(entropy, rel=1e-5)

    def test_it_draws_as_often_as_its_policy_says(self) -> None:
        algorithm = made(sac, SacConfig(), BUTTONS)
        obs = np.repeat(batch().obs[:1].numpy(), 20_000, axis=0)
        prob = np.exp(log_softmax(Plain(algorithm.policy)(obs[0])))

        counts = np.bincount(algorithm.act(obs, np.random.default_rng(0)).action, minlength=4)

        # Five standard errors: fails once in a million for each choice.
        assert np.abs(counts / 20_000 - prob).max() < 5 * math.sqrt(0.25 / 20_000)

    def test_its_values_are_the_smallest_opinions_of_what_it_took_and_of_the_best(self) -> None:
        algorithm, obs = made(sac, SacConfig(), BUTTONS), batch().obs.numpy()
        critics = [Plain(critic) for critic in algorithm.critic]
        least = np.array([np.min([c(o) for c in critics], axis=0) for o in obs])

        acted = algorithm.act(obs, np.random.default_rng(0), values=True)

        assert acted.taken == pytest.approx(least[np.arange(ROWS), acted.action], rel=1e-4)
        assert acted.best == pytest.approx(least.max(1), rel=1e-4)


class TestActing:
    def test_without_noise_it_takes_the_middle(self) -> None:
        algorithm, obs = made(Sac, SacConfig()), batch().obs.numpy()
        middle = [np.tanh(Plain(algorithm.policy)(o)[:2]) for o in obs]

        acted = algorithm.act(obs, np.random.default_rng(0), noise=False)

        assert acted.action == pytest.approx(np.array(middle), rel=1e-4)
        assert (acted.taken, acted.best) == (None, None)

    def test_with_noise_it_plays_the_policy_it_learns(self) -> None:
        """The same mean and deviation before squashing, within five standard errors."""
        algorithm = made(Sac, SacConfig())
        obs = np.repeat(batch().obs[:1].numpy(), 20_000, axis=0)
        mean, log_std = np.split(Plain(algorithm.policy)(obs[0]), 2)

        raw = np.arctanh(algorithm.act(obs, np.random.default_rng(0)).action.astype(np.float64))

        error = np.exp(log_std) / math.sqrt(20_000)
        assert (np.abs(raw.mean(0) - mean) < 5 * error).all()
        assert (np.abs(raw.std(0) - np.exp(log_std)) < 5 * error).all()

    def test_epsilon_is_a_share_of_uniform_actions(self) -> None:
        algorithm, obs = made(Sac, SacConfig()), np.zeros((4_000, 3), dtype=np.float32)

        action = algorithm.act(obs, np.random.default_rng(0), epsilon=0.25, noise=False).action

        middle = np.tanh(Plain(algorithm.policy)(obs[0])[:2])
        other = np.abs(action - middle).max(1) > 1e-5
        assert other.mean() == pytest.approx(0.25, abs=0.035)  # five standard errors
        assert action[other].min() < -0.95
        assert action[other].max() > 0.95

    def test_its_values_are_the_smallest_opinions_of_what_it_took_and_of_the_middle(self) -> None:
        algorithm, obs = made(Sac, SacConfig()), batch().obs.numpy()
        critics = plain_critics(algorithm.critic)
        middle = algorithm.act(obs, np.random.default_rng(0), noise=False).action

        acted = algorithm.act(obs, np.random.default_rng(0), values=True)

        for i, o in enumerate(obs):
            taken = min(c(o, acted.action[i])[0] for c in critics)
            assert acted.taken[i] == pytest.approx(taken, rel=1e-4, abs=1e-5)
            best = min(c(o, middle[i])[0] for c in critics)
            assert acted.best[i] == pytest.approx(best, rel=1e-4, abs=1e-5)

    def test_actions_have_the_shape_of_the_environments(self) -> None:
        spec = EnvSpec("arms", SPEC.obs, ActionSpec(shape=(2, 3)))
        algorithm = made(Sac, SacConfig(), spec)
        acted = algorithm.act(np.zeros((5, 3), np.float32), np.random.default_rng(0), values=True)

        assert acted.action.shape == (5, 2, 3)
        assert acted.action.dtype == np.float32
        assert losses(algorithm, batch(spec=spec))["actor"].value.isfinite()


def test_the_actions_decide_which_of_the_two_it_is() -> None:
    assert type(made(sac, SacConfig(), SPEC)) is Sac
    assert type(made(sac, SacConfig(), BUTTONS)) is DiscreteSac


def test_several_choices_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="sac needs continuous actions, but dials has several"):
        made(sac, SacConfig(), DIALS)


def test_observations_are_normalised_alike_by_all_networks() -> None:
    algorithm = made(Sac, SacConfig(), normalize_obs=True)
    taught = learner(algorithm)
    taught.normalize = type(taught.normalize)(normalize_obs=True)
    taught.observe({"": np.full((50, 3), 7.0, np.float32)}, np.zeros(50, np.float32))
    nets = [algorithm.policy, *algorithm.critic.networks, *algorithm.target.network.networks]

    norms = {id(net.features.encoders[0].norm) for net in nets}

    assert len(norms) == 1
    assert nets[0].features.encoders[0].norm.mean.tolist() == pytest.approx([7.0] * 3, rel=0.1)


def log_softmax(logits: Any) -> list[float]:
    total = math.log(sum(math.exp(x) for x in logits))
    return [x - total for x in logits]
