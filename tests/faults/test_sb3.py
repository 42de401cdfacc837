"""Signals in a run whose loop is not ours, and what is resumed after them."""

import os
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from eventually import eventually
from rookery.checkpoints import checkpoint
from run_processes import clock, nothing_new, reached, record, settled, shared, words

ENDLESS = {
    "run.env_steps": 10_000_000,
    "eval.period": 1_000_000,
    "report.log_period": 200,
    "report.tensorboard": "false",
}


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_signal_ends_a_run_of_sb3s_in_time_with_its_model(number, code, forker, tmp_path):
    argv = ["train", "sb3-sac", "--json", "--quiet", "--run-dir", "run", *words(ENDLESS)]
    run = forker.start(argv, tmp_path)
    assert eventually(lambda: reached(tmp_path / "run", 400), 60.0), run.said

    began = clock()
    os.killpg(run.pid, number)
    assert run.wait() == code, run.said

    assert clock() - began < 10.0
    assert settled(run.pid)
    assert "Traceback" not in run.said
    assert (tmp_path / "run" / "model.zip").exists()
    (stopped,) = record(tmp_path / "run", "stopped")
    assert stopped["reason"] == run.answer["reason"]
    assert not Path(tmp_path / "run" / "result.json").exists()
    newest = checkpoint.newest(tmp_path / "run" / "checkpoints").found
    assert newest is not None
    assert newest.env_steps == stopped["env_steps"]


@pytest.mark.parametrize("scenario", ["sb3-dqn", "sb3-sac"])
def test_a_run_of_sb3s_that_was_killed_loses_at_most_a_period(scenario, forker, tmp_path):
    before, run_dir = shared(), tmp_path / "run"
    often = {**ENDLESS, "checkpoint.period": 300, "eval.episodes": 1}
    argv = ["train", scenario, "--json", "--quiet", "--run-dir", "run", *words(often)]
    run = forker.start(argv, tmp_path)
    assert eventually(lambda: reached(run_dir, 1_000), 60.0), run.said

    run.send(SIGKILL)

    assert run.wait() == -SIGKILL
    assert settled(run.pid)
    assert nothing_new(before)
    played = record(run_dir, "logged")[-1]["env_steps"]
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    assert found.env_steps > played - 2 * 300  # the newest one may not have been written whole
    assert not list(run_dir.rglob("*.pkl"))
    more = ["--env-steps", str(found.env_steps + 700)]
    again = forker.start(["train", "--resume", "run", "--json", "--quiet", *more], tmp_path)
    assert again.wait() == 0, again.said

    assert again.answer["env_steps"] >= found.env_steps + 700
    logged = record(run_dir, "logged")
    steps = [entry["env_steps"] for entry in logged]
    assert steps == sorted(set(steps))
    assert [e["learner_steps"] for e in logged] == sorted(e["learner_steps"] for e in logged)
    assert f"resuming from {found.folder.name}" in again.said
