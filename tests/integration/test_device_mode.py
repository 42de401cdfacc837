"""Runs whose worlds, replay and learner are on one device; here that is the CPU."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rookery.api.runs import events
from rookery.checkpoints import checkpoint
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import load
from rookery.config.schema import Config
from rookery.errors import ConfigError, LostError
from rookery.event import Collected, Logged, Saved, Stopped, Warned
from rookery.pathfinding.curriculum_actors import DeviceActors
from rookery.report.trackers import jsonl

SMALL: dict[str, Any] = {
    "run.env_steps": 3_000,
    "run.minutes": None,
    "env.kwargs": "{agents: 4, size: 10, density: 0.1, steps: 32}",
    "env.check": False,
    "eval.period": 1_500,
    "eval.episodes": 1,
    "checkpoint.period": 1_000,
    "report.log_period": 500,
    "report.tensorboard": False,
    "device.agents": 16,
    "device.rows": 64,
    "algo.curriculum": "{agents: [1, 2, 4], sizes: [5, 10], threshold: 0.01, history: 4}",
    "replay.learning_starts": 64,
    "replay.batch_size": 16,
    "replay.samples_per_insert": 4.0,
    "algo.teacher": "none",
    "net.memory": 16,
    "learner.device": "cpu",
    "learner.compile": False,
    "learner.publish_period": 2,
}


def small(run_dir: Path, **changes: Any) -> Config:
    settings = SMALL | {"run.run_dir": str(run_dir)} | changes
    given = [
        f"{key}={_word(value)}"
        for key, value in settings.items()
        if key in changes or key.partition(".")[0] not in changes  # a whole section is given
    ]
    return load("pathfinding", overrides=given)


def _word(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    run_dir = tmp_path_factory.mktemp("onboard") / "run"
    return run_dir, list(events(small(run_dir)))


def test_it_plays_learns_and_ends(run: tuple[Path, list[Any]]) -> None:
    _, seen = run
    (stopped,) = [event for event in seen if isinstance(event, Stopped)]

    assert stopped.counters.env_steps >= 3_000
    assert stopped.counters.learner_steps > 20
    assert stopped.counters.episodes > 10
    assert stopped.best_score is not None


def test_episodes_say_how_they_ended(run: tuple[Path, list[Any]]) -> None:
    _, seen = run
    ended = [one for event in seen if isinstance(event, Collected) for one in event.ended]

    assert {int(one.info["agents"]) for one in ended} >= {1, 2}
    assert {one.info["is_success"] for one in ended} == {0.0, 1.0}
    assert all(one.length <= 32 for one in ended)


def test_the_curriculum_is_in_the_report_and_in_the_checkpoint(
    run: tuple[Path, list[Any]],
) -> None:
    run_dir, seen = run
    lines = [event.metrics for event in seen if isinstance(event, Logged)]
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    saved = found.state()["actors"]["actors"][0]

    assert lines[-1]["curriculum/agents"] >= 2
    assert any(key.startswith("curriculum/1x") for key in lines[-1])
    assert lines[-1]["train/q_drift"] >= 0
    assert {tuple(entry[:2]) for entry in saved["results"]} >= {(1, 5), (2, 5)}


def test_a_run_goes_on_where_it_was(run: tuple[Path, list[Any]]) -> None:
    run_dir, seen = run
    before = seen[-1].counters

    again = list(events(resume=run_dir, overrides=["run.env_steps=5000"]))

    stopped = again[-1]
    assert stopped.counters.env_steps >= 5_000
    assert stopped.counters.learner_steps > before.learner_steps
    first = next(event for event in again if isinstance(event, Collected))
    assert first.counters.env_steps > before.env_steps
    assert any(isinstance(event, Saved) for event in again)
    steps = [line["env_steps"] for line in jsonl.read(run_dir) if line["event"] == "logged"]
    assert steps == sorted(steps)
    assert read_weights(run_dir, "last").version > 1


def test_curriculum_tasks_that_are_left_out_are_dropped_with_a_warning(
    run: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    """The first run had opened a map of 10 rows and columns."""
    copy = tmp_path / "run"
    shutil.copytree(run[0], copy)
    fewer = "algo.curriculum={agents: [2, 4], sizes: [5], threshold: 0.01, history: 4}"

    again = list(events(resume=copy, overrides=["run.env_steps=6000", fewer]))

    said = [event.message for event in again if isinstance(event, Warned)]
    lines = [event.metrics for event in again if isinstance(event, Logged)]
    assert any("1x10" in each and "not trained further" in each for each in said)
    assert {line["curriculum/size"] for line in lines} == {5.0}


def test_a_taught_run_agrees_more_and_more_with_its_teacher(tmp_path: Path) -> None:
    config = small(
        tmp_path / "run",
        **{
            "algo.teacher": "planner",
            "run.env_steps": 12_000,
            "learner.lr": 0.003,
            "env.kwargs": "{agents: 2, size: 5, density: 0.1, steps: 16, radius: 1}",
            "algo.curriculum": "{agents: [2], sizes: [5]}",
            "device.agents": 64,
            "algo.guided_steps": 8,
            "algo.policy_steps": 4,
            "algo.length": 4,
            "algo.burn_in": 2,
            "eval.period": 100_000,
        },
    )
    lines = [event.metrics for event in events(config) if isinstance(event, Logged)]
    agreed = [line["train/agreement"] for line in lines if "train/agreement" in line]

    assert agreed[-1] > max(0.5, agreed[0])  # one action in five, by chance
    assert "curriculum/2x5" in lines[-1]


def test_a_device_without_memory_ends_the_run_and_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(actors: DeviceActors, *chunk: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(DeviceActors, "collect", full)

    with pytest.raises(LostError, match=r"ran out of memory; lower device.agents \(16\)"):
        list(events(small(tmp_path / "run")))
    assert "without a GPU is slow; pathfinding-cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("algo", "{name: dqn}", "algo.name team only"),
        ("actor.num", 2, "use device.agents"),
        ("checkpoint.replay", True, "fills its replay anew"),
        ("replay.sampling", "uniform", "by priorities"),
        ("run.engine", "processes", "on one device"),
        ("device.rows", 8, "keep at least"),
        ("device.agents", 2, "is less than a team of 4"),
        ("replay.batch_size", 18, "whole teams"),
        ("algo.curriculum", "{agents: [2, 1]}", "sort them"),
        ("algo.curriculum", "{speed: 3}", "a curriculum takes"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        list(events(small(tmp_path / "run", **{key: value})))
    assert not (tmp_path / "run").exists()
