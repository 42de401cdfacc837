"""Planner processes of a teacher end with the run; their loss ends the run with an error."""

import os
import signal
from pathlib import Path
from typing import Any

from eventually import eventually
from run_processes import CommandForker, Started, members, named, record, settled, words

TINY: dict[str, Any] = {
    "learner.device": "cpu",
    "learner.compile": "false",
    "run.minutes": 5,
    "net.memory": 16,
    "algo.heads": 1,
    "algo.width": 8,
    "algo.length": 4,
    "algo.burn_in": 2,
    "env.kwargs": "{agents: 2, size: 10, density: 0.2, radius: 1, steps: 16}",
    "device.agents": 32,
    "device.rows": 32,
    "algo.guided_steps": 8,
    "algo.policy_steps": 4,
    "algo.curriculum": "{agents: [2], sizes: [10]}",
    "replay.batch_size": 16,
    "replay.learning_starts": 32,
    "eval.period": 1_000_000,
    "checkpoint.period": 100,
    "report.log_period": 100,
}


def begun(forker: CommandForker, folder: Path) -> Started:
    """Starts a run in a folder, and waits until it has learned from its teacher."""
    argv = ["train", "pathfinding", "--run-dir", "run", *words(TINY)]
    started = forker.start(argv, folder)
    assert eventually(lambda: learned(folder / "run"), 120.0), started.said
    return started


def learned(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and any(
        "train/agreement" in each["metrics"] for each in record(run, "logged")
    )


def planner(started: Started) -> int:
    pid = named(started.pid, "rookery-planner")
    assert pid is not None
    return pid


def test_planners_go_with_a_run_that_is_killed(forker: CommandForker, tmp_path: Path) -> None:
    started = begun(forker, tmp_path)
    assert planner(started) in members(started.pid)
    started.send(signal.SIGKILL)
    assert settled(started.pid, 20.0), members(started.pid)


def test_planners_go_with_a_run_that_is_asked_to_stop(
    forker: CommandForker, tmp_path: Path
) -> None:
    started = begun(forker, tmp_path)
    started.send(signal.SIGINT)
    assert started.wait() == 130, started.said
    assert settled(started.pid, 20.0), members(started.pid)


def test_a_run_says_that_a_planner_is_gone_and_goes_on_when_resumed(
    forker: CommandForker, tmp_path: Path
) -> None:
    started, run = begun(forker, tmp_path), tmp_path / "run"
    os.kill(planner(started), signal.SIGKILL)
    assert started.wait() == 3, started.said
    assert "a planner process of algo.teacher has ended" in started.said
    before = len(record(run, "logged"))
    again = forker.start(["train", "--resume", "run"], tmp_path)
    assert eventually(lambda: len(record(run, "logged")) > before, 120.0), again.said
