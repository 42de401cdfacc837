"""A run that was stopped between any two of its events goes on exactly there."""

from pathlib import Path
from typing import Any

import pytest

from inline_runs import Inline, begin, finish, inline, resume, stop_at
from rookery.checkpoints import checkpoint
from rookery.config.load import load_run
from rookery.errors import ConfigError
from rookery.evaluation.backend import RunRequest
from rookery.evaluation.evaluation_process import EvaluationSetup
from rookery.event import Collected, Counters, Evaluated, Event, IterationEnded, Logged, Warned
from rookery.report.trackers import jsonl
from rookery.training import launch
from rookery.training.launch import session
from run_processes import record

__all__ = ["inline"]  # a fixture
pytestmark = pytest.mark.usefixtures("inline")

RESULT = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score", "reason")
RICH = {
    "replay.sampling": "prioritized",
    "replay.initial_priority": "actor",
    "algo.n_step": 3,
    "env.frame_stack": 2,
}
CUT = {"env.id": "misbehaving_envs:Wander", "env.kwargs": {}}


def result(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in RESULT}


def evaluations(run_dir: Path) -> list[tuple[int, list[float]]]:
    return [(e["env_steps"], e["returns"]) for e in record(run_dir, "evaluated")]


def places(events: list[Event]) -> list[int]:
    """Chooses where to stop: everywhere around two marks, and here and there."""
    crossed = [i for i, e in enumerate(events, 1) if isinstance(e, Collected)]
    around = [i for i in crossed if 256 <= events[i - 1].counters.env_steps <= 328]
    turned = [i for i, e in enumerate(events, 1) if isinstance(e, IterationEnded)]
    near = {i + shift for i in around for shift in (0, 1, 2)}
    return sorted(near | set(range(1, len(events), len(events) // 8)) | {turned[-1]})


def test_wherever_it_is_interrupted_an_environment_that_exports_its_state_loses_nothing(tmp_path):
    events: list[Event] = []
    with begin(tmp_path / "whole", RICH) as training_run:
        whole = finish(training_run, lambda _, event: events.append(event))

    for place in places(events):
        run_dir = tmp_path / str(place)
        with begin(run_dir, RICH) as training_run:
            stopped = finish(training_run, stop_at(place))
        with resume(run_dir, exact=True) as training_run:
            answer = finish(training_run)

        assert stopped["reason"] == "interrupted", place
        assert result(answer) == result(whole), place
        assert evaluations(run_dir) == evaluations(tmp_path / "whole"), place


def test_an_environment_that_cannot_be_saved_is_exact_from_its_last_periodic_checkpoint(
    tmp_path, capfd
):
    with begin(tmp_path / "whole", CUT) as training_run:
        whole = finish(training_run)
    with begin(tmp_path / "run", CUT) as training_run:
        finish(training_run, stop_at(150))
    made = checkpoint.newest(tmp_path / "run" / "checkpoints").found
    with resume(tmp_path / "run", exact=True) as training_run:
        answer = finish(training_run)

    assert made is not None
    assert not made.manifest["exact"]
    assert f"{made.folder.name} skipped: it is not exact" in capfd.readouterr().err
    assert result(answer) == result(whole)
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


def test_without_exact_it_goes_on_from_the_interrupt_and_says_what_that_costs(tmp_path, capfd):
    with begin(tmp_path, CUT) as training_run:
        stopped = finish(training_run, stop_at(150))
    with resume(tmp_path) as training_run:
        began = training_run.parts.counters.env_steps
        answer = finish(training_run)

    assert began == stopped["env_steps"] > 300
    assert "which is not exact" in capfd.readouterr().err
    assert answer["env_steps"] == 1_200
    marks = [mark for mark, _ in evaluations(tmp_path)]
    assert [mark // 300 for mark in marks] == [1, 2, 3, 4]


def test_a_run_killed_before_its_report_is_not_evaluated_or_logged_twice(tmp_path):
    with begin(tmp_path) as training_run:
        whole = finish(training_run)
    before = evaluations(tmp_path), [e["env_steps"] for e in record(tmp_path, "logged")]
    (tmp_path / "result.json").unlink()
    with resume(tmp_path, exact=True) as training_run:
        again = finish(training_run)

    assert result(again) == result(whole)
    assert (evaluations(tmp_path), [e["env_steps"] for e in record(tmp_path, "logged")]) == before


def test_a_run_that_reached_its_target_reaches_it_at_the_same_mark_when_interrupted(tmp_path):
    with begin(tmp_path / "measure", CUT) as training_run:
        finish(training_run)
    scores = [entry["score"] for entry in record(tmp_path / "measure", "evaluated")]
    aim = CUT | {"eval.target": sorted(scores)[-2]}
    with begin(tmp_path / "whole", aim) as training_run:
        whole = finish(training_run)
    run_dir = tmp_path / "run"
    with begin(run_dir, aim) as training_run:
        finish(training_run, stop_at(120))
    with resume(run_dir, exact=True) as training_run:
        answer = finish(training_run)

    assert whole["solved"]
    assert whole["env_steps"] < 1_200
    assert result(answer) == result(whole)
    assert evaluations(run_dir) == evaluations(tmp_path / "whole")
    last = checkpoint.newest(run_dir / "checkpoints", resumable=False).found
    assert last is not None
    assert last.env_steps == whole["env_steps"]
    assert last.manifest["final"]


def test_a_run_without_replay_in_its_checkpoints_is_never_called_exact(tmp_path, capfd):
    with begin(tmp_path, {"checkpoint.replay": False}) as training_run:
        finish(training_run, stop_at(150))
    with resume(tmp_path, exact=True) as training_run:
        assert training_run.parts.counters.env_steps == 0

    assert "or without replay" in capfd.readouterr().err
    with resume(tmp_path) as training_run:
        assert training_run.parts.counters.env_steps > 300


def test_settings_changed_on_resuming_are_said_and_kept(tmp_path, capfd):
    with begin(tmp_path) as training_run:
        finish(training_run, stop_at(50))
    config = load_run(tmp_path, changes={"run.env_steps": 896})
    with session(config, RunRequest(resume=tmp_path)) as training_run:
        finish(training_run, stop_at(1))
    with resume(tmp_path) as training_run:
        answer = finish(training_run)

    assert "changed: run.env_steps 1200 -> 896" in capfd.readouterr().err
    assert answer["env_steps"] == 896


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"replay.capacity": 2_000}, "replay.capacity 1000 -> 2000"),
        ({"actor.envs": 4}, "actor.envs 8 -> 4"),
        ({"net.hidden": [16]}, r"net.hidden \[32\] -> \[16\]"),
        ({"env.kwargs": {"length": 9}}, "env.kwargs {'length': 8} -> {'length': 9}"),
    ],
)
def test_settings_a_checkpoint_does_not_fit_are_refused_and_not_kept(tmp_path, change, named):
    with begin(tmp_path) as training_run:
        finish(training_run, stop_at(50))
    before = load_run(tmp_path)
    config = load_run(tmp_path, changes=change)

    with pytest.raises(ConfigError, match=named), session(config, RunRequest(resume=tmp_path)):
        pass

    assert load_run(tmp_path) == before


def test_what_was_not_written_down_when_a_checkpoint_was_made_is_written_by_the_resumed_run(
    tmp_path, monkeypatch
):
    lost = [
        Logged(Counters(1, 2, 3), 0.5, {"time/fps": 1.25}),
        Evaluated(Counters(1, 2, 3), 4, 0.1, (0.1, 0.2), (5, 6), None, True, False),
        Warned(Counters(1, 2, 3), "test", "ünïcode"),
    ]
    rewritten: list[str] = []

    class Slow(Inline):
        """A manager that has not heard of three events being written."""

        def __init__(self, setup: EvaluationSetup):
            super().__init__(setup)
            self.unwritten = list(lost)

        def write(self, event: Event, *, again: bool = False) -> None:
            if again:
                rewritten.append(jsonl.line(event))
            else:
                super().write(event)

    monkeypatch.setattr(launch, "EvaluationClient", Slow)
    with begin(tmp_path) as training_run:
        finish(training_run, stop_at(50))
    with resume(tmp_path):
        pass

    assert rewritten == [jsonl.line(event) for event in lost]
