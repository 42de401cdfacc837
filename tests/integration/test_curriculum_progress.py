"""Tasks of a curriculum in async: they are in the checkpoint, although actors are not."""

from pathlib import Path
from typing import Any

import pytest

from curriculum_runs import ALL, CURRICULUM_RUN, least, stop_when_grown
from inline_runs import begin, finish, inline, resume
from rookery.actors.actor_group import ActorGroupState
from rookery.checkpoints import checkpoint
from rookery.event import Ask, Collected, Episode, Event, Logged
from rookery.training.run import TrainingRun
from run_processes import record

__all__ = ["inline"]  # a fixture

pytestmark = pytest.mark.usefixtures("inline")


def school(run_dir: Path) -> dict[str, Any]:
    """Runs until all tasks are open; returns what the checkpoint has of the actors."""
    with begin(run_dir, CURRICULUM_RUN) as training_run:
        finish(training_run, stop_when_grown)
    return local_actors_of(run_dir)


def local_actors_of(run_dir: Path) -> dict[str, Any]:
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    local_actors: dict[str, Any] = found.state()["actors"]
    return local_actors


def go_on(run_dir: Path) -> list[Event]:
    """Resumes a run for some episodes of each environment; returns what happened."""
    events: list[Event] = []

    def look(training_run: TrainingRun, event: Event) -> None:
        events.append(event)
        if len(episodes(events)) >= 16:
            training_run._asked.add(Ask.STOP)

    with resume(run_dir) as training_run:
        finish(training_run, look)
    return events


def episodes(events: list[Event]) -> list[Episode]:
    return [one for event in events if isinstance(event, Collected) for one in event.ended]


def test_a_resumed_run_continues_with_the_tasks_that_were_open(tmp_path: Path) -> None:
    local_actors = school(tmp_path / "run")
    assert "actors" not in local_actors
    assert [(actor, len(envs)) for actor, envs in local_actors["progress"]] == [(0, 2), (1, 2)]
    assert least(local_actors["progress"]) == ALL
    before = record(tmp_path / "run", "logged")[-1]["metrics"]

    events = go_on(tmp_path / "run")

    assert {one.info["curriculum/agents"] for one in episodes(events)} == {ALL}
    after = next(event for event in events if isinstance(event, Logged))
    assert after.metrics["curriculum/agents"] >= before["curriculum/agents"] > 1  # means
    assert least(local_actors_of(tmp_path / "run")["progress"]) == ALL


def test_a_checkpoint_from_before_there_was_progress_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks begin with the first."""
    to_checkpoint = ActorGroupState.to_checkpoint

    def before(state: ActorGroupState) -> Any:
        numbers, arrays = to_checkpoint(state)
        return {"incarnations": numbers["incarnations"]}, arrays

    with monkeypatch.context() as patch:
        patch.setattr(ActorGroupState, "to_checkpoint", before)
        assert set(school(tmp_path / "run")) == {"incarnations"}

    ended = episodes(go_on(tmp_path / "run"))

    assert ended[0].info["curriculum/agents"] == 1
