"""Blackjack observes a tuple of three numbers: trained, loaded, exported and played with tuples."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rookery
from rookery.cli.main import main
from run_processes import words

SHORT = {
    "env.id": "Blackjack-v1",
    "eval.target": "null",
    "eval.episodes": 5,
    "replay.learning_starts": 200,
    "net.hidden": "[16]",
}
HAND = (14, 5, 0)  # sum of the cards, the dealer's card, a usable ace


def test_a_policy_of_tuples_is_trained_loaded_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, flags = str(tmp_path / "run"), ["--env-steps", "600", "--quiet", "--json"]

    assert main(["train", "cartpole", "--run-dir", run, *flags, *words(SHORT)]) == 0
    file, graph = tmp_path / "policy.safetensors", tmp_path / "policy.onnx"
    for out in (file, graph):
        assert main(["export", run, "--out", str(out), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert answer["checked"] > 0

    policy, exported = rookery.load(run), rookery.load(str(file))
    assert np.array_equal(policy.scores(HAND), exported.scores(HAND))
    env = gym.make("Blackjack-v1")
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(policy.act(obs)[0])
