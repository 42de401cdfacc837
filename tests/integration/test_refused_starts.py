"""A start or a resume that is refused leaves the disk as it was."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from inline_runs import Inline, begin, finish, inline, resume, stop_at
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import STATE
from rookery.checkpoints.run_folder import LOCK
from rookery.cli.main import main
from rookery.config.load import load, load_run
from rookery.envs.toy import basic
from rookery.errors import CheckpointError, ConfigError, EnvError
from rookery.evaluation.backend import RunRequest
from rookery.training import launch
from rookery.training.launch import session

__all__ = ["inline"]  # a fixture
pytestmark = pytest.mark.usefixtures("inline")


def finished_run(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        with begin(folder, settings) as training_run:
            finish(training_run)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run that has reached its last step."""
    return finished_run(tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    """Returns all files of a run folder except the lock, which names the last process."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("replay.sampling=prioritized", "replay.sampling 'uniform' -> 'prioritized'"),
        ("net.hidden=[16]", "net.hidden [32] -> [16]"),
        ("algo.name=ppo", "algo.name 'dqn' -> 'ppo'"),
        ("replay.capacity=2000", "replay.capacity 1000 -> 2000"),
        ("algo.n_step=2", "algo.n_step 3 -> 2"),
        ("actor.envs=4", "actor.envs 8 -> 4"),
        ("env.frame_stack=2", "env.frame_stack 1 -> 2"),
        ("env.normalize_obs=true", "env.normalize_obs False -> True"),
        ("env.kwargs={length: 5}", "env.kwargs {'length': 8} -> {'length': 5}"),
        ("learner.optimizer=rmsprop", "learner.optimizer 'adam' -> 'rmsprop'"),
    ],
)
def test_a_resume_that_changes_what_was_saved_is_exit_2_and_changes_nothing(
    given, said, run_dir, monkeypatch, capfd
):
    def built(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be built")

    before = content(run_dir)
    monkeypatch.setattr(launch, "build_parts", built)
    monkeypatch.setattr(launch, "check", built)

    code = main(["train", "--resume", str(run_dir), "--env-steps", "1500", "--set", given])

    (error,) = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert code == 2
    assert said in error
    assert f"--init-from {run_dir}" in error
    assert content(run_dir) == before


def test_a_run_that_was_never_saved_may_begin_again_with_any_setting(tmp_path):
    with begin(tmp_path) as training_run:
        next(training_run.events())
    assert checkpoint.folders(tmp_path / "checkpoints") == []

    config = load_run(tmp_path, overrides=["net.hidden=[16]"])
    with session(config, RunRequest(resume=tmp_path)) as training_run:
        answer = finish(training_run)

    assert answer["env_steps"] == 1_200


def test_an_environment_from_python_may_have_another_name_when_its_run_is_resumed(tmp_path):
    class Corridor(basic.Corridor):  # in another module, with the same class name
        pass

    with begin(tmp_path, factory=basic.Corridor) as training_run:
        finish(training_run, stop_at(100))
    with resume(tmp_path, factory=Corridor) as training_run:
        answer = finish(training_run)

    assert answer["env_steps"] == 1_200


def test_a_checkpoint_that_does_not_fit_leaves_result_and_metrics_as_they_were(run_dir):
    """No setting has changed, so that it is noticed when the state is restored."""
    for folder in checkpoint.folders(run_dir / "checkpoints"):
        found = checkpoint.verify(folder)
        state = found.state()
        state["replay"]["shape"]["capacity"] = 7
        shutil.rmtree(folder)
        whole = checkpoint.Content(
            found.env_steps, 1, True, False, found.manifest["about"], {}, state, {}
        )
        checkpoint.write(run_dir / "checkpoints", folder.name, whole)
    before = content(run_dir)
    config = load_run(run_dir, changes={"run.env_steps": 1_500})

    with pytest.raises(CheckpointError), session(config, RunRequest(resume=run_dir)):
        pass

    assert content(run_dir) == before


def test_when_no_checkpoint_is_intact_nothing_in_the_folder_changes(run_dir):
    for folder in checkpoint.folders(run_dir / "checkpoints"):
        (folder / STATE).unlink()
    before = content(run_dir)
    config = load_run(run_dir, changes={"run.env_steps": 1_500})

    with pytest.raises(CheckpointError), session(config, RunRequest(resume=run_dir)):
        pass

    assert content(run_dir) == before


def test_a_finished_run_whose_checkpoints_were_removed_is_not_begun_again(run_dir, capfd):
    shutil.rmtree(run_dir / "checkpoints")
    before = content(run_dir)

    code = main(["train", "--resume", str(run_dir), "--env-steps", "1500", "--quiet"])

    said = capfd.readouterr().err
    assert code == 3
    assert f"--init-from {run_dir}" in said
    assert content(run_dir) == before


def test_a_stopped_run_whose_checkpoints_were_removed_is_not_begun_again(tmp_path):
    with begin(tmp_path) as training_run:
        finish(training_run, stop_at(180))
    shutil.rmtree(tmp_path / "checkpoints")
    before = content(tmp_path)

    with pytest.raises(CheckpointError, match="removed"), resume(tmp_path):
        pass

    assert content(tmp_path) == before


def test_a_solved_run_that_kept_only_its_weights_is_not_begun_again(tmp_path):
    finished_run(tmp_path, {"eval.target": -100.0, "checkpoint.period": 10_000})
    before = content(tmp_path)
    config = load_run(tmp_path, changes={"eval.target": 5.0})

    with (
        pytest.raises(CheckpointError, match=f"--init-from {tmp_path}"),
        session(config, RunRequest(resume=tmp_path)),
    ):
        pass

    assert content(tmp_path) == before


def refused(folder: Path) -> None:
    """Starts a run in `folder` that is refused after the folder was made."""
    changes = {"replay.capacity": 10**12, "run.run_dir": str(folder)}
    with pytest.raises(ConfigError), session(load("corridor", changes=changes), RunRequest()):
        pass


def test_a_refused_start_leaves_no_folder_that_it_made(tmp_path):
    refused(tmp_path / "a" / "b" / "run")

    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_in_the_default_place_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load("corridor", changes={"replay.capacity": 10**12})

    with pytest.raises(ConfigError), session(config, RunRequest()):
        pass

    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_leaves_a_folder_that_was_there_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    refused(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_start_that_failed_while_it_was_built_leaves_no_folder(tmp_path, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise EnvError("this environment cannot be made")

    monkeypatch.setattr(launch, "build_parts", failing)
    config = load("corridor", changes={"run.run_dir": str(tmp_path / "run")})

    with pytest.raises(EnvError), session(config, RunRequest()):
        pass

    assert list(tmp_path.iterdir()) == []


def test_a_start_in_a_folder_that_holds_a_run_is_refused_and_leaves_that_run(run_dir):
    before = content(run_dir)

    refused(run_dir)

    assert content(run_dir) == before
