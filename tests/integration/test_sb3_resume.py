"""Runs of Stable-Baselines3 are whole runs: resumed, evaluated, recorded and loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rookery
from inline_runs import finish, inline, stop_at
from rookery.checkpoints import checkpoint
from rookery.cli.main import main
from rookery.config.load import load_run
from rookery.errors import ConfigError
from rookery.evaluation.backend import RunRequest
from rookery.event import Evaluated, Event, Logged, Reason, Saved, Started
from rookery.training.launch import session
from sb3_runs import SMALL, small

__all__ = ["inline"]  # a fixture

OFTEN: dict[str, Any] = {"checkpoint.period": 100, "run.env_steps": 600}


def train(run_dir: Path, algorithm: str, **changes: Any) -> Any:
    """A session of a small run that saves every 100 env steps."""
    settings = small(algorithm, **{**OFTEN, "run.run_dir": str(run_dir), **changes})
    return session(settings, RunRequest())


def resumed(run_dir: Path, **changes: Any) -> Any:
    return session(load_run(run_dir, changes=changes), RunRequest(resume=run_dir))


def stop_after(env_steps: int) -> Callable[[Any, Event], None]:
    """Interrupts a run at its first log line from an env step on."""

    def look(run: Any, event: Event) -> None:
        if isinstance(event, Logged) and event.counters.env_steps >= env_steps:
            run.interrupts.reason = Reason.INTERRUPTED

    return look


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", SMALL)
def test_an_interrupted_run_goes_on_to_its_end(algorithm, tmp_path):
    with train(tmp_path / "run", algorithm) as run:
        stopped = finish(run, stop_after(300))
    assert stopped["reason"] == "interrupted"
    assert not (tmp_path / "run" / "result.json").exists()

    events: list[Event] = []
    with resumed(tmp_path / "run") as run:
        answer = finish(run, lambda _, event: events.append(event))

    started = next(event for event in events if isinstance(event, Started))
    assert (started.resumed, started.counters.env_steps) == (True, stopped["env_steps"])
    assert started.counters.learner_steps == stopped["learner_steps"]
    assert answer["reason"] == "env_steps"
    assert answer["env_steps"] >= 600
    assert answer["learner_steps"] > stopped["learner_steps"]
    assert answer["episodes"] > stopped["episodes"]
    logged = [e["env_steps"] for e in records(tmp_path / "run", "logged")]
    assert logged == sorted(set(logged))
    evaluated = [e["env_steps"] for e in records(tmp_path / "run", "evaluated")]
    assert evaluated[:3] == [200, 400, 600]
    assert len(set(evaluated)) == len(evaluated)


def records(run_dir: Path, event: str, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = (run_dir / file).read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_a_resumed_run_has_replay_moments_and_exploration_of_the_stopped_one(algorithm, tmp_path):
    with train(tmp_path / "run", algorithm) as run:
        finish(run, stop_after(300))
        size, before = run.model.replay_buffer.size(), run.model
    with resumed(tmp_path / "run") as run:
        model = run.model
        assert model.replay_buffer.size() == size
        assert model._current_progress_remaining == before._current_progress_remaining
        assert model._episode_num == before._episode_num
        optimizer = model.policy.optimizer if algorithm == "DQN" else model.critic.optimizer
        assert optimizer.state_dict()["state"]
        if algorithm == "DQN":
            assert model.exploration_rate == before.exploration_rate < 1.0
        else:
            assert model.log_ent_coef.item() == before.log_ent_coef.item() != 0.0


@pytest.mark.usefixtures("inline")
def test_two_resumptions_of_one_checkpoint_give_the_same_weights(tmp_path):
    import shutil

    with train(tmp_path / "run", "DQN") as run:
        finish(run, stop_after(300))
    answers = []
    for name in ("a", "b"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        with resumed(tmp_path / name, **{"eval.period": 10**6}) as run:
            answers.append(finish(run)["weights_sha256"])

    assert answers[0] == answers[1]


@pytest.mark.usefixtures("inline")
def test_a_run_is_saved_between_rollouts_and_where_a_callback_asks(tmp_path):
    def ask(event: Event) -> str | None:
        return "checkpoint" if isinstance(event, Logged) else None

    settings = small("PPO", **{"run.run_dir": str(tmp_path / "run"), "checkpoint.period": 200})
    events = list(rookery.events(settings, callbacks=[ask]))

    saved = [e.counters.env_steps for e in events if isinstance(e, Saved)]
    assert saved == [192, 256, 320, 448, 448]  # rollouts of 64 steps; the last is model.zip
    kept = checkpoint.folders(tmp_path / "run" / "checkpoints")
    assert [folder.name for folder in kept] == ["ckpt-000000000448", "ckpt-000000000320"]


@pytest.mark.usefixtures("inline")
def test_a_finished_run_is_trained_further_from_python(tmp_path):
    run_dir = tmp_path / "run"
    first = rookery.train(small("SAC", **OFTEN), run_dir=run_dir)
    again = rookery.train(resume=run_dir)
    assert again.answer == first.answer

    longer = rookery.train(resume=run_dir, overrides=["run.env_steps=800"])
    assert longer.answer["env_steps"] == 800
    action, _ = longer.policy.act(np.zeros(3, dtype=np.float32))
    assert gym.make("Pendulum-v1").action_space.contains(action)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_a_loaded_policy_acts_as_the_saved_model(algorithm, tmp_path):
    import stable_baselines3

    run = rookery.train(small(algorithm), run_dir=tmp_path / "run")
    policy = rookery.load(tmp_path / "run", checkpoint="last")
    model = getattr(stable_baselines3, algorithm).load(run.run_dir / "model.zip", device="cpu")

    for obs in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        assert policy.act(obs)[0] == model.predict(obs, deterministic=True)[0]
    drawn = {policy.act(np.zeros(4, np.float32), deterministic=False)[0] for _ in range(200)}
    assert len(drawn) == 2


@pytest.mark.usefixtures("inline")
def test_the_commands_of_a_run_take_one_of_sb3s(tmp_path, capsys):
    run_dir = str(tmp_path / "run")
    with train(tmp_path / "run", "DQN") as run:
        finish(run)

    for verb, *words in (
        ("evaluate", "--episodes", "3"),
        ("evaluate", "--episodes", "3", "--checkpoint", "last", "--stochastic"),
        ("record", "--max-steps", "20"),
    ):
        assert main([verb, run_dir, *words, "--json"]) == 0, capsys.readouterr().err
        answer = json.loads(capsys.readouterr().out)
        if verb == "evaluate":
            assert len(answer["returns"]) == 3
    assert (tmp_path / "run" / "episode.gif").stat().st_size > 0


def test_a_timeline_shows_when_sb3_plays_and_learns(tmp_path, capsys):
    run_dir = str(tmp_path / "run")
    assert main(["train", "sb3-sac", "--env-steps", "300", "--quiet", "--run-dir", run_dir]) == 0
    capsys.readouterr()

    assert main(["timeline", run_dir, "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert set(answer["processes"]) == {"evaluator", "learner"}
    entries = records(tmp_path / "run", "traced", "timeline.jsonl")
    traced = [entry for entry in entries if entry["process"] == "learner"]
    spent = {activity for entry in traced for activity in entry["totals"]}
    assert {"play", "learn", "evaluate"} <= spent
    assert sum(entry["amounts"].get("learn", 0) for entry in traced) > 100


@pytest.mark.usefixtures("inline")
def test_a_new_run_begins_with_the_weights_of_another_one(tmp_path):
    with train(tmp_path / "a", "DQN") as run:
        finish(run)
    request = RunRequest(init_from=str(tmp_path / "a"))
    with session(small("DQN", **{"run.run_dir": str(tmp_path / "b")}), request) as run:
        best = checkpoint.newest(tmp_path / "a" / "best", resumable=False).found
        assert best is not None
        for name, array in run.weights().arrays.items():
            assert np.array_equal(array, best.weights()[name])

    other = small("PPO", **{"run.run_dir": str(tmp_path / "c")})
    with pytest.raises(ConfigError, match="needs the weights of SB3 PPO"), session(other, request):
        pass


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("key", "value"), [("sb3.algorithm", "PPO"), ("sb3.envs", 2), ("replay.capacity", 50)]
)
def test_a_resumed_run_keeps_what_its_checkpoint_depends_on(key, value, tmp_path):
    with train(tmp_path / "run", "DQN") as run:
        finish(run, stop_at(12))

    kwargs = {"sb3.kwargs": {}} if key == "sb3.algorithm" else {}
    with (
        pytest.raises(ConfigError, match=rf"keeps the settings .* {key} "),
        resumed(tmp_path / "run", **{key: value, **kwargs}),
    ):
        pass


@pytest.mark.usefixtures("inline")
def test_an_exact_resumption_is_refused_and_changes_nothing(tmp_path, capsys):
    with train(tmp_path / "run", "DQN") as run:
        finish(run, stop_after(300))
    before = sorted(tmp_path.rglob("*"))

    assert main(["train", "--resume", "--exact", str(tmp_path / "run")]) == 2

    assert "none of their checkpoints is exact; leave --exact out" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("inline")
def test_a_run_in_a_pool_lends_its_restored_rows(tmp_path):
    pool = {"sharing.pool": str(tmp_path / "pool"), "sharing.cross_sample_ratio": 0.25}
    with train(tmp_path / "run", "DQN", **pool) as run:
        finish(run, stop_after(300))
    with resumed(tmp_path / "run") as run:
        events = run.events()
        next(event for event in events if isinstance(event, Evaluated))
        assert run.model.replay_buffer.get_stats()["local_size"] >= 399
        (ring,) = (tmp_path / "pool").glob("*.ring")
        assert ring.stat().st_size > 0
        events.close()
    assert not (tmp_path / "pool").exists()
