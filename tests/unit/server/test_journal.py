"""What a parameter server leaves on the disk: whole, once, and for the next one."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import CheckpointError, ConfigError
from rookery.files import UNFINISHED
from rookery.server import parameter_server, store
from rookery.server.parameter_server import ParameterServer
from rookery.server.store import Record, SavedServer, Store
from rookery.types import Array

PUSH = Record("push", {"worker": "a", "id": None}, np.arange(5, dtype=np.float32))
APPLY = Record("apply", {"lrs": [0.1]})
FIRST = Record("journal", {"what": "test"})


def same(found: SavedServer, *expected: Record) -> bool:
    records = [record for file in found.journal for record in file]
    return len(records) == len(expected) and all(
        a[:2] == b[:2] and np.array_equal(a.floats, b.floats)  # type: ignore[arg-type]
        for a, b in zip(records, expected, strict=True)
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls a plug: what is written need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a journal of three files."""
    kept = Store(tmp_path / "kept")
    kept.save(SavedServer({}, {}), {"what": "test"})
    kept.append([PUSH, APPLY])
    kept.append([PUSH])
    kept.close()
    return tmp_path / "kept"


def opened(folder: Path) -> tuple[Store, SavedServer]:
    kept = Store(folder)
    found = kept.load()
    assert found is not None
    return kept, found


def test_what_was_appended_is_there_again(folder):
    kept, found = opened(folder)
    kept.append([APPLY])
    kept.close()

    assert same(found, FIRST, PUSH, APPLY, PUSH)
    assert same(store.look_into(folder), FIRST, PUSH, APPLY, PUSH, APPLY)


def test_wherever_it_is_cut_off_what_was_whole_is_there_and_more_can_follow(folder):
    last = sorted(folder.glob("journal-*"))[-1]
    whole = last.read_bytes()
    for size in range(len(whole)):
        last.write_bytes(whole[:size])
        kept, found = opened(folder)
        kept.append([APPLY])
        kept.close()
        assert same(found, FIRST, PUSH, APPLY)
        assert same(store.look_into(folder), FIRST, PUSH, APPLY, APPLY)


def test_without_its_first_file_a_journal_is_none(folder):
    min(folder.glob("journal-*")).unlink()

    with pytest.raises(CheckpointError, match="pushes would be lost"):
        Store(folder).load()


def test_a_push_is_on_the_disk_before_it_is_acknowledged(tmp_path, monkeypatch):
    served = server(tmp_path, update_frequency=1)
    served.register_worker("a")
    said: list[str] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *given: said.append("write") or write(*given))
    monkeypatch.setattr(os, "fsync", lambda fd: said.append(f"sync v{served.version}"))

    receipt = push(served, 0)
    said.append(f"ack v{receipt.version}")

    # the update and what it set off are one file, which has its name before the version is seen
    assert said == ["write", "sync v0", "sync v0", "ack v1"]


def test_garbage_behind_the_last_file_is_left_out(folder):
    for garbage in (b"", bytes(100), os.urandom(1000)):
        (folder / "journal-000000001-000000003").write_bytes(garbage)
        kept, found = opened(folder)
        kept.close()
        assert same(found, FIRST, PUSH, APPLY, PUSH)


@pytest.mark.parametrize("lost", [True, False])
def test_damage_in_the_middle_is_refused(folder, lost):
    path = folder / "journal-000000001-000000001"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.unlink() if lost else path.write_bytes(raw)

    with pytest.raises(CheckpointError, match=r"damaged.*pushes would be lost"):
        Store(folder).load()


def test_a_disk_that_is_full_appends_nothing(folder, monkeypatch):
    kept, _ = opened(folder)
    write, left = os.pwrite, [1]

    def full(fd: int, data: memoryview, at: int) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        return write(fd, data[: len(data) // 2], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CheckpointError, match="No space left"):
        kept.append([PUSH])
    monkeypatch.setattr(os, "pwrite", write)
    assert same(store.look_into(folder), FIRST, PUSH, APPLY, PUSH)
    kept.append([APPLY])
    kept.close()

    assert same(store.look_into(folder), FIRST, PUSH, APPLY, PUSH, APPLY)


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


def pending_of(served: ParameterServer) -> int:
    return int(served.get_server_stats()["pending"])


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
    monkeypatch.setattr(parameter_server, "JOURNAL_BYTES", 4 * store.BLOCK)
    served = server(tmp_path, save_frequency=10**9)
    served.register_worker("a")
    for number in range(50):
        push(served, number)

    assert len(list(tmp_path.glob("journal-*"))) < 6
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


def broken_after_a_checkpoint(folder: Path) -> None:
    """A disk that fails once it has the second checkpoint, and before it has its name for good."""
    if store.read_checkpoint(folder / store.CHECKPOINT).numbers["journal"] == 2:
        raise OSError(28, "No space left on device")


def test_where_the_disk_may_not_have_a_checkpoints_name_nothing_is_acknowledged_or_lost(
    tmp_path, monkeypatch
):
    served = server(tmp_path, save_frequency=1)
    served.register_worker("a")

    with monkeypatch.context() as patched:
        patched.setattr(store, "sync_folder", broken_after_a_checkpoint)
        push(served, 0)
        assert push(served, 1).version == 1  # in the old journal, which stays
        with pytest.raises(CheckpointError, match="No space left"):
            push(served, 2)
        assert {path.name[:17] for path in tmp_path.glob("journal-*")} == {
            "journal-000000001",
            "journal-000000002",
        }
    assert served.get_server_stats()["counts"]["save_failed"] == 1
    assert push(served, 2).code == "ok"
    served.close()

    again = server(tmp_path, save_frequency=1)
    assert again.version == 1
    assert again.get_server_stats()["pending"] == 1
    assert len({path.name[:17] for path in tmp_path.glob("journal-*")}) == 1


def test_a_push_that_cannot_be_written_down_is_not_taken(tmp_path, monkeypatch):
    served = server(tmp_path)
    served.register_worker("a")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
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
    (tmp_path / (store.CHECKPOINT + UNFINISHED)).touch(0o644)  # of one that was killed
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
        failing = {"replace_file": fail, "sync_folder": broken_after_a_checkpoint}
        patched.setattr(store, broken, failing[broken])
        with pytest.raises(CheckpointError, match="No space left"):
            served.load_checkpoint(tmp_path / "other")
    loaded = broken == "sync_folder"  # it has replaced the old one, for any process that looks
    assert np.array_equal(arrays(served), before) is not loaded
    for number in (13, 14):  # one of the two completes an update, whatever was loaded
        assert push(served, number).accepted
    after, version, pending = arrays(served), served.version, pending_of(served)
    served.close()

    again = server(tmp_path / "own")
    assert (again.version, pending_of(again)) == (version, pending)
    assert np.array_equal(arrays(again), after)
    assert push(again, 13).code == "duplicate"


def test_a_damaged_folder_of_its_own_is_refused_and_changes_nothing(tmp_path):
    served = server(tmp_path)
    served.register_worker("a")
    push(served, 0)
    journal = min(tmp_path.glob("journal-*"))
    raw = journal.read_bytes()
    journal.write_bytes(raw[:20])

    with pytest.raises(CheckpointError):
        served.load_checkpoint()
    journal.write_bytes(raw)

    assert push(served, 1).version == 1
