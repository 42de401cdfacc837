"""Whenever the writer of a checkpoint dies, and whatever its disk says, a whole one is there."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inline_runs import begin, finish, inline, resume
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import Saver
from rookery.errors import CheckpointError
from rookery.event import Event, Logged, Saved, Warned
from rookery.training.run import TrainingRun
from run_processes import ALONE, SUPPORT
from whole_checkpoints import intact

__all__ = ["inline"]  # a fixture


def killed_everywhere(folder: Path, what: str) -> list[dict[str, Any]]:
    """Kills a writer at each of its calls; returns what was found after each death."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "killed_checkpoint_writer.py"), str(folder), what],
        env=os.environ | ALONE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["status"] for each in found] == [9] * (len(found) - 1) + [0]
    return found


def test_a_run_killed_while_it_says_that_it_is_solved_can_still_say_so(tmp_path):
    found = killed_everywhere(tmp_path, "end")

    assert len(found) > 20  # calls
    final = "ckpt-000000000150"
    for each in found:
        assert each["broken"] == [], each
        # either it goes on from before, and finds out again, or it has been written down
        assert each["last"] == 300 or final in each["folders"], each
    assert found[-1]["folders"] == [final]


def test_a_writer_killed_at_any_call_to_the_kernel_leaves_a_whole_checkpoint(tmp_path):
    found = killed_everywhere(tmp_path, "mark")

    assert len(found) > 60  # calls
    for each in found:
        assert each["broken"] == [], each
        assert each["last"] in (300, 400), each
        assert each["best"] in (300, 400), each
        assert each["rows"][-1][1] == (30 if each["last"] == 300 else 40), each
        assert each["scratch"] == [], each
    assert [each["last"] for each in found] == sorted(each["last"] for each in found)
    assert (found[-1]["last"], found[-1]["best"]) == (400, 400)


def test_everything_is_on_the_disk_before_a_checkpoint_has_its_name(tmp_path, monkeypatch):
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        fsync(fd)

    def renamed(source: Path, target: Path) -> None:
        calls.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    content = checkpoint.Content(1, 1, True, False, {}, {}, {"state": 1}, {})
    checkpoint.write(tmp_path / "checkpoints", "ckpt-000000000001", content)

    *files, manifest, scratch, named, parent = calls
    assert {name for kind, name in files if kind == "sync"} == {
        checkpoint.STATE,
        checkpoint.ARRAYS,
        checkpoint.WEIGHTS,
    }
    assert manifest == ("sync", checkpoint.MANIFEST)
    assert ".tmp-" in scratch[1]
    assert named == ("rename", "ckpt-000000000001")
    assert parent == ("sync", "checkpoints")


def test_a_best_model_that_the_disk_refused_is_written_with_the_next_checkpoint(
    tmp_path, monkeypatch
):
    saver, write, full = Saver(tmp_path, keep=2), checkpoint.write, True

    def refusing(*args: Any) -> Path:
        if full:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(checkpoint, "write", refusing)
    best = Content(100, 1, True, True, {}, {"w": np.ones(3)})
    saver.best(best)
    saver.flush(10.0)
    full = False
    saver.save(Content(200, 2, True, False, {}, {}, {"a": 1}), oldest=0, done=lambda folder: None)
    saver.close()

    found = checkpoint.newest(tmp_path / "best", resumable=False).found
    assert found is not None
    assert found.env_steps == 100
    assert len(saver.take_failures()) == 1


def test_the_newest_best_model_stays_although_an_older_session_went_further(tmp_path):
    """A run that is resumed is behind the mark of the best model it once had."""
    saver = Saver(tmp_path, keep=2)
    for mark in (500, 300):
        saver.best(Content(mark, mark, True, True, {}, {"w": np.full(3, mark)}))
    saver.close()

    (folder,) = checkpoint.folders(tmp_path / "best")
    assert intact(folder).env_steps == 300


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Returns a disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Ballast:
    """Takes all space between two env steps."""

    def __init__(self, disk: Path, since: int, until: int):
        self.path, self.since, self.until = disk / "ballast", since, until
        self.events: list[Event] = []
        self.seen_while_full: list[checkpoint.CheckpointSearch] = []

    def __call__(self, training_run: TrainingRun, event: Event) -> None:
        self.events.append(event)
        env_steps = training_run.parts.counters.env_steps
        if self.since <= env_steps < self.until and not self.path.exists():
            training_run.saver.flush(10.0)
            self._fill()
        if isinstance(event, Warned):
            self.seen_while_full.append(checkpoint.newest(training_run.run_dir / "checkpoints"))
        if env_steps >= self.until and self.path.exists():
            training_run.saver.flush(10.0)  # what was queued finds the disk full
            self.path.unlink()

    def _fill(self) -> None:
        with open(self.path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return


def removing(path: Path, *, at: int) -> Callable[[TrainingRun, Event], None]:
    """Removes a folder, and what is in it, at an env step."""

    def look(training_run: TrainingRun, event: Event) -> None:
        if training_run.parts.counters.env_steps >= at and path.exists():
            training_run.saver.flush(10.0)  # else the thread may be about to rename a file
            shutil.rmtree(path)

    return look


@pytest.mark.usefixtures("inline")
def test_a_run_whose_folder_was_removed_ends_with_one_error_and_does_not_make_half_of_it_again(
    tmp_path,
):
    run_dir = tmp_path / "run"

    with (
        pytest.raises(CheckpointError, match=f"{run_dir} was removed") as ended,
        begin(run_dir) as training_run,
    ):
        finish(training_run, removing(run_dir, at=400))

    assert training_run.parts.counters.env_steps < 1_200  # at the next checkpoint
    assert ended.value.exit_code == 3
    assert not run_dir.exists()


@pytest.mark.usefixtures("inline")
def test_a_run_whose_folder_was_emptied_writes_no_checkpoint_without_settings(tmp_path):
    def emptying(training_run: TrainingRun, event: Event) -> None:
        if training_run.parts.counters.env_steps >= 400 and (tmp_path / "config.yaml").exists():
            training_run.saver.flush(10.0)
            (tmp_path / "config.yaml").unlink()

    with pytest.raises(CheckpointError, match="was removed"), begin(tmp_path) as training_run:
        finish(training_run, emptying)

    newest, *_ = checkpoint.folders(tmp_path / "checkpoints")
    assert int(newest.name.split("-")[1]) < 600


@pytest.mark.usefixtures("inline")
def test_a_full_disk_is_told_and_outlived(small_disk, tmp_path):
    with begin(tmp_path / "whole") as training_run:
        whole = finish(training_run)
    ballast = Ballast(small_disk, 400, 800)

    with begin(small_disk / "run") as training_run:
        answer = finish(training_run, ballast)

    warned = [event for event in ballast.events if isinstance(event, Warned)]
    saved = [e.counters.env_steps // 300 for e in ballast.events if isinstance(e, Saved)]
    assert {event.kind for event in warned} == {"checkpoint"}
    *_, logged = [event for event in ballast.events if isinstance(event, Logged)]
    assert logged.metrics["faults/checkpoint"] == len(warned)
    assert "No space left" in warned[0].message
    assert all(each.found and not each.broken for each in ballast.seen_while_full)
    assert saved == [1, 3, 4, 4]  # the second had no room
    assert answer["weights_sha256"] == whole["weights_sha256"]
    assert checkpoint.newest(small_disk / "run" / "checkpoints").broken == []
    assert not list((small_disk / "run").rglob("*.tmp-*"))


@pytest.mark.usefixtures("inline")
def test_a_run_whose_last_checkpoint_has_no_room_does_not_say_that_it_is_done(small_disk, tmp_path):
    with begin(tmp_path / "whole") as training_run:
        whole = finish(training_run)
    run_dir, ballast = small_disk / "run", Ballast(small_disk, 1_000, 10_000)

    with (
        pytest.raises(CheckpointError, match=r"last checkpoint .* could not be written"),
        begin(run_dir) as training_run,
    ):
        finish(training_run, ballast)
    ballast.path.unlink()
    assert not (run_dir / "result.json").exists()
    with resume(run_dir, exact=True) as training_run:
        answer = finish(training_run)

    assert answer["weights_sha256"] == whole["weights_sha256"]
    assert answer["best_score"] == whole["best_score"]
