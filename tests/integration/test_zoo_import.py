"""Imported scenarios train, by our algorithms and by SB3's."""

import inspect
import json

import pytest
import stable_baselines3

from rookery.cli.main import main
from rookery.config import translate

FILE = """
CartPole-v1:
  n_timesteps: !!float 900
  policy: MlpPolicy
  learning_rate: lin_1e-3
  batch_size: 16
  buffer_size: 1000
  learning_starts: 100
  train_freq: 16
  gradient_steps: 4
  policy_kwargs: "dict(net_arch=[32])"
"""


@pytest.mark.parametrize("backend", ["rookery", "sb3"])
def test_an_imported_scenario_trains_to_its_end(backend, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dqn.yml").write_text(FILE)

    words = ["import", "dqn.yml", "--env", "CartPole-v1", "--backend", backend]
    assert main([*words, "--out", "mine.yaml"]) == 0
    assert main(["train", "mine.yaml", "--run-dir", "run", "--quiet", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["reason"] == "env_steps"
    assert 900 <= answer["env_steps"] <= 928  # it ends with the turn in which it gets there
    assert answer["learner_steps"] > 150


def test_the_defaults_are_those_of_the_installed_sb3():
    """Wherever SB3 has the algorithm, and the zoo's word for a setting is SB3's."""
    checked = 0
    for name in ("dqn", "sac", "td3", "ddpg", "ppo", "a2c"):
        known = inspect.signature(getattr(stable_baselines3, name.upper()).__init__).parameters
        for key, value in translate.ALGORITHMS[name].defaults.items():
            if key in known:
                assert known[key].default == value, (name, key)
                checked += 1

    assert checked > 50
