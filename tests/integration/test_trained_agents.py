"""Agents trained, continued, evaluated, saved and loaded."""

import gymnasium as gym
import numpy as np
import pytest

import rookery
from rookery.config.load import load_run
from rookery.envs.toy.basic import Corridor
from rookery.errors import ConfigError, ProtocolError
from rookery.event import Collected

SMALL = ["eval.period=400", "eval.episodes=2", "checkpoint.period=400", "report.tensorboard=false"]
SETTINGS = {"hidden": [16], "learning_starts": 100, "batch_size": 16, "samples_per_insert": 4.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents") / "run"
    agent = rookery.DQN(Corridor, seed=3, run_dir=folder, overrides=SMALL, **SETTINGS)
    agent.train(env_steps=800, console=False)
    return agent


def test_a_trained_agent_acts_and_is_evaluated(trained):
    action, state = trained.predict(np.eye(8, dtype=np.float32)[0])

    assert action in (0, 1)
    assert state is None
    assert trained.evaluate(episodes=3)["episodes"] == 3


def test_training_again_continues_the_same_run(tmp_path):
    def agent(name):
        return rookery.DQN(Corridor, seed=3, run_dir=tmp_path / name, overrides=SMALL, **SETTINGS)

    twice, once = agent("twice"), agent("once")
    twice.train(env_steps=800, console=False)
    again = twice.train(env_steps=800, console=False)
    whole = once.train(env_steps=1600, console=False)

    assert again.answer["env_steps"] == whole.answer["env_steps"]
    assert again.run_dir == tmp_path / "twice"


def test_training_continues_after_an_interrupt_and_keeps_the_agents_settings(tmp_path, monkeypatch):
    agent = rookery.DQN(Corridor, seed=3, overrides=[*SMALL, "eval.target=5"], **SETTINGS)
    monkeypatch.chdir(tmp_path)

    def interrupt(event):
        if isinstance(event, Collected) and event.counters.env_steps >= 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent.train(env_steps=2_000, callbacks=[interrupt], console=False)
    interrupted = agent.run_dir
    run = agent.train(env_steps=800, console=False)

    assert run.run_dir == interrupted
    assert run.answer["env_steps"] >= 1_200
    assert load_run(run.run_dir).eval.target == 5.0


def test_after_its_target_an_agent_trains_further_from_its_weights_in_a_new_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    agent = rookery.DQN(Corridor, run_dir="first", overrides=SMALL, **SETTINGS)
    first = agent.train(env_steps=2_000, target=-50.0, console=False)
    again = agent.train(env_steps=500, console=False)

    assert first.answer["reason"] == "target"
    assert again.answer["reason"] == "env_steps"
    assert 500 <= again.answer["env_steps"] < 600
    assert agent.run_dir == again.run_dir != first.run_dir


def test_the_name_of_an_algorithm_is_what_train_begins_with(tmp_path):
    overrides = [*SMALL, "run.env_steps=400", "net.hidden=[16]", "replay.learning_starts=100"]
    run = rookery.train("dqn", env=Corridor, overrides=overrides, run_dir=tmp_path / "run")

    assert load_run(run.run_dir).algo.name == "dqn"
    with pytest.raises(
        ConfigError, match=r"no environment was given; .* --env ID \(in Python env="
    ):
        rookery.train("dqn")


def test_several_observations_at_once_are_refused(trained):
    with pytest.raises(ConfigError, match=r"one observation, of shape \(8,\), got \(3, 8\)"):
        trained.predict(np.zeros((3, 8), np.float32))


def test_a_saved_agent_is_loaded_and_acts_alike(trained, tmp_path):
    file = trained.save(tmp_path / "policy.safetensors")
    loaded = rookery.DQN.load(file)

    for obs in np.eye(8, dtype=np.float32):
        assert loaded.predict(obs)[0] == trained.predict(obs)[0]
    with pytest.raises(ProtocolError, match="no run folder"):
        loaded.evaluate()
    with pytest.raises(ProtocolError, match="loaded from a file"):
        loaded.train(env_steps=100)


def test_an_agent_loaded_from_its_run_folder_trains_further(trained):
    loaded = rookery.DQN.load(trained.run_dir, env=Corridor)

    assert loaded.train(env_steps=400, console=False).answer["env_steps"] >= 1200


def test_the_class_of_another_algorithm_is_refused(trained):
    with pytest.raises(ConfigError, match="was trained with dqn, and SAC is sac"):
        rookery.SAC.load(trained.run_dir, env=Corridor)


def test_a_policy_that_was_trained_to_sample_samples(tmp_path):
    agent = rookery.PPO(
        "CartPole-v1", run_dir=tmp_path / "ppo", hidden=[16], overrides=SMALL, batch_size=64
    )
    agent.train(env_steps=600, console=False)
    obs, _ = gym.make("CartPole-v1").reset(seed=0)

    assert agent.predict(obs, deterministic=True)[0] in (0, 1)
