"""MuJoCo and Atari, from the extras of those names."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rookery.checkpoints.checkpoint import newest
from rookery.cli.main import main
from rookery.config.load import load
from rookery.config.schema import EnvConfig
from rookery.envs.make import check, make
from rookery.errors import ConfigError
from run_processes import words

GAMES = ["pong", "breakout"]
FRAMES = 4  # in a step

SMALL = {
    "run.mode": "single",
    "actor.num": 1,
    "actor.exploration": "shared",
    "replay.capacity": 2_000,
    "replay.learning_starts": 64,
    "replay.batch_size": 8,
    "replay.samples_per_insert": 1.0,
    "eval.episodes": 1,
    "eval.period": 1_000_000,
    "env.max_episode_steps": 60,
    "checkpoint.period": 128,
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its warnings in a file of the present folder


@pytest.mark.parametrize(
    ("env_id", "numbers", "motors"), [("HalfCheetah-v5", 17, 6), ("Hopper-v5", 11, 3)]
)
def test_mujoco_is_checked_made_and_played(env_id, numbers, motors):
    config, rng = EnvConfig(id=env_id), np.random.default_rng(0)

    assert check(config) == []
    envs = make(config, 2)
    envs.reset(seed=0)
    played = [
        envs.step(rng.uniform(-1, 1, (2, motors)).astype(np.float32)).reward for _ in range(50)
    ]
    envs.close()

    assert envs.spec.obs[0].shape == (numbers,)
    assert envs.spec.action.shape == (motors,)
    assert np.isfinite(played).all()
    assert np.ptp(played) > 0


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_seen_as_four_small_grey_frames(game):
    config = load(game).env
    assert check(config) == []

    envs = make(config, 2)
    obs = envs.reset(seed=0)
    for _ in range(5):
        obs = envs.step(np.ones(2, dtype=np.int64)).obs
    envs.close()

    assert (envs.spec.obs[0].shape, envs.spec.frame_stack) == ((1, 84, 84), 4)
    assert (obs.shape, obs.dtype) == ((2, 1, 84, 84), np.uint8)
    assert obs.max() > 80


@pytest.mark.parametrize("game", GAMES)
def test_a_step_of_a_game_is_four_frames_and_not_sixteen(game):
    envs = make(load(game).env, 1)
    envs.reset(seed=0)
    emulator = envs._vector.envs[0].unwrapped.ale
    before = emulator.getEpisodeFrameNumber()

    for _ in range(10):
        envs.step(np.zeros(1, dtype=np.int64))

    assert emulator.getEpisodeFrameNumber() - before == 10 * FRAMES
    envs.close()


def test_two_frame_skips_on_top_of_each_other_are_refused():
    doubled = replace(load("pong").env, kwargs={})

    with pytest.raises(ConfigError, match=r"frame-skip.*check env.kwargs"):
        make(doubled, 1)


def test_a_plain_game_is_the_same_task_alone_and_in_a_vector():
    """ale_py has a vector of its own, which stacks, shrinks and clips by itself."""
    envs = make(EnvConfig(id="ALE/Pong-v5", imports=("ale_py",)), 2)
    envs.close()

    assert envs.spec.obs[0].shape == (3, 210, 160)


def test_the_wrappers_of_the_baselines_play_a_life_as_an_episode():
    """Breakout serves no ball without FIRE, and has five lives."""
    fixed = {"frameskip": 1, "repeat_action_probability": 0.0}
    config = EnvConfig(
        id="ALE/Breakout-v5", imports=("ale_py",), kwargs=fixed, wrappers=("atari",), frame_stack=4
    )
    assert check(config) == []
    envs = make(config, 1)
    obs = envs.reset(seed=3)
    emulator = envs._vector.envs[0].unwrapped.ale
    lives, steps = [emulator.lives()], 0

    while len(lives) < 7:
        stepped = envs.step(np.zeros(1, dtype=np.int64))
        steps += 1
        assert steps < 1_000
        if stepped.terminated[0]:
            lives.append(emulator.lives())  # the next episode has begun
    envs.close()

    assert (obs.shape, obs.dtype) == ((1, 1, 84, 84), np.uint8)
    assert lives == [5, 4, 3, 2, 1, 5, 4]


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_a_game_trains_is_saved_and_goes_on(game, tmp_path, capsys):
    run = tmp_path / "run"
    begin = ["train", game, "--env-steps", "256", "--run-dir", str(run), "--quiet", "--json"]
    assert main([*begin, *words(SMALL)]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    saved = newest(run / "checkpoints")

    assert main(["train", "--resume", str(run), "--env-steps", "384", "--quiet", "--json"]) == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert saved.broken == []
    assert (first["env_steps"], second["env_steps"]) == (256, 384)
    assert second["learner_steps"] > first["learner_steps"] > 10
    assert second["episodes"] >= first["episodes"] > 0
