"""`env.vector: async` in whole runs: equal weights, hangs, lost processes, nothing left over."""

import os
import re
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import Any

import pytest

from eventually import eventually
from rookery.checkpoints import checkpoint
from run_processes import SMALL, CommandForker, members, settled, shared, words

TOGETHER = {"env.vector": "async", "actor.envs": 2}


def train(forker: CommandForker, cwd: Path, settings: dict[str, Any]) -> Any:
    cwd.mkdir(exist_ok=True)
    changes = SMALL | {"run.env_steps": 1_500, "checkpoint.period": 400} | settings
    argv = ["train", "corridor", "--json", "--quiet", "--run-dir", "run", *words(changes)]
    return forker.start(argv, cwd)


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"run.mode": "sync", "actor.num": 2},
        {"env.id": "misbehaving_envs:Wander", "env.kwargs": "{}"},
    ],
    ids=["single", "sync", "without saved states"],
)
def test_weights_are_those_of_environments_one_after_another(mode, forker, tmp_path):
    runs = [
        train(forker, tmp_path / vector, mode | {"actor.envs": 3, "env.vector": vector})
        for vector in ("sequential", "async")
    ]

    for run in runs:
        assert run.wait() == 0, run.said
        assert settled(run.pid)
    assert runs[0].answer["weights_sha256"] == runs[1].answer["weights_sha256"]


def test_a_run_that_was_killed_goes_on_with_the_other_kind_as_the_same_run(forker, tmp_path):
    long = TOGETHER | {"run.env_steps": 6_000}
    whole, killed = (train(forker, tmp_path / name, long) for name in ("whole", "killed"))
    folders = tmp_path / "killed" / "run" / "checkpoints"
    assert eventually(lambda: bool(checkpoint.folders(folders)), 60.0, every_s=0.01), killed.said
    killed.send(SIGKILL)
    assert killed.wait() == -SIGKILL, "it was over before it could be killed"

    argv = ["train", "--resume", "run", "--json", "--quiet", "--set", "env.vector=sequential"]
    resumed = forker.start(argv, tmp_path / "killed")

    assert (whole.wait(), resumed.wait()) == (0, 0), resumed.said
    assert resumed.answer["weights_sha256"] == whole.answer["weights_sha256"]


@pytest.mark.parametrize(
    "mode", [{}, {"run.mode": "async", "actor.num": 1}], ids=["single", "async"]
)
def test_a_hang_in_one_process_is_given_up_in_time_and_leaves_no_process(mode, forker, tmp_path):
    staged = {"env.kwargs": f"{{reached: '{tmp_path / 'reached'}', at: play}}"}
    limit = {"env.id": "misbehaving_envs:Staged", "actor.env_step_timeout_s": 1.0}

    run = train(forker, tmp_path, TOGETHER | staged | limit | mode | {"actor.max_restarts": 0})

    assert run.wait() == 3, run.said
    assert (tmp_path / "reached").exists()
    *_, last = run.stderr.read_text().splitlines()
    assert re.search(r"\(actor.env_step_timeout_s is 1\)", run.said), last
    assert settled(run.pid)


def test_a_lost_process_is_an_error_of_its_environment(forker, tmp_path):
    moody = {"env.id": "misbehaving_envs:Moody", "env.kwargs": "{mood: die, at: 60}"}

    run = train(forker, tmp_path, TOGETHER | moody | {"env.check": "false"})

    assert run.wait() == 3, run.said
    *_, last = run.stderr.read_text().splitlines()
    assert re.match(
        r"rookery: error: misbehaving_envs:Moody, environment \d, step \d+: its process has ended",
        last,
    )
    assert settled(run.pid)


def test_when_the_training_process_is_killed_no_environment_is_left(forker, tmp_path):
    before = shared()
    run = train(forker, tmp_path, TOGETHER | {"run.env_steps": 10**7})
    folders = tmp_path / "run" / "checkpoints"
    assert eventually(lambda: bool(checkpoint.folders(folders)), 60.0), run.said
    assert len(members(run.pid)) > 2

    run.send(SIGKILL)

    assert run.wait() == -SIGKILL
    assert settled(run.pid)
    assert shared() - before == set()


def test_ctrl_c_in_a_terminal_is_the_runs_business(forker, tmp_path):
    """It reaches every process of the group; environments go on until the run closes them."""
    run = train(forker, tmp_path, TOGETHER | {"run.env_steps": 10**7})
    folders = tmp_path / "run" / "checkpoints"
    assert eventually(lambda: bool(checkpoint.folders(folders)), 60.0), run.said

    os.killpg(os.getpgid(run.pid), SIGINT)

    assert run.wait() == 130, run.said
    assert settled(run.pid)
    assert "Traceback" not in run.said
    resume = ["train", "--resume", "run", "--env-steps", "1000", "--quiet", "--json"]
    resumed = forker.start(resume, tmp_path)
    assert resumed.wait() == 0, resumed.said
