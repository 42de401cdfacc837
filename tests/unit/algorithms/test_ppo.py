"""PPO and A2C: policies with probabilities, and losses as they were published."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.nn import functional as F

from rookery.actors.actor import Actor
from rookery.algorithms import build_algorithm, row_spec
from rookery.algorithms.actor_critic import LOG_PROB, OnPolicy
from rookery.algorithms.policy_distributions import (
    CategoricalPolicy,
    GaussianPolicy,
    MultiCategoricalPolicy,
    distribution_for,
)
from rookery.config.load import load
from rookery.config.schema import ActorConfig, Config, EnvConfig
from rookery.envs.make import make
from rookery.errors import ConfigError
from rookery.learner.learner import Learner
from rookery.networks.named_arrays import arrays_of
from rookery.replay.ring import Ring, obs_column, schema_of
from rookery.types import ADVANTAGE, AHEAD, RETURN, ActionSpec, Batch, EnvSpec, Extra
from sample_experience import DIALS, IMAGE, MIXED, VECTOR

MOTION = replace(
    VECTOR, action=ActionSpec(shape=(2, 2), low=(-1.0,) * 4, high=(1.0,) * 4), name="motion"
)
SPECS = {"one choice": VECTOR, "several": DIALS, "a motion": MOTION}
SIZE = 12


def config(name: str = "ppo", **changes: Any) -> Config:
    base = {"net.hidden": [16], "learner.device": "cpu", "eval.target": None}
    return load(f"{name}-cartpole", changes=base | changes)


def made(spec: EnvSpec, name: str = "ppo", **changes: Any) -> Any:
    """Returns an algorithm that is not undecided any more."""
    algorithm = build_algorithm(config(name, **changes), spec)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in algorithm.acting.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return algorithm


def batch_of(algorithm: OnPolicy, spec: EnvSpec, size: int = SIZE) -> Batch:
    """Returns rows as a rollout gives them: actions and probabilities of a policy near this one."""
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(size, 2)).astype(np.float32)
    acted = algorithm.act(obs, rng, values=True)
    played = acted.extras[LOG_PROB] + rng.normal(scale=0.3, size=size).astype(np.float32)
    advantage = rng.normal(size=size).astype(np.float32)
    extras = {LOG_PROB: played, ADVANTAGE: advantage, RETURN: acted.best + advantage}
    return Batch(
        obs=torch.from_numpy(obs),
        action=torch.from_numpy(acted.action),
        reward=torch.zeros(size),
        discount=None,
        next_obs=None,
        weight=torch.ones(size),
        rows=np.arange(size),
        extras={name: torch.from_numpy(extra) for name, extra in extras.items()},
    )


def loss_of(algorithm: OnPolicy, batch: Batch) -> Any:
    (loss,) = algorithm.losses(batch, step=1, rng=torch.Generator())
    return loss


class TestPolicies:
    @pytest.mark.parametrize("kind", SPECS)
    def test_actors_and_learner_compute_the_same_log_probabilities(self, kind):
        spec = SPECS[kind]
        algorithm = made(spec)
        obs = np.random.default_rng(0).normal(size=(SIZE, 2)).astype(np.float32)

        acted = algorithm.act(obs, np.random.default_rng(1), values=True)
        evaluated, value = algorithm.evaluate_actions(
            torch.from_numpy(obs), torch.from_numpy(acted.action)
        )

        assert acted.action.shape == (SIZE, *spec.action.shape)
        assert acted.action.dtype == spec.action.dtype
        assert acted.extras[LOG_PROB].dtype == acted.best.dtype == np.float32
        np.testing.assert_allclose(acted.extras[LOG_PROB], evaluated.log_prob.detach(), atol=1e-5)
        np.testing.assert_allclose(acted.best, value.detach(), atol=1e-5)
        np.testing.assert_array_equal(acted.taken, acted.best)

    @pytest.mark.parametrize(
        ("policy", "others"),
        [
            (
                CategoricalPolicy(ActionSpec(n=3)),
                lambda out: torch.distributions.Categorical(logits=out),
            ),
            (
                MultiCategoricalPolicy(ActionSpec(shape=(2,), sizes=(3, 4))),
                lambda out: [
                    torch.distributions.Categorical(logits=part) for part in out.split([3, 4], 1)
                ],
            ),
            (
                GaussianPolicy(ActionSpec(shape=(2,))),
                lambda out: torch.distributions.Normal(out, math.exp(-0.7)),
            ),
        ],
    )
    def test_probabilities_and_entropies_are_those_of_torch_distributions(self, policy, others):
        out = torch.randn((SIZE, policy.width), generator=torch.Generator().manual_seed(3))
        if isinstance(policy, GaussianPolicy):
            policy.log_std.data.fill_(-0.7)
        rng = np.random.default_rng(2)
        action = torch.from_numpy(policy.sample(out.numpy(), rng))
        known = others(out)
        parts = (
            [(own, action[:, i]) for i, own in enumerate(known)]
            if isinstance(known, list)
            else [(known, action)]
        )
        wanted = sum(own.log_prob(chosen).reshape(SIZE, -1).sum(1) for own, chosen in parts)
        entropy = sum(own.entropy().reshape(SIZE, -1).sum(1) for own, _ in parts)

        evaluated = policy.evaluate(out, action)

        torch.testing.assert_close(evaluated.log_prob, wanted)
        torch.testing.assert_close(evaluated.entropy, entropy)

    def test_choices_are_drawn_as_often_as_they_are_likely(self):
        policy, rng = (
            distribution_for(ActionSpec(shape=(2,), sizes=(2, 3))),
            np.random.default_rng(0),
        )
        out = np.log(np.array([[0.3, 0.7, 0.5, 0.1, 0.4]], dtype=np.float32)).repeat(20_000, 0)

        action = policy.sample(out, rng)

        joint = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / len(action)
        expected = np.outer([0.3, 0.7], [0.5, 0.1, 0.4]).ravel()
        np.testing.assert_allclose(joint, expected, atol=0.012)  # more than three deviations

    def test_a_gaussian_has_the_deviation_it_learned_and_is_not_clipped(self):
        policy, rng = GaussianPolicy(ActionSpec(shape=(1,))), np.random.default_rng(0)
        policy.log_std.data.fill_(math.log(3.0))

        action = policy.sample(np.full((20_000, 1), 0.5, dtype=np.float32), rng)

        assert action.mean() == pytest.approx(0.5, abs=0.07)
        assert action.std() == pytest.approx(3.0, abs=0.05)

    @pytest.mark.parametrize("kind", SPECS)
    def test_without_noise_the_likeliest_is_done_and_nothing_is_drawn(self, kind):
        algorithm, rng = made(SPECS[kind]), np.random.default_rng(0)
        obs = np.random.default_rng(0).normal(size=(SIZE, 2)).astype(np.float32)
        before = rng.bit_generator.state

        acted = algorithm.act(obs, rng, noise=False)

        assert rng.bit_generator.state == before
        drawn = [algorithm.act(obs, rng) for _ in range(200)]
        likely = algorithm.policy.log_prob(algorithm._forwards[0](obs), acted.action)
        assert all((d.extras[LOG_PROB] <= likely + 1e-5).all() for d in drawn)

    @pytest.mark.parametrize("kind", SPECS)
    def test_a_share_of_random_actions_is_uniform(self, kind):
        """While judging, eval.epsilon may ask for it."""
        spec = SPECS[kind]
        algorithm, rng = made(spec), np.random.default_rng(0)
        obs = np.zeros((6_000, 2), dtype=np.float32)

        action = algorithm.act(obs, rng, epsilon=1.0, noise=False).action.reshape(6_000, -1)

        sizes = spec.action.sizes or (spec.action.n,)
        for column, size in zip(action.T, sizes, strict=False):
            if spec.action.continuous:
                assert (column.min(), column.max()) == pytest.approx((-1.0, 1.0), abs=0.01)
            else:
                share = np.bincount(column, minlength=size) / 6_000
                np.testing.assert_allclose(share, 1 / size, atol=0.025)

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("spec", [VECTOR, IMAGE, MIXED], ids=lambda spec: spec.name)
    def test_a_policy_begins_undecided_whatever_it_sees(self, spec, shared):
        algorithm = build_algorithm(config(**{"algo.shared_net": shared}), spec)
        rng = np.random.default_rng(0)
        leaves = {
            leaf.name: rng.integers(
                0, 200, size=(4, spec.frame_stack * leaf.shape[0], *leaf.shape[1:])
            ).astype(leaf.dtype)
            for leaf in spec.obs
        }
        for name in ("place", ""):
            if name in leaves and leaves[name].ndim == 2:
                leaves[name] = (leaves[name] / 200).astype(np.float32)
        tensors = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}

        out, value = algorithm.outputs(spec.pack(tensors))

        assert out.shape == (4, algorithm.policy.width)
        assert value.shape == (4,)
        assert out.abs().max() < 0.05

    def test_statistics_of_observations_are_shared_by_both_networks(self):
        algorithm = build_algorithm(config(**{"env.normalize_obs": True}), VECTOR)

        norms = [net.features.encoders[0].norm for net in algorithm.nets]

        assert norms[0] is norms[1]

    def test_rows_keep_what_was_drawn_and_environments_get_what_they_allow(self):
        """A probability is that of the point drawn, not of the nearest one inside."""
        envs = make(EnvConfig(id="rookery.envs.toy.basic:Reach", check=False), 4)
        algorithm = build_algorithm(config(), envs.spec)
        algorithm.policy.log_std.data.fill_(1.0)
        ring = Ring.create(schema_of(row_spec(envs.spec, algorithm)), 256)
        actor = Actor(
            envs, algorithm, ActorConfig(envs=4), EnvConfig(), seed=0, ring=ring, values=True
        )

        actor.collect(40, 0.0)

        kept, moved = ring.columns["action"][:40, 0], ring.columns[obs_column("")][:40, 0]
        outside = np.abs(kept) > 1
        assert 10 < outside.sum() < 40
        assert np.abs(moved[4:] - moved[:-4]).max() <= 2.0 + 1e-6  # full speed
        obs, action = (ring.columns[name][:40] for name in (obs_column(""), "action"))
        evaluated, _ = algorithm.evaluate_actions(
            torch.from_numpy(obs.copy()), torch.from_numpy(action.copy())
        )
        np.testing.assert_allclose(
            ring.columns[LOG_PROB][:40], evaluated.log_prob.detach(), atol=1e-5
        )
        actor.close()

    def test_actors_write_probabilities_and_what_they_expect_ahead(self):
        ppo = build_algorithm(config(), VECTOR)
        impala = build_algorithm(config("impala"), VECTOR)

        assert row_spec(VECTOR, ppo).extras == (Extra(LOG_PROB), Extra(AHEAD))
        assert row_spec(VECTOR, impala).extras == (Extra(LOG_PROB),)


class TestLosses:
    @pytest.mark.parametrize("normalize", [False, True])
    @pytest.mark.parametrize("kind", SPECS)
    def test_ppo_equals_a_computation_row_by_row(self, kind, normalize):
        spec = SPECS[kind]
        changes = {"algo.normalize_advantage": normalize, "algo.ent_coef": 0.03}
        algorithm = made(spec, **changes)
        batch = batch_of(algorithm, spec)

        loss = loss_of(algorithm, batch)

        advantage = batch.extras[ADVANTAGE].double().numpy()
        if normalize:
            advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
        total, clipped = 0.0, 0
        for i in range(SIZE):
            evaluated, value = algorithm.evaluate_actions(
                batch.obs[i : i + 1], batch.action[i : i + 1]
            )
            ratio = math.exp(evaluated.log_prob.item() - batch.extras[LOG_PROB][i].item())
            held = min(max(ratio, 0.8), 1.2)
            clipped += ratio != held
            total -= min(ratio * advantage[i], held * advantage[i])
            total += 0.5 * (value.item() - batch.extras[RETURN][i].item()) ** 2
            total -= 0.03 * evaluated.entropy.item()
        assert loss.value.item() == pytest.approx(total / SIZE, rel=1e-4)
        assert loss.metrics["clip_fraction"].item() == pytest.approx(clipped / SIZE)
        assert 0 < clipped < SIZE
        assert loss.td_error is None

    def test_a_ratio_that_is_clipped_has_no_gradient_where_it_would_go_further(self):
        algorithm = made(VECTOR, **{"algo.normalize_advantage": False, "algo.vf_coef": 0.0})
        batch = batch_of(algorithm, VECTOR, 2)
        evaluated, _ = algorithm.evaluate_actions(batch.obs, batch.action)
        now = evaluated.log_prob.detach()
        for shift, advantage, moves in [
            (-0.5, 1.0, False),  # likelier than it was, and good: enough
            (0.5, -1.0, False),  # less likely than it was, and bad: enough
            (-0.5, -1.0, True),
            (0.5, 1.0, True),
            (-0.1, 1.0, True),
        ]:
            extras = batch.extras | {
                LOG_PROB: now + shift,
                ADVANTAGE: torch.full((2,), advantage),
            }
            loss = loss_of(algorithm, batch._replace(extras=extras)).value
            gradients = torch.autograd.grad(loss, list(algorithm.nets[0].parameters()))
            assert (sum(g.abs().sum() for g in gradients) > 0) == moves, (shift, advantage)

    @pytest.mark.parametrize("kind", SPECS)
    def test_a2c_equals_a_computation_row_by_row(self, kind):
        spec = SPECS[kind]
        changes = {"algo.normalize_advantage": False, "algo.ent_coef": 0.01}
        algorithm = made(spec, "a2c", **changes)
        batch = batch_of(algorithm, spec)

        loss = loss_of(algorithm, batch)

        total = 0.0
        for i in range(SIZE):
            evaluated, value = algorithm.evaluate_actions(
                batch.obs[i : i + 1], batch.action[i : i + 1]
            )
            total -= batch.extras[ADVANTAGE][i].item() * evaluated.log_prob.item()
            total += 0.5 * (value.item() - batch.extras[RETURN][i].item()) ** 2
            total -= 0.01 * evaluated.entropy.item()
        assert loss.value.item() == pytest.approx(total / SIZE, rel=1e-4)

    def test_a_batch_of_one_row_is_not_normalised(self):
        algorithm = made(VECTOR)

        loss = loss_of(algorithm, batch_of(algorithm, VECTOR, 1))

        assert loss.value.isfinite()

    def test_values_learn_through_a_shared_network_too(self):
        algorithm = made(VECTOR, **{"algo.shared_net": True, "algo.normalize_advantage": False})
        batch = batch_of(algorithm, VECTOR)
        extras = batch.extras | {ADVANTAGE: torch.zeros(SIZE)}

        loss = loss_of(algorithm, batch._replace(extras=extras)).value

        gradient = torch.autograd.grad(loss, algorithm.nets[0].out.weight)[0]
        assert (gradient[-1] != 0).any()
        assert (gradient[:-1] == 0).all()  # without advantages the policy stays


class TestSchedulesAndLimits:
    def test_clip_range_and_entropy_weight_go_to_their_ends_with_the_run(self):
        """Half way a loss is that of an algorithm with the settings half way."""
        ends = {"algo.clip_range_end": 0.1, "algo.ent_coef": 0.02, "algo.ent_coef_end": 0.0}
        scheduled = made(VECTOR, **ends)
        half_way = made(VECTOR, **{"algo.clip_range": 0.15, "algo.ent_coef": 0.01})
        batch = batch_of(scheduled, VECTOR)
        first = loss_of(scheduled, batch).value.item()

        scheduled.progress = 0.5

        assert loss_of(scheduled, batch).value.item() == loss_of(half_way, batch).value.item()
        assert loss_of(scheduled, batch).value.item() != first

    def test_a_value_moves_no_further_than_its_clip_range(self):
        """The values before the rollout was learned from are its returns minus its advantages."""
        algorithm = made(VECTOR, **{"algo.clip_range_vf": 0.5})
        before, returns = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0, 5.0, -5.0])
        value = torch.tensor([1.2, 9.0, -9.0])

        loss = algorithm.value_loss(value, returns, returns - before)

        clipped = torch.tensor([1.2, 1.5, 0.5])
        torch.testing.assert_close(loss, F.mse_loss(clipped, returns))

    def test_a_rollout_ends_when_the_policy_has_moved_too_far(self):
        limited, free = made(VECTOR, **{"algo.target_kl": 0.02}), made(VECTOR)
        far, near = {"approx_kl": torch.tensor(0.031)}, {"approx_kl": torch.tensor(0.029)}

        assert limited.ends_rollout(far)
        assert not limited.ends_rollout(near)
        assert not free.ends_rollout({"approx_kl": torch.tensor(9.0)})

    def test_critics_may_have_a_network_of_another_size(self):
        algorithm = made(VECTOR, **{"net.hidden": [16], "net.critic_hidden": [8, 4]})

        assert [layer.out_features for layer in algorithm.nets[0].hidden] == [16]
        assert [layer.out_features for layer in algorithm.nets[1].hidden] == [8, 4]


class TestAgainstSb3:
    """The same weights, the same rows: SB3's policy and formulas, one whole update."""

    SPACES: ClassVar[dict[str, Any]] = {
        "one choice": spaces.Discrete(3),
        "several": spaces.MultiDiscrete([3, 5, 2]),
        "a motion": spaces.Box(-1.0, 1.0, (4,), np.float32),
    }

    def theirs(self, kind: str, ours: Any) -> ActorCriticPolicy:
        """Returns SB3's policy with our weights."""
        policy = ActorCriticPolicy(
            spaces.Box(-9.0, 9.0, (2,), np.float32),
            self.SPACES[kind],
            lambda _: 1e-3,
            net_arch=[16],
            activation_fn=torch.nn.ReLU,
            ortho_init=False,
            optimizer_kwargs={"eps": 1e-8},
        )
        body = policy.mlp_extractor
        pairs = [
            (body.policy_net[0], ours.nets[0].hidden[0]),
            (body.value_net[0], ours.nets[1].hidden[0]),
            (policy.action_net, ours.nets[0].out),
            (policy.value_net, ours.nets[1].out),
        ]
        for mine, own in pairs:
            mine.load_state_dict(own.state_dict())
        if kind == "a motion":
            policy.log_std.data.copy_(ours.policy.log_std)
        return policy

    @pytest.mark.parametrize("kind", SPECS)
    def test_one_update_equals_sb3s(self, kind):
        changes = {
            "algo.ent_coef": 0.02,
            "learner.lr": 1e-3,
            "learner.lr_decay": "constant",
            "learner.max_grad_norm": 0.5,
        }
        settings, spec = config(**changes), SPECS[kind]
        ours = made(spec, **changes)
        batch, policy = batch_of(ours, spec), self.theirs(kind, ours)
        shaped = batch.action.flatten(1) if kind == "a motion" else batch.action
        values, log_prob, entropy = policy.evaluate_actions(batch.obs, shaped)
        advantages = batch.extras[ADVANTAGE]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = torch.exp(log_prob - batch.extras[LOG_PROB])
        first = advantages * ratio
        second = advantages * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
        policy_loss = -torch.min(first, second).mean()
        value_loss = F.mse_loss(batch.extras[RETURN], values.flatten())
        entropy_loss = -torch.mean(entropy)
        loss = policy_loss + 0.02 * entropy_loss + 0.5 * value_loss
        kl = torch.mean(
            (torch.exp(log_prob - batch.extras[LOG_PROB]) - 1) - (log_prob - batch.extras[LOG_PROB])
        )

        found = loss_of(ours, batch)

        terms = found.metrics
        torch.testing.assert_close(terms["policy_gradient_loss"], policy_loss.detach())
        torch.testing.assert_close(terms["value_loss"], value_loss.detach())
        torch.testing.assert_close(terms["entropy_loss"], entropy_loss.detach())
        torch.testing.assert_close(terms["approx_kl"], kl.detach())
        torch.testing.assert_close(found.value, loss)
        policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        policy.optimizer.step()
        learner = Learner(ours, settings.learner, settings.env, torch.device("cpu"))
        rows = batch._replace(
            obs=batch.obs.numpy(),
            action=batch.action.numpy(),
            reward=batch.reward.numpy(),
            weight=batch.weight.numpy(),
            extras={name: extra.numpy() for name, extra in batch.extras.items()},
        )
        learner.learn(rows)
        after = arrays_of(ours.acting)
        pairs = [
            ("nets.0.hidden.0.weight", policy.mlp_extractor.policy_net[0].weight),
            ("nets.1.hidden.0.weight", policy.mlp_extractor.value_net[0].weight),
            ("nets.0.out.bias", policy.action_net.bias),
            ("nets.1.out.bias", policy.value_net.bias),
        ]
        for name, wanted in pairs:
            np.testing.assert_allclose(after[name], wanted.detach().numpy(), atol=2e-5)
        if kind == "a motion":
            np.testing.assert_allclose(
                after["policy.log_std"], policy.log_std.detach().numpy(), atol=2e-5
            )


class TestRefusals:
    """What does not fit together is refused with the reason, and what to use instead."""

    @pytest.mark.parametrize("name", ["ppo", "a2c"])
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"run.mode": "async"}, r"single or sync only, got async; .*algo.name=impala"),
            ({"sharing.pool": "p"}, r"null only, got p; .*use dqn, sac, td3 or ddpg"),
            (
                {"replay.sampling": "prioritized"},
                r"uniform only, got prioritized; priorities would",
            ),
            ({"algo.n_step": 3}, r"1 only, got 3; algo.gae_lambda decides"),
            ({"actor.chunk_episodes": 2}, r"null only, got 2; a rollout has actor.chunk env steps"),
            ({"actor.epsilon": 0.1}, r"null only, got 0.1; its rows carry prob.*leave it out"),
            ({"actor.epsilon": 0.0}, r"null only, got 0.0; its rows carry prob"),
            ({"replay.hindsight": 0.5}, r"0.0 only, got 0.5; .*use dqn, sac, td3 or ddpg"),
            ({"replay.max_policy_lag": 3}, r"null only, got 3; its rows are never old"),
            ({"replay.storage": "disk"}, r"memory only, got disk; a rollout is small"),
            (
                {"replay.shards": 2, "run.mode": "sync", "actor.num": 2},
                r"null or 1 only, got 2; a rollout is one piece",
            ),
        ],
    )
    def test_rollouts_do_not_go_with(self, name, changes, message):
        key = next(iter(changes))
        with pytest.raises(ConfigError, match=rf"algo.name {name} takes {key} .*{message}"):
            config(name, **changes)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sharing.pool": "p"}, r"sharing.pool null only, got p; .*dqn, sac, td3 or ddpg"),
            ({"replay.sampling": "prioritized"}, r"replay.sampling uniform only"),
            ({"algo.n_step": 3}, r"algo.n_step 1 only, got 3; V-trace looks as far as algo.length"),
            ({"actor.epsilon": 0.1}, r"actor.epsilon null only, got 0.1"),
            ({"replay.hindsight": 0.5}, r"replay.hindsight 0.0 only, got 0.5"),
        ],
    )
    def test_impala_does_not_go_with(self, changes, message):
        with pytest.raises(ConfigError, match=f"algo.name impala takes {message}"):
            config("impala", **changes)

    def test_priorities_of_actors_are_refused_as_well(self):
        changes = {"replay.sampling": "prioritized", "replay.initial_priority": "actor"}
        with pytest.raises(ConfigError, match=r"algo\.name ppo takes replay"):
            config(**changes)

    @pytest.mark.parametrize("key", ["algo.clip_range", "algo.epochs", "replay.batch_size"])
    def test_settings_must_be_above_0(self, key):
        with pytest.raises(ConfigError, match=f"{key} must be above 0, got 0"):
            config(**{key: 0})

    def test_a_share_outside_0_to_1_is_refused(self):
        with pytest.raises(ConfigError, match=r"algo\.gae_lambda"):
            config(**{"algo.gae_lambda": 1.5})
