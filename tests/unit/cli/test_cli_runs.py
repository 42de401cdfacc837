"""The verbs runs and show: what is in run folders, as text and as JSON."""

import json

import pytest

from rookery.cli.main import main
from rookery.config.load import dump, load
from rookery.config.schema import Config


@pytest.fixture
def runs(tmp_path):
    """A run that has ended, and one that has not been evaluated yet."""
    entries = {
        "a": [
            {"event": "evaluated", "env_steps": 500, "score": 3.0},
            {"event": "stopped", "env_steps": 1000, "reason": "env_steps"},
        ],
        "b": [],
    }
    for seed, (name, lines) in enumerate(entries.items()):
        folder = tmp_path / name
        folder.mkdir()
        changes = {"run.seed": seed, "algo": "sac", "env.id": "Pendulum-v1", "learner.lr": 0.01}
        (folder / "config.yaml").write_text(dump(load(Config(), changes=changes)))
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    return tmp_path


def test_runs_are_listed_with_what_they_trained_and_scored(runs, capsys):
    assert main(["runs", str(runs)]) == 0

    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["run", "environment", "algorithm"]
    assert first.split()[1:] == [
        *("Pendulum-v1", "sac", "0", "stopped", "(env_steps)", "3.00", "3.00", "1,000")
    ]
    assert second.split()[1:] == ["Pendulum-v1", "sac", "1", "not", "over", "-", "-", "-"]


def test_a_run_of_sb3s_is_listed_as_one(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(dump(load("sb3-ppo")))
    (tmp_path / "metrics.jsonl").touch()

    assert main(["runs", str(tmp_path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["algorithm"] == "SB3 PPO"


def test_runs_as_json_have_the_same(runs, capsys):
    assert main(["runs", str(runs), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert [run["best score"] for run in answer["runs"]] == ["3.00", "-"]


def test_a_run_is_shown_with_the_settings_that_are_not_defaults(runs, capsys):
    assert main(["show", str(runs / "a"), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["settings"]["learner.lr"] == 0.01
    assert "replay.batch_size" not in answer["settings"]
    assert answer["results"]["state"] == "stopped (env_steps)"


@pytest.mark.parametrize("verb", ["runs", "show"])
def test_a_folder_without_runs_is_refused(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path)]) == 2

    assert "run" in capsys.readouterr().err


def test_a_damaged_time_does_not_end_the_list(runs, capsys):
    with (runs / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "logged", "env_steps": 1000, "wall_s": Infinity, "metrics": {}}\n')

    assert main(["runs", str(runs)]) == 0
    assert "Pendulum-v1" in capsys.readouterr().out
