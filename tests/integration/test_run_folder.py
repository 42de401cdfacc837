"""The folder of a run: who may have it, what it may be called, and what is refused."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from inline_runs import begin, finish, inline, resume, stop_at
from rookery.checkpoints import checkpoint, run_folder
from rookery.cli.main import main
from rookery.config.load import load
from rookery.errors import ConfigError
from rookery.evaluation.backend import RunRequest
from rookery.training.launch import session
from rookery.types import EnvSpec

__all__ = ["inline"]  # a fixture
pytestmark = pytest.mark.usefixtures("inline")


def test_a_second_learner_is_refused_and_told_who_has_the_folder(tmp_path, capfd):
    with begin(tmp_path / "run") as training_run:
        resuming = main(["train", "--resume", str(tmp_path / "run")])
        beginning = main(["train", "corridor", "--run-dir", str(tmp_path / "run")])
        said = capfd.readouterr().err
        answer = finish(training_run)

    assert (resuming, beginning) == (2, 2)
    assert said.count(f"is in use by pid {os.getpid()} on ") == 2
    assert answer["reason"] == "env_steps"  # and the first did not notice


def test_a_folder_that_holds_a_run_is_not_taken_for_a_new_one(tmp_path, capfd):
    with begin(tmp_path) as training_run:
        finish(training_run, stop_at(20))
    before = (tmp_path / "config.yaml").read_text()

    assert main(["train", "corridor", "--seed", "9", "--run-dir", str(tmp_path)]) == 2

    assert f"already holds a run; resume it with `rookery train --resume {tmp_path}`" in (
        capfd.readouterr().err
    )
    assert (tmp_path / "config.yaml").read_text() == before


def test_a_request_that_was_refused_may_be_made_again_in_the_same_folder(tmp_path):
    too_much = load("corridor", changes={"replay.capacity": 10**12, "run.run_dir": str(tmp_path)})

    with pytest.raises(ConfigError, match="memory"), session(too_much, RunRequest()):
        pass
    with begin(tmp_path) as training_run:
        answer = finish(training_run, stop_at(10))

    assert answer["reason"] == "interrupted"


class Enormous(nn.Module):
    """A user's network of 4 TB: building it fails."""

    def __init__(self, spec: EnvSpec, outputs: int):
        super().__init__()
        self.layer = nn.Linear(10**6, 10**6)


@pytest.mark.parametrize(
    ("network", "lower"),
    [
        ("net.hidden=[1000000, 1000000]", "lower net.hidden"),
        ("net.hidden=[1000000000000, 1000000000000]", "lower net.hidden"),
        (f"net={__name__}:Enormous", "use a smaller network than net.custom"),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_a_network_that_does_not_fit_is_refused_and_leaves_the_folder_as_it_was(
    network, lower, existing, tmp_path, capfd
):
    run_dir = tmp_path / "some" / "run"
    if existing:
        run_dir.mkdir(parents=True)
        (run_dir / "notes.txt").write_text("mine")

    code = main(["train", "corridor", "--set", network, "--run-dir", str(run_dir)])

    said = capfd.readouterr().err
    assert code == 2
    assert "Traceback" not in said
    assert "memory" in said
    assert lower in said
    kept = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))]
    assert kept == (["some", "some/run", "some/run/notes.txt"] if existing else [])


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path, capfd):
    code = main(["train", "corridor", "--device", "cuda:99", "--run-dir", str(tmp_path / "run")])

    assert code == 2
    assert "learner.device is 'cuda:99', but this machine has" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Returns a disk nothing can be written to, with an interrupted run on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a disk here: {done.stderr.strip()}")
    try:
        with begin(disk / "run") as training_run:
            finish(training_run, stop_at(50))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_cannot_be_written_is_refused_in_one_line(read_only, capfd):
    made = main(["train", "corridor", "--run-dir", str(read_only / "new")])
    taken = main(["train", "corridor", "--run-dir", str(read_only)])
    resumed = main(["train", "--resume", str(read_only / "run")])

    said = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert (made, taken, resumed) == (2, 2, 2)
    assert all("cannot be written: [Errno 30] Read-only file system" in line for line in said)
    assert all(line.endswith("choose another --run-dir") for line in said)


@pytest.mark.parametrize("name", ["two words", "Ümläut-鳥-🐦", "a'b\"c$d;e", "-dash", "x" * 200])
def test_any_name_will_do(name, tmp_path):
    with begin(tmp_path / name) as training_run:
        finish(training_run, stop_at(100))
    with resume(tmp_path / name) as training_run:
        answer = finish(training_run)

    assert answer["run_dir"] == str(tmp_path / name)
    assert checkpoint.newest(tmp_path / name / "checkpoints").found is not None


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load("corridor", changes={"name": "my_task", "report.tag": "a_b"})

    paths = [run_folder.make(config).run_dir for _ in range(3)]

    assert len(set(paths)) == 3
    assert all(path.is_dir() and "my_task-a_b-seed0" in path.name for path in paths)


def test_resuming_what_is_no_run_is_refused(tmp_path, capfd):
    (tmp_path / "empty").mkdir()

    assert main(["train", "--resume", str(tmp_path / "nowhere")]) == 2
    assert main(["train", "--resume", str(tmp_path / "empty")]) == 2

    said = capfd.readouterr().err
    assert "there is no run folder" in said
    assert "is not a run folder: it has no config.yaml" in said


def test_a_run_that_is_over_says_so_and_answers_at_once(tmp_path, capfd):
    with begin(tmp_path) as training_run:
        answer = finish(training_run)

    assert main(["train", "--resume", str(tmp_path), "--json"]) == 0

    said = capfd.readouterr()
    assert answer["weights_sha256"] in said.out.splitlines()[-1]
    assert "is over (env_steps)" in said.err
