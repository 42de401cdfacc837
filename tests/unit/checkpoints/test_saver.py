"""The saver on a disk that hangs: it waits with a limit, says for what, and what is safe."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import BACKLOG, Saver
from rookery.errors import CheckpointError

STATE = {"a": 1}


class HangingDisk:
    """Writes that wait until the disk is released."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.hangs = threading.Event()
        self.released = threading.Event()
        self._write = checkpoint.write_synced
        patch.setattr(checkpoint, "write_synced", self.write)

    def write(self, path: Path, data: bytes) -> None:
        self.hangs.set()
        assert self.released.wait(30.0)
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    made = HangingDisk(monkeypatch)
    yield made
    made.released.set()


def rows(count: int) -> dict[str, np.ndarray]:
    return {"end": np.zeros(count, dtype=np.int8)}


def fill(saver: Saver, disk: HangingDisk) -> None:
    """Queues as many jobs as fit behind the one that hangs."""
    saver.rows(0, rows(4))
    assert disk.hangs.wait(5.0)
    for number in range(BACKLOG):
        saver.rows(4 * (number + 1), rows(4))


def test_a_flush_on_a_disk_that_hangs_is_a_checkpoint_error_and_not_one_of_the_queue(
    tmp_path, disk
):
    saver = Saver(tmp_path, keep=2)
    fill(saver, disk)

    with pytest.raises(CheckpointError, match=r"rows-0-0{12}-0{11}4.safetensors"):
        saver.flush(timeout_s=0.02)


def test_rows_that_find_no_room_wait_with_a_limit(tmp_path, disk):
    saver = Saver(tmp_path, keep=2, timeout_s=0.02)
    fill(saver, disk)

    with pytest.raises(CheckpointError, match="no checkpoint of this run is on it"):
        saver.rows(100, rows(4))


def test_a_checkpoint_that_finds_no_room_names_the_one_that_is_on_the_disk(tmp_path, disk):
    saver = Saver(tmp_path, keep=2, timeout_s=0.02)
    disk.released.set()
    saver.save(Content(10, 1, True, False, {}, {}, STATE), oldest=[0], done=lambda folder: None)
    saver.flush(10.0)
    disk.released.clear()
    disk.hangs.clear()
    fill(saver, disk)

    with pytest.raises(CheckpointError, match="ckpt-000000000010 is intact"):
        saver.save(Content(20, 1, True, False, {}, {}, STATE), oldest=[0], done=lambda folder: None)


def test_while_it_waits_it_names_the_file_and_the_seconds(tmp_path, disk, capfd):
    saver = Saver(tmp_path, keep=2, timeout_s=30.0, warn_s=0.01)
    fill(saver, disk)
    waiting = threading.Thread(target=saver.rows, args=(100, rows(4)))
    waiting.start()
    said = ""

    def warned() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "rows-0-000000000000-000000000004.safetensors" in said

    assert eventually(warned, 5.0)
    assert " s for the disk of " in said
    disk.released.set()
    waiting.join(5.0)
    assert not waiting.is_alive()
    saver.close()
    assert any("waited" in failure for failure in saver.take_failures())


def test_closing_does_not_wait_for_a_disk_that_was_given_up(tmp_path, disk):
    saver = Saver(tmp_path, keep=2, timeout_s=0.02)
    fill(saver, disk)
    with pytest.raises(CheckpointError):
        saver.rows(100, rows(4))
    closing = threading.Thread(target=saver.close)

    closing.start()
    closing.join(5.0)

    assert not closing.is_alive()


def test_a_write_that_fails_before_the_first_checkpoint_does_not_promise_an_older_one(
    tmp_path, monkeypatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_synced", full)
    saver = Saver(tmp_path, keep=2)
    saver.rows(0, rows(4))
    saver.close()

    (failure,) = saver.take_failures()
    assert "intact" not in failure
    assert "no checkpoint of this run is on it" in failure


def test_a_folder_in_the_place_of_old_rows_does_not_stop_a_resume(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "replay" / "rows-0").mkdir(parents=True)
    saver = Saver(tmp_path, keep=2)

    saver.adopt([])

    assert list((tmp_path / "replay").iterdir()) == []
    saver.close()
