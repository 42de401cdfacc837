"""Lessons of a curriculum in async: they are in the checkpoint, although actors are not."""

from pathlib import Path
from typing import Any

import pytest

from inline import begin, finish, inline, resume
from pupils import ALL, PUPILS, least, stop_when_grown
from rookery.event import Ask, Collected, Episode, Event, Logged
from rookery.loops import restore
from rookery.loops.driver import Driver
from rookery.manage import checkpoint
from running import record

__all__ = ["inline"]  # a fixture

pytestmark = pytest.mark.usefixtures("inline")


def school(run_dir: Path) -> dict[str, Any]:
    """Runs until all lessons are open; returns what the checkpoint has of the actors."""
    with begin(run_dir, PUPILS) as driver:
        finish(driver, stop_when_grown)
    return crew_of(run_dir)


def crew_of(run_dir: Path) -> dict[str, Any]:
    found = checkpoint.newest(run_dir / "checkpoints").found
    assert found is not None
    crew: dict[str, Any] = found.state()["crew"]
    return crew


def go_on(run_dir: Path) -> list[Event]:
    """Resumes a run for some episodes of each environment; returns what happened."""
    events: list[Event] = []

    def look(driver: Driver, event: Event) -> None:
        events.append(event)
        if len(episodes(events)) >= 16:
            driver._asked.add(Ask.STOP)

    with resume(run_dir) as driver:
        finish(driver, look)
    return events


def episodes(events: list[Event]) -> list[Episode]:
    return [one for event in events if isinstance(event, Collected) for one in event.ended]


def test_a_resumed_run_goes_on_with_the_lessons_that_were_open(tmp_path: Path) -> None:
    crew = school(tmp_path / "run")
    assert "actors" not in crew
    assert [(actor, len(envs)) for actor, envs in crew["progress"]] == [(0, 2), (1, 2)]
    assert least(crew["progress"]) == ALL
    before = record(tmp_path / "run", "logged")[-1]["metrics"]

    events = go_on(tmp_path / "run")

    assert {one.info["curriculum/agents"] for one in episodes(events)} == {ALL}
    after = next(event for event in events if isinstance(event, Logged))
    assert after.metrics["curriculum/agents"] >= before["curriculum/agents"] > 1  # means
    assert least(crew_of(tmp_path / "run")["progress"]) == ALL


def test_a_checkpoint_from_before_there_was_progress_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lessons begin with the first."""
    crew_state = restore._crew_state

    def before(parts: Any) -> Any:
        dealt, exact = crew_state(parts)
        return dealt._replace(numbers={"incarnations": dealt.numbers["incarnations"]}), exact

    with monkeypatch.context() as patch:
        patch.setattr(restore, "_crew_state", before)
        assert set(school(tmp_path / "run")) == {"incarnations"}

    ended = episodes(go_on(tmp_path / "run"))

    assert ended[0].info["curriculum/agents"] == 1
