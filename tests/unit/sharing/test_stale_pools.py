"""Remains: what is cleared away from a pool, what stays, and who finds out."""

import json
import os
from pathlib import Path

import pytest

from pool_buffers import SCHEMA, TERMS, fill, join, pool
from rookery.errors import ConfigError, RegistryError
from rookery.replay.file_owner import Owner
from rookery.replay.ring import Ring
from rookery.sharing import pool_files, stale_pools
from rookery.sharing.registry import Registry, create_distributed_registry

GONE = [2**22 + 1, 1, "00" * 16]  # no kernel gives such a pid


def orphaned(registry: Registry, run_id: str) -> str:
    """Registers a buffer whose registrar is gone."""
    buffer_id = registry.register_buffer(run_id=run_id, algorithm="SAC")
    os.close(registry._held.pop(buffer_id))
    note = registry.path / f"{buffer_id}.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"owner": GONE}))
    return buffer_id


def test_a_reserved_id_is_removed_with_the_process_that_reserved_it(tmp_path):
    registry = pool(tmp_path)
    kept = registry.register_buffer(run_id="kept", algorithm="SAC")
    gone = orphaned(registry, "gone")
    (found,) = stale_pools.find(registry.path)
    assert (found.buffer_id, found.why) == (gone, f"its owner (pid {GONE[0]}) is gone")
    assert registry.sweep() == (gone,)
    assert [listed.buffer_id for listed in registry.list()] == [kept]


def test_a_buffer_whose_registrar_is_gone_stays_while_its_writer_lives(tmp_path):
    registry = pool(tmp_path)
    buffer_id = orphaned(registry, "a")
    ring = registry.attach(buffer_id, TERMS, SCHEMA, 10)
    registry.claim(ring, buffer_id)
    fill(ring, 5)
    assert registry.sweep() == ()
    assert [listed.state for listed in registry.list()] == ["lending"]


def test_a_damaged_ring_goes_with_its_registrar(tmp_path):
    registry = pool(tmp_path)
    buffer_id = orphaned(registry, "a")
    ring = registry.path / f"{buffer_id}.ring"
    ring.touch(mode=0o600)
    assert registry.sweep() == (buffer_id,)
    assert not ring.exists()


def test_a_ring_without_a_note_goes_with_its_writer(tmp_path, monkeypatch):
    registry = pool(tmp_path)
    _, kept = join(registry, "kept")
    alone = Ring.create(SCHEMA, 10, directory=registry.path, name="alone.ring")
    assert registry.sweep() == ()
    monkeypatch.setattr(Owner, "alive", property(lambda owner: False))
    assert registry.sweep() == ("alone",)
    alone.close(), kept.close()


def test_what_never_got_its_name_goes_when_it_is_old(tmp_path):
    registry = pool(tmp_path)
    young, old = registry.path / ".young.json", registry.path / ".old.ring.1234"
    for path in (young, old):
        path.touch(mode=0o600)
    os.utime(old, (0, 0))
    assert [found.why for found in stale_pools.find(registry.path)] == ["it was never finished"]
    registry.sweep()
    assert (young.exists(), old.exists()) == (True, False)


def test_a_pool_is_deserted_once_it_is_not_started_and_all_members_are_dead(tmp_path):
    registry = pool(tmp_path)
    orphaned(registry, "a")
    assert not stale_pools.is_abandoned(registry.path)  # it is started
    registry._let_go()
    assert stale_pools.is_abandoned(registry.path)
    (registry.path / "theirs.txt").touch()
    assert not stale_pools.is_abandoned(registry.path)


def test_the_snapshots_of_a_league_go_with_its_pool_and_not_before(tmp_path):
    registry = pool(tmp_path)
    league = registry.path / pool_files.LEAGUE
    league.mkdir()
    (league / "main-1-v000000003.safetensors").touch()
    assert not stale_pools.remove_if_empty(registry.path)  # it is started
    assert [*league.iterdir()]
    registry._let_go()
    assert stale_pools.is_abandoned(registry.path)
    assert stale_pools.remove_if_empty(registry.path)
    assert not registry.path.exists()


def test_a_pool_with_a_buffer_is_not_dissolved(tmp_path):
    registry = pool(tmp_path)
    orphaned(registry, "a")
    registry._let_go()
    assert not stale_pools.remove_if_empty(registry.path)
    stale_pools.clear(registry.path)
    assert stale_pools.remove_if_empty(registry.path)
    assert not registry.path.exists()


def test_a_pool_started_while_its_last_member_leaves_exists(tmp_path, monkeypatch):
    leaving, write_once = pool(tmp_path), pool_files.write_once

    def written_too_late(path: Path, value: object) -> None:
        write_once(path, value)
        if leaving.available:
            leaving.stop()  # between the making of the file and its opening

    monkeypatch.setattr(pool_files, "write_once", written_too_late)
    registry = pool(tmp_path)
    assert registry.available
    assert registry.register_buffer(run_id="a", algorithm="SAC")


def test_a_pool_that_was_replaced_is_gone_to_those_who_knew_the_old_one(tmp_path):
    old = pool(tmp_path)
    os.rename(old.path, tmp_path / "old")
    new = pool(tmp_path)
    assert (old.available, new.available) == (False, True)
    with pytest.raises(RegistryError, match=r"register_buffer: .*gone"):
        old.register_buffer(run_id="a", algorithm="SAC")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "a": 2}'])
def test_a_folder_whose_pool_file_is_nonsense_is_refused(tmp_path, text):
    registry = pool(tmp_path)
    (registry.path / "pool.json").write_text(text)
    with pytest.raises(ConfigError, match="name another folder"):
        create_distributed_registry(path=registry.path)


def test_terms_that_cannot_be_read_are_refused_by_name(tmp_path):
    registry = pool(tmp_path)
    join(registry, "a")
    (registry.path / "terms.json").write_text("{")
    with pytest.raises(ConfigError, match=r"terms\.json cannot be read"):
        join(registry, "b")


def test_a_ring_has_its_name_once_it_is_whole_and_none_before(tmp_path, monkeypatch):
    registry, seen = pool(tmp_path), []
    name_ring = pool_files.name_ring

    def watched(ring: Ring, path: Path) -> None:
        seen.extend(entry.name for entry in registry.path.iterdir() if "ring" in entry.name)
        name_ring(ring, path)

    monkeypatch.setattr(pool_files, "name_ring", watched)
    buffer_id, _ = join(registry, "a")
    assert seen == []
    assert (registry.path / f"{buffer_id}.ring").exists()


def test_where_a_file_cannot_be_named_later_it_is_made_beside_its_name(tmp_path, monkeypatch):
    def refused(ring: Ring, path: Path) -> None:
        raise OSError("not here")

    monkeypatch.setattr(pool_files, "name_ring", refused)
    registry = pool(tmp_path)
    buffer_id, ring = join(registry, "a")
    fill(ring, 5)
    names = {entry.name for entry in registry.path.iterdir()}
    assert names == {"pool.json", "terms.json", f"{buffer_id}.json", f"{buffer_id}.ring"}
    assert [listed.rows for listed in registry.list()] == [5]
