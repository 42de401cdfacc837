"""After every run, however it ended, no leftover files or processes stay."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest

from eventually import eventually
from rookery.checkpoints.run_folder import locked, sweep
from rookery.replay.ring import Column, Ring
from rookery.sharing import registry
from rookery.sharing.registry import shared_directory
from run_processes import (
    SMALL,
    CommandForker,
    Started,
    members,
    named,
    nothing_new,
    settled,
    shared,
    words,
)

LONG = SMALL | {"run.env_steps": 10_000_000}


def train(forker: CommandForker, cwd: Path, run_dir: str, **settings: object) -> Started:
    argv = ["train", "corridor", "--json", "--quiet", "--run-dir", run_dir]
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return forker.start([*argv, *words(LONG | changes)], cwd)


def saved(run_dir: Path) -> bool:
    return any((run_dir / "checkpoints").glob("ckpt-*"))


def test_a_run_that_is_over_leaves_its_folder_and_nothing_else(forker, tmp_path):
    before = shared()
    run = train(
        forker,
        tmp_path,
        "run",
        run__env_steps=1_000,
        env__id="misbehaving_envs:Brood",
        env__kwargs="{}",
    )

    assert run.wait() == 0, run.said

    assert members(run.pid) == []  # not even what the environment started and never ended
    assert nothing_new(before)
    assert not list(tmp_path.rglob("*.tmp-*"))


def _alone(run: Started) -> None:
    os.kill(run.pid, SIGKILL)


def _group(run: Started) -> None:
    os.killpg(run.pid, SIGKILL)


def _everybody(run: Started) -> None:
    run.kill_all()


def _with_a_stopped_child(run: Started) -> None:
    manage = named(run.pid, "rookery-eval")
    assert manage is not None
    os.kill(manage, SIGSTOP)
    os.kill(run.pid, SIGKILL)


KILLS: dict[str, Callable[[Started], None]] = {
    "the training process": _alone,
    "its group": _group,
    "the whole session": _everybody,
    "it while its child is stopped": _with_a_stopped_child,
}


@pytest.mark.parametrize("kill", KILLS)
def test_after_sigkill_nothing_is_left_within_five_seconds(kill, forker, tmp_path):
    before = shared()
    run = train(forker, tmp_path, "run")
    assert eventually(lambda: saved(tmp_path / "run"), 30.0), run.said
    assert eventually(lambda: named(run.pid, "rookery-eval") is not None, 30.0)

    KILLS[kill](run)

    assert run.wait() == -SIGKILL
    assert settled(run.pid, within_s=5.0)
    assert nothing_new(before)


def test_after_sigkill_not_even_a_child_is_left_that_cannot_notice_it(forker, tmp_path):
    """Its environment holds the interpreter: no thread of it sees that the training has gone."""
    reached = tmp_path / "reached"
    kwargs = f"{{reached: '{reached}', at: seize}}"
    run = train(forker, tmp_path, "run", env__id="misbehaving_envs:Staged", env__kwargs=kwargs)
    assert eventually(reached.exists, 30.0), run.said

    run.send(SIGKILL)

    assert run.wait() == -SIGKILL
    assert settled(run.pid, within_s=5.0)


def test_clean_removes_what_killed_runs_left_half_written_and_nothing_of_live_ones(
    forker, tmp_path
):
    live, dead = train(forker, tmp_path, "runs/live"), train(forker, tmp_path, "runs/dead")
    runs = tmp_path / "runs"
    for name in ("live", "dead"):
        assert eventually(lambda name=name: saved(runs / name), 30.0)
    dead.send(SIGKILL)
    assert dead.wait() == -SIGKILL
    assert settled(dead.pid)
    half = [runs / name / "checkpoints" / "ckpt-000000000001.tmp-1-a" for name in ("live", "dead")]
    for folder in half:
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(bytes(1_000))
    kept = {path for path in (runs / "dead").rglob("*") if ".tmp-" not in str(path)}

    look = forker.start(["clean", "--runs", "runs", "--dry-run", "--json"], tmp_path)
    assert look.wait() == 0, look.said
    assert all(folder.exists() for folder in half)
    done = forker.start(["clean", "--runs", "runs", "--json"], tmp_path)
    assert done.wait() == 0, done.said

    found = [item["path"] for item in look.answer["removed"]]
    assert str(half[1].relative_to(tmp_path)) in found
    assert not any("live" in path for path in found)
    assert done.answer["removed"] == look.answer["removed"]
    assert half[0].exists()
    assert not list((runs / "dead").rglob("*.tmp-*"))
    assert set((runs / "dead").rglob("*")) == kept
    assert live.poll() is None


def test_a_resumed_run_clears_away_what_it_left_half_written(forker, tmp_path):
    run = train(forker, tmp_path, "run", checkpoint__period=200)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert eventually(lambda: bool(list(checkpoints.rglob("*.tmp-*"))), 30.0)
    run.send(SIGKILL)
    assert run.wait() == -SIGKILL
    half = tmp_path / "run" / "metrics.jsonl.tmp-1"
    half.write_text("{")

    again = forker.start(
        ["train", "--resume", "run", "--json", "--quiet", "--env-steps", "200"], tmp_path
    )

    assert again.wait() == 0, again.said
    assert not list(tmp_path.rglob("*.tmp-*"))


MAKER = """
import os, sys
from pathlib import Path
from rookery.replay.ring import Column, Ring
ring = Ring.create((Column("end", (), "int8"),), 10, directory=Path(sys.argv[1]), name=sys.argv[2])
print("made", flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def private(tmp_path, monkeypatch) -> Path:
    """Puts this test's named rings where no other run looks."""
    monkeypatch.setattr(registry, "default_directory", lambda: tmp_path)
    return shared_directory()


def test_a_named_ring_is_swept_once_its_owner_is_dead_and_not_before(private, tmp_path):
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(private), "theirs.ring"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    ours = Ring.create((Column("end", (), "int8"),), 10, directory=private, name="ours.ring")
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        assert sweep(tmp_path / "runs", dry_run=False) == []
        assert (private / "theirs.ring").exists()

    (would,) = sweep(tmp_path / "runs", dry_run=True)
    assert (private / "theirs.ring").exists()
    (removed,) = sweep(tmp_path / "runs", dry_run=False)

    assert removed == would
    assert f"its owner (pid {maker.pid}) is gone" in removed.why
    assert not (private / "theirs.ring").exists()
    assert (private / "ours.ring").exists()
    ours.close()


def test_a_ring_whose_maker_died_before_it_was_one_is_swept_when_it_is_old(private, tmp_path):
    private.mkdir(mode=0o700)
    young, old = private / "young.ring", private / "old.ring"
    for path in (young, old):
        path.touch(mode=0o600)
    os.utime(old, (0, 0))

    (removed,) = sweep(tmp_path / "runs", dry_run=False)

    assert removed.path == str(old)
    assert young.exists()


def test_looking_for_litter_does_not_keep_a_run_out_of_its_folder(tmp_path):
    """`clean` holds a run's lock for the moment of a look; whoever wants it tries again."""
    script = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.readline()
"""
    (tmp_path / "lock").touch()
    looker = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with looker:
        assert looker.stdout is not None
        assert looker.stdin is not None
        looker.stdout.readline()
        looker.stdin.write(b"go\n")
        looker.stdin.flush()
        with locked(tmp_path):
            assert f"pid {os.getpid()} on" in (tmp_path / "lock").read_text()
