"""Every default of an algorithm, beside the source that it was taken from."""

import inspect
from typing import Any

import pytest
import stable_baselines3 as sb3
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from rookery.config.algorithms import ALGORITHMS, DqnConfig
from rookery.config.load import leaves, load
from rookery.config.schema import Config

# Stable-Baselines3: setting → its name there. Values that are computed stand in COMPUTED.
ON_POLICY = {
    "algo.gamma": "gamma",
    "algo.gae_lambda": "gae_lambda",
    "algo.normalize_advantage": "normalize_advantage",
    "algo.vf_coef": "vf_coef",
    "algo.ent_coef": "ent_coef",
    "learner.lr": "learning_rate",
    "learner.max_grad_norm": "max_grad_norm",
}
PPO = ON_POLICY | {
    "actor.chunk": "n_steps",
    "algo.epochs": "n_epochs",
    "algo.clip_range": "clip_range",
    "algo.clip_range_vf": "clip_range_vf",
    "algo.target_kl": "target_kl",
    "replay.batch_size": "batch_size",
}
OFF_POLICY = {
    "algo.gamma": "gamma",
    "algo.target_tau": "tau",
    "replay.capacity": "buffer_size",
    "replay.batch_size": "batch_size",
    "replay.learning_starts": "learning_starts",
    "learner.lr": "learning_rate",
}
TD3 = OFF_POLICY | {
    "algo.policy_delay": "policy_delay",
    "algo.target_policy_noise": "target_policy_noise",
    "algo.target_noise_clip": "target_noise_clip",
}
SB3: dict[str, tuple[Any, dict[str, str]]] = {
    "ppo": (sb3.PPO, PPO),
    "a2c": (sb3.A2C, ON_POLICY),
    "sac": (sb3.SAC, OFF_POLICY),
    "td3": (sb3.TD3, TD3),
    "ddpg": (sb3.DDPG, OFF_POLICY),
}
ROWS = [(name, key, theirs) for name, (_, names) in SB3.items() for key, theirs in names.items()]

# RL Baselines3 Zoo, hyperparams/dqn.yml, LunarLander and Acrobot (`learning_starts`: CartPole).
DQN_OF_ZOO = {
    "net.hidden": [256, 256],
    "replay.capacity": 50_000,
    "replay.learning_starts": 1_000,
    "replay.batch_size": 128,
    "replay.samples_per_insert": 128.0,  # train_freq 4, gradient_steps -1
    "actor.epsilon_end": 0.1,
    "actor.epsilon_steps": 12_000,  # exploration_fraction 0.12 of 100,000
    "learner.lr": 6.3e-4,
}
# sb3-contrib 2.8, TQC, and the paper (Kuznetsov et al. 2020)
TQC_OF_CONTRIB = {
    "algo.critics": 2,
    "algo.quantiles": 25,
    "algo.dropped_quantiles": 2,
    "algo.target_tau": 0.005,
    "replay.batch_size": 256,
    "replay.capacity": 1_000_000,
    "replay.learning_starts": 100,
    "learner.lr": 3e-4,
    "net.hidden": [256, 256],
}
# Kapturowski et al. 2019, table 2
R2D2_OF_PAPER = {
    "algo.n_step": 5,
    "algo.eta": 0.9,
    "replay.batch_size": 64,
    "replay.alpha": 0.9,
    "replay.beta": 0.6,
}
# Espeholt et al. 2018, appendix D
IMPALA_OF_PAPER = {
    "algo.length": 20,
    "algo.ent_coef": 0.01,
    "algo.vf_coef": 0.5,
    "algo.rho_clip": 1.0,
    "algo.c_clip": 1.0,
    "replay.batch_size": 32,
    "learner.lr": 6e-4,
}
STATED = [
    (name, key, value)
    for name, stated in {
        "dqn": DQN_OF_ZOO,
        "tqc": TQC_OF_CONTRIB,
        "r2d2": R2D2_OF_PAPER,
        "impala": IMPALA_OF_PAPER,
    }.items()
    for key, value in stated.items()
]


def ours(name: str) -> dict[str, Any]:
    return dict(leaves(load(None, overrides=[f"algo={name}"])))


def theirs(cls: Any, argument: str) -> Any:
    return inspect.signature(cls).parameters[argument].default


@pytest.mark.parametrize(("name", "key", "argument"), ROWS)
def test_a_default_is_that_of_stable_baselines3(name, key, argument):
    assert ours(name)[key] == theirs(SB3[name][0], argument)


@pytest.mark.parametrize(("name", "key", "value"), STATED)
def test_a_default_is_that_of_the_stated_source(name, key, value):
    assert ours(name)[key] == value


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc"])
def test_off_policy_algorithms_learn_once_for_every_env_step_as_sb3_does(name):
    assert (theirs(sb3.SAC, "train_freq"), theirs(sb3.SAC, "gradient_steps")) == (1, 1)
    found = ours(name)

    assert found["replay.samples_per_insert"] == found["replay.batch_size"]
    assert (found["actor.envs"], found["actor.chunk"], found["actor.pull_period"]) == (1, 1, 1)
    assert found["learner.publish_period"] == 1
    assert found["learner.max_grad_norm"] is None


@pytest.mark.parametrize(
    ("name", "policy", "widths"), [("sac", SACPolicy, [256, 256]), ("td3", TD3Policy, [400, 300])]
)
def test_networks_of_continuous_algorithms_have_sb3s_widths(name, policy, widths):
    source = inspect.getsource(policy)

    assert ours(name)["net.hidden"] == widths
    assert f"net_arch = {widths}" in source


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_networks_of_actor_critics_are_sb3s(name):
    found = ours(name)

    assert "dict(pi=[64, 64], vf=[64, 64])" in inspect.getsource(ActorCriticPolicy)
    assert found["net.hidden"] == [64, 64]
    assert theirs(ActorCriticPolicy, "activation_fn").__name__ == "Tanh"
    assert found["net.activation"] == "tanh"
    assert theirs(ActorCriticPolicy, "ortho_init") is True
    assert found["net.init"] == "orthogonal"


def test_optimizers_of_on_policy_algorithms_are_sb3s():
    assert 'optimizer_kwargs["eps"] = 1e-5' in inspect.getsource(ActorCriticPolicy)
    assert ours("ppo")["learner.optimizer_kwargs"] == {"eps": 1e-5}
    assert theirs(sb3.A2C, "use_rms_prop") is True
    assert "alpha=0.99" in inspect.getsource(sb3.A2C)
    assert ours("a2c")["learner.optimizer"] == "rmsprop"
    assert ours("a2c")["learner.optimizer_kwargs"] == {
        "alpha": 0.99,
        "eps": theirs(sb3.A2C, "rms_prop_eps"),
    }


def test_a_rollout_of_a2c_has_sb3s_steps_of_each_environment():
    found = ours("a2c")

    assert found["actor.chunk"] == theirs(sb3.A2C, "n_steps") * found["actor.envs"]


def test_normalised_rewards_are_clipped_as_by_sb3():
    assert Config().env.normalized_reward_clip == theirs(VecNormalize, "clip_reward")


def test_the_schema_has_the_defaults_of_dqn():
    assert DqnConfig.defaults == {}
    assert load(None) == Config()


def test_every_algorithm_has_defaults_that_go_together():
    for name in ALGORITHMS:
        assert load(None, overrides=[f"algo={name}"]).algo.name == name


def test_what_a_user_gives_wins_over_the_defaults_of_the_algorithm():
    config = load(None, overrides=["algo=ppo", "learner.lr=0.5", "net.hidden=[8]"])

    assert (config.learner.lr, config.net.hidden) == (0.5, (8,))
    assert config.learner.max_grad_norm == 0.5


def test_another_optimizer_does_not_get_the_arguments_of_the_default_one():
    config = load(None, overrides=["algo=ppo", "learner.optimizer=sgd"])

    assert config.learner.optimizer_kwargs == {}


def test_another_algorithm_keeps_the_task_of_a_scenario_and_begins_with_its_own_defaults():
    config = load("cartpole", overrides=["algo=ppo"])
    scenario = load("cartpole")

    assert (config.env, config.eval, config.run) == (scenario.env, scenario.eval, scenario.run)
    assert config.learner == load(None, overrides=["algo=ppo"]).learner
    assert config.net == load(None, overrides=["algo=ppo"]).net


def test_defaults_of_an_algorithm_are_not_those_of_a_run_of_sb3():
    config = load("sb3-ppo")

    assert config.learner.lr == Config().learner.lr
