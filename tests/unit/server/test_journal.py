"""What a parameter server leaves on the disk: whole, once, and for the next one."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import CheckpointError, ConfigError
from rookery.server import journal as journals
from rookery.server import parameter_server, store
from rookery.server.journal import Journal, Record, read
from rookery.server.parameter_server import ParameterServer
from rookery.types import Array

PUSH = Record("push", {"worker": "a", "id": None}, np.arange(5, dtype=np.float32))
APPLY = Record("apply", {"lrs": [0.1]})


def same(found: list[Record], expected: list[Record]) -> bool:
    return len(found) == len(expected) and all(
        a[:2] == b[:2] and np.array_equal(a.floats, b.floats)  # type: ignore[arg-type]
        for a, b in zip(found, expected, strict=True)
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls a plug: what is written need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three frames."""
    journal = Journal.create(tmp_path / "journal", {"what": "test"})
    journal.append([PUSH, APPLY])
    journal.append([PUSH])
    journal.close()
    return tmp_path / "journal"


def test_what_was_appended_is_there_again(path):
    journal, frames = Journal.reopen(path)
    journal.append([APPLY])
    journal.close()

    assert frames[0] == [Record("journal", {"what": "test"})]
    assert same(frames[1], [PUSH, APPLY])
    assert same(frames[2], [PUSH])
    assert same(read(path)[3], [APPLY])


def test_wherever_it_is_cut_off_the_whole_frames_are_there_and_more_can_follow(path):
    whole = path.read_bytes()
    first = whole.index(journals.MARK, whole.index(journals.MARK) + 1)  # where the second begins
    found = set()
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        journal, frames = Journal.reopen(path)
        journal.append([APPLY])
        journal.close()
        found.add(len(frames))
        assert [len(frame) for frame in read(path)] == [*[1, 2, 1][: len(frames)], 1]
        assert same(read(path)[-1], [APPLY])

    assert found == {1, 2}


def test_without_its_first_frame_a_journal_is_none(path):
    path.write_bytes(path.read_bytes()[:40])

    with pytest.raises(CheckpointError, match="first frame is missing"):
        Journal.reopen(path)


def test_a_push_is_on_the_disk_before_it_is_acknowledged(tmp_path, monkeypatch):
    served = server(tmp_path, update_frequency=1)
    served.register_worker("a")
    said: list[str] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *given: said.append("write") or write(*given))
    monkeypatch.setattr(os, "fdatasync", lambda fd: said.append(f"sync v{served.version}"))

    receipt = push(served, 0)
    said.append(f"ack v{receipt.version}")

    assert said[0] == "write"
    assert said[-2:] == ["sync v0", "ack v1"]  # and before the version could be seen
    assert said.count("sync v0") == 1  # the update and what it set off together


def test_garbage_behind_the_last_frame_is_cut_off(path):
    whole = path.read_bytes()
    for garbage in (bytes(100), b"RKJ1" * 50, os.urandom(1000)):
        path.write_bytes(whole + garbage)
        journal, frames = Journal.reopen(path)
        journal.close()
        assert len(frames) == 3
        assert path.read_bytes() == whole


def test_damage_in_the_middle_is_refused(path):
    raw = bytearray(path.read_bytes())
    at = raw.index(b"RKJ1", raw.index(b"RKJ1") + 1)  # the second frame
    raw[at + journals.FRONT.size + 8] ^= 1
    path.write_bytes(raw)

    with pytest.raises(CheckpointError, match=r"damaged.*whole ones behind it"):
        Journal.reopen(path)


def test_a_client_cannot_hide_a_frame_in_what_it_pushes(tmp_path):
    forged = Journal.create(tmp_path / "forged", {})
    for _ in range(5):
        forged.append([PUSH])
    forged.close()
    raw = (tmp_path / "forged").read_bytes()
    floats = np.frombuffer(raw + bytes(-len(raw) % 4), np.float32)
    journal = Journal.create(tmp_path / "journal", {})
    journal.append([Record("push", {}, floats)])
    journal.close()
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes()[:-1])  # killed in the middle of it

    assert len(read(path)) == 1


def test_a_disk_that_is_full_appends_nothing(path, monkeypatch):
    journal, _ = Journal.reopen(path)
    write, left = os.pwrite, [1]

    def full(fd: int, data: memoryview, at: int) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        return write(fd, data[: len(data) // 2], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CheckpointError, match="No space left"):
        journal.append([PUSH])
    monkeypatch.setattr(os, "pwrite", write)
    journal.append([APPLY])
    journal.close()

    assert same(read(path)[-1], [APPLY])
    assert len(read(path)) == 4


# A server with a folder.

START: dict[str, Array] = {"w": np.zeros(6, np.float32)}


def server(folder: Path, **settings: Any) -> ParameterServer:
    """A server whose parameters would be others each time, if it did not go on."""
    start = {"w": np.random.default_rng().normal(size=6).astype(np.float32)}
    settings = {"update_frequency": 2, "optimizer": "adam", "lr": 0.1} | settings
    return ParameterServer(start, checkpoint_path=folder, **settings)


def push(served: ParameterServer, number: int, worker: str = "a") -> Any:
    update = np.random.default_rng(number).normal(size=6).astype(np.float32)
    return served.push_gradients(worker, {"w": update}, push_id=str(number))


def arrays(served: ParameterServer) -> Array:
    found = served.get_parameters()
    assert found is not None
    return found.arrays["w"]


@pytest.mark.parametrize("save_frequency", [1, 3, 100])
@pytest.mark.parametrize("method", ["average", "median"])
def test_the_next_server_goes_on_where_this_one_was(tmp_path, save_frequency, method):
    settings = {"save_frequency": save_frequency, "aggregation_method": method}
    settings |= {"update_frequency": 3}
    served = server(tmp_path, **settings)
    for worker in ("a", "b", "c"):
        served.register_worker(worker)
    for number in range(17):
        push(served, number, "abc"[number % 3])
    before, stats = arrays(served), served.get_server_stats()
    served._store.close()  # type: ignore[union-attr] - as a kill would

    other = server(tmp_path, **settings)

    assert other.version == 5
    assert np.array_equal(arrays(other), before)
    again = other.get_server_stats()
    for key in ("pending", "workers", "pushes", "counts"):
        assert again[key] == stats[key]
    assert push(other, 16, "b").code == "duplicate"
    assert push(other, 17, "c").version == 6


def test_quarantine_and_departures_outlast_the_server(tmp_path):
    served = server(tmp_path, quarantine_after=1)
    for worker in ("a", "b"):
        served.register_worker(worker)
    served.push_gradients("a", {"w": np.full(6, np.nan, np.float32)})
    served.unregister_worker("b")
    served.close()

    stats = server(tmp_path).get_server_stats()

    assert stats["quarantined"] == ["a"]
    assert stats["workers"] == []


def test_a_round_goes_on_after_a_restart(tmp_path):
    settings = {"synchronous": True, "deadline_s": 1000.0}
    served = server(tmp_path, **settings)
    for worker in ("a", "b"):
        served.register_worker(worker)
    push(served, 1, "a")
    served.close()

    other = server(tmp_path, **settings)

    assert push(other, 2, "a").code == "round"
    assert push(other, 3, "b").version == 1


def test_skipped_rounds_stay_skipped(tmp_path):
    now = [0.0]
    settings = {"synchronous": True, "deadline_s": 1.0, "clock": lambda: now[0]}
    served = server(tmp_path, **settings)
    for worker in ("a", "b"):
        served.register_worker(worker)
    push(served, 1, "a")
    now[0] = 2.0
    assert served.version == 0
    served.close()

    other = server(tmp_path, **settings)

    assert other.get_server_stats()["pending"] == 0
    assert other.get_server_stats()["counts"]["skipped_quorum"] == 1


def test_one_server_at_a_time(tmp_path):
    served = server(tmp_path)

    with pytest.raises(ConfigError, match="another parameter server is at work"):
        server(tmp_path)
    served.close()

    server(tmp_path).close()


def test_a_server_that_is_gone_holds_nothing(tmp_path):
    served = server(tmp_path)
    del served

    again = server(tmp_path)
    assert again.version == 0
    again.close()


def test_other_rules_for_the_same_pushes_are_refused(tmp_path):
    served = server(tmp_path)
    served.register_worker("a")
    push(served, 0)
    push(served, 1)
    served.close()

    with pytest.raises(CheckpointError, match="call save_checkpoint"):
        server(tmp_path, aggregation_method="sum")
    served = server(tmp_path)
    served.save_checkpoint()
    served.close()

    assert server(tmp_path, aggregation_method="sum", lr=0.2).version == 1


def test_another_learning_rate_is_for_what_comes(tmp_path):
    served = server(tmp_path)
    served.register_worker("a")
    push(served, 0)
    push(served, 1)
    before = arrays(served)
    served.close()

    assert np.array_equal(arrays(server(tmp_path, lr=0.7)), before)


def test_a_long_journal_is_replaced_by_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(parameter_server, "JOURNAL_BYTES", 2_000)
    served = server(tmp_path, save_frequency=10**9)
    served.register_worker("a")
    for number in range(50):
        push(served, number)

    (left,) = tmp_path.glob("journal-*")
    assert left.stat().st_size < 3_000
    assert served.get_server_stats()["saved_version"] > 15


def test_a_checkpoint_that_cannot_be_saved_is_tried_again_and_loses_nothing(tmp_path, monkeypatch):
    served = server(tmp_path, save_frequency=1)
    served.register_worker("a")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        push(served, 0)
        assert push(served, 1).version == 1
    stats, before = served.get_server_stats(), arrays(served)
    assert "No space left" in stats["trouble"]
    assert stats["counts"]["save_failed"] == 1
    served.close()

    other = server(tmp_path, save_frequency=1)
    assert np.array_equal(arrays(other), before)
    push(other, 2)
    push(other, 3)
    assert other.get_server_stats()["trouble"] == ""
    assert other.get_server_stats()["saved_version"] == 2
    assert not list(tmp_path.glob("*.part"))


def test_where_the_disk_may_not_have_a_checkpoints_name_nothing_is_acknowledged_or_lost(
    tmp_path, monkeypatch
):
    served = server(tmp_path, save_frequency=1)
    served.register_worker("a")

    def broken(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(store, "sync_folder", broken)
        push(served, 0)
        assert push(served, 1).version == 1  # in the old journal, which stays
        with pytest.raises(CheckpointError, match="Input/output error"):
            push(served, 2)
        assert len(list(tmp_path.glob("journal-*"))) == 2
    assert served.get_server_stats()["counts"]["save_failed"] == 1
    assert push(served, 2).code == "ok"
    served.close()

    again = server(tmp_path, save_frequency=1)
    assert again.version == 1
    assert again.get_server_stats()["pending"] == 1
    assert len(list(tmp_path.glob("journal-*"))) == 1


def test_a_push_that_cannot_be_written_down_is_not_taken(tmp_path, monkeypatch):
    served = server(tmp_path)
    served.register_worker("a")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(CheckpointError, match="Input/output error"):
            push(served, 0)
    assert served.get_server_stats()["pending"] == 0

    assert push(served, 0).code == "ok"


def test_a_file_from_elsewhere_is_what_the_next_server_finds(tmp_path):
    served = server(tmp_path / "one")
    served.register_worker("a")
    push(served, 0)
    push(served, 1)
    before = arrays(served)

    other = server(tmp_path / "two")
    other.load_checkpoint(tmp_path / "one")  # a folder that is in use, with its journal
    other.close()

    assert np.array_equal(arrays(server(tmp_path / "two")), before)


def test_its_own_folder_can_be_loaded_at_any_time(tmp_path):
    served = server(tmp_path)
    served.register_worker("a")
    for number in range(3):
        push(served, number)
    before = arrays(served)

    assert served.load_checkpoint() == 1
    assert np.array_equal(arrays(served), before)
    assert push(served, 2).code == "duplicate"
    assert push(served, 3).version == 2


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="checkpoint_path"):
        server(tmp_path / "file")


def test_a_missing_journal_is_not_taken_for_an_empty_one(tmp_path):
    served = server(tmp_path)
    served.close()
    for path in tmp_path.glob("journal-*"):
        path.unlink()

    with pytest.raises(CheckpointError, match="pushes would be lost"):
        server(tmp_path)


def test_what_it_keeps_is_for_its_user_alone(tmp_path):
    server(tmp_path).close()

    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


@pytest.mark.parametrize("broken", ["replace_file", "sync_folder"])
def test_a_checkpoint_that_cannot_be_saved_is_not_loaded_in_half(broken, tmp_path, monkeypatch):
    """What is in memory is what the next server finds, and an acknowledged push is in both."""
    other = server(tmp_path / "other")
    other.register_worker("a")
    for number in range(4):
        push(other, number)
    served = server(tmp_path / "own")
    served.register_worker("a")
    for number in range(10, 13):
        push(served, number)
    before = arrays(served)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, broken, fail)
        with pytest.raises(CheckpointError, match="No space left"):
            served.load_checkpoint(tmp_path / "other")
    loaded = broken == "sync_folder"  # it has replaced the old one, for any process that looks
    assert np.array_equal(arrays(served), before) is not loaded
    assert push(served, 13).accepted
    after, version = arrays(served), served.version
    served.close()

    again = server(tmp_path / "own")
    assert again.version == version
    assert np.array_equal(arrays(again), after)
    assert push(again, 13).code == "duplicate"


def test_a_damaged_folder_of_its_own_is_refused_and_changes_nothing(tmp_path):
    served = server(tmp_path)
    served.register_worker("a")
    push(served, 0)
    (journal,) = tmp_path.glob("journal-*")
    raw = journal.read_bytes()
    journal.write_bytes(raw[:20])

    with pytest.raises(CheckpointError):
        served.load_checkpoint()
    journal.write_bytes(raw)

    assert push(served, 1).version == 1
