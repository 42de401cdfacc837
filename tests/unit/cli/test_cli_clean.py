"""`rookery clean`: pools in folders that the user has chosen."""

import json
import os
import re

import pytest

from pool_buffers import fill, join, pool
from rookery.cli.main import main
from rookery.replay.file_owner import Owner

GONE = Owner(2**22 + 1, 1, bytes(16))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Neither runs nor pools of this machine are looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rookery.sharing.cleanup.shared_directory", lambda: tmp_path / "shm")


@pytest.fixture
def abandoned(tmp_path, monkeypatch):
    """A pool at a path of the user's, as a killed process leaves it."""
    registry = pool(tmp_path)
    with monkeypatch.context() as died:
        died.setattr(Owner, "this", classmethod(lambda cls: GONE))
        buffer_id, ring = join(registry, "a")
        fill(ring, 10)
    ring.close()
    os.close(registry._held.pop(buffer_id))
    registry._let_go()
    return registry.path


def cleaned(capsys, *words):
    assert main(["clean", "--json", *words]) == 0
    return [item["path"] for item in json.loads(capsys.readouterr().out)["removed"]]


def test_a_pool_that_is_named_is_cleaned(abandoned, capsys):
    files = {str(path) for path in abandoned.iterdir() if path.stem not in ("pool", "terms")}
    assert len(files) == 2

    would = cleaned(capsys, "--pool", str(abandoned), "--dry-run")
    assert set(would) == {*files, str(abandoned)}
    assert abandoned.exists()

    assert cleaned(capsys, "--pool", str(abandoned)) == would
    assert not abandoned.exists()


def test_a_pool_in_use_is_left_as_it_is(tmp_path, capsys):
    registry = pool(tmp_path)
    _, ring = join(registry, "a")
    fill(ring, 10)

    assert cleaned(capsys, "--pool", str(registry.path)) == []
    assert len(registry.list()) == 1


@pytest.mark.parametrize("name", ["nowhere", "folder", "folder/file"])
def test_what_is_no_pool_is_refused_and_nothing_is_removed(abandoned, name, tmp_path, capsys):
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "folder" / "file").touch()
    before = sorted(tmp_path.rglob("*"))

    code = main(["clean", "--pool", str(abandoned), "--pool", str(tmp_path / name)])

    assert code == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / name}" in told
    assert "sharing.pool" in told
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("named", ["missing", "file", ""])
def test_runs_in_what_is_no_folder_are_refused(named, tmp_path, capsys):
    (tmp_path / "file").touch()

    assert main(["clean", "--runs", named]) == 2
    assert re.search(rf"--runs.*needs a folder that exists, got '{named}'", capsys.readouterr().err)
