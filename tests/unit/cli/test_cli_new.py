"""`rookery new`: which files it writes. That their tests pass: tests/integration/test_new.py."""

import json

import pytest

from rookery.cli.main import main
from rookery.cli.new import KINDS
from rookery.config.load import load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_and_its_test_are_written_here(kind, folder, capsys):
    assert main(["new", kind, "my-first", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in folder.iterdir()) == sorted(answer["files"])
    assert len(answer["files"]) == 2
    assert answer["command"].startswith("rookery train ")


@pytest.mark.parametrize("taken", ["mine.py", "test_mine.py"])
def test_what_exists_is_not_overwritten(taken, folder, capsys):
    (folder / taken).write_text("precious")

    assert main(["new", "env", "mine"]) == 2
    assert f"{taken} exists already" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in folder.iterdir()} == {taken: "precious"}


@pytest.mark.parametrize("name", ["", "../a", "a/b", "3d", "a b", "ä", "-a"])
def test_a_name_that_is_none_is_refused(name, folder, capsys):
    assert main(["new", "env", "--", name]) == 2
    assert list(folder.iterdir()) == []


def test_a_scenario_is_one_that_train_takes(folder, capsys):
    main(["new", "scenario", "task"])

    assert load("task.yaml").name == "task"
