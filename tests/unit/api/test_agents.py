"""Agents take the settings of their algorithm, and say what they cannot do."""

from dataclasses import fields

import pytest

import rookery
from rookery.api import algorithm_agents as agents
from rookery.api.agent import SETTINGS, Agent
from rookery.config.algorithms import ALGORITHMS
from rookery.config.parse import keys
from rookery.errors import ConfigError, ProtocolError

CLASSES = [found for found in vars(agents).values() if Agent in getattr(found, "__mro__", ())[1:]]
TYPED = {"dqn": agents.DqnSettings, "sac": agents.SacSettings, "tqc": agents.TqcSettings}
TYPED |= {"ddpg": agents.DdpgSettings, "td3": agents.Td3Settings, "r2d2": agents.R2d2Settings}
TYPED |= {"ppo": agents.PpoSettings, "a2c": agents.A2cSettings, "impala": agents.ImpalaSettings}


def test_every_algorithm_of_the_core_has_a_class():
    assert {cls.algorithm for cls in CLASSES} == set(ALGORITHMS) == set(TYPED)
    assert all(getattr(rookery, cls.__name__) is cls for cls in CLASSES)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_its_keyword_arguments_are_its_settings_and_the_common_ones(algorithm):
    own = {field.name for field in fields(ALGORITHMS[algorithm].settings)} - {"name"}

    common = {"seed", "run_dir", "overrides", *SETTINGS}
    assert set(TYPED[algorithm].__annotations__) == own | common


def test_common_arguments_stand_for_settings_that_exist():
    assert set(SETTINGS.values()) <= set(keys())


def test_arguments_become_settings_of_the_run():
    agent = rookery.SAC(
        "Pendulum-v1", seed=7, lr=0.01, hidden=[32], critics=3, overrides=["eval.period=500"]
    )

    config = agent.config
    assert (config.algo.name, config.run.seed, config.env.id) == ("sac", 7, "Pendulum-v1")
    assert (config.learner.lr, config.net.hidden, config.algo.critics) == (0.01, (32,), 3)
    assert config.eval.period == 500


def test_an_argument_of_another_algorithm_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"PPO has no argument 'clip_rang'; did you.*clip_range'"):
        rookery.PPO("CartPole-v1", clip_rang=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"learning_rate": 1e-3},
            "no argument 'learning_rate'; Rookery calls it lr. Allowed: seed",
        ),
        ({"buffer_size": 9}, "no argument 'buffer_size'; Rookery calls it capacity. "),
        ({"verbose": 1}, "no argument 'verbose'; Allowed: seed, lr, "),
        ({"lr": "fast"}, "lr must be a number, got the text 'fast'"),
        ({"clip_range": -1.0}, "clip_range must be above 0, got -1.0"),
    ],
)
def test_errors_name_arguments_and_not_settings(settings, said):
    with pytest.raises(ConfigError) as refused:
        rookery.PPO("CartPole-v1", **settings)

    assert said in str(refused.value)
    assert "algo." not in str(refused.value)


def test_an_agent_shows_its_environment_and_its_run():
    assert (
        repr(rookery.SAC("Pendulum-v1", run_dir="runs/a")) == "SAC('Pendulum-v1', run_dir='runs/a')"
    )


def test_an_agent_that_is_nowhere_is_refused():
    with pytest.raises(
        ConfigError, match=r"no agent at 'nowhere'; give a file that save\(\) wrote"
    ):
        rookery.SAC.load("nowhere")


@pytest.mark.parametrize(
    "use", [lambda a: a.predict(0), lambda a: a.evaluate(), lambda a: a.save("x")]
)
def test_an_agent_that_was_not_trained_says_so(use):
    with pytest.raises(ProtocolError, match=r"call train\(env_steps=...\) first"):
        use(rookery.DQN("CartPole-v1"))
