"""The evaluation process may die, hang or fail: training does not, and says what happened."""

import os
import re
from pathlib import Path
from signal import SIGKILL
from typing import Any

from eventually import eventually
from inline_runs import Inline, begin, finish
from rookery.config.load import load
from rookery.evaluation import evaluation_client
from rookery.evaluation.evaluation_client import EvaluationClient
from rookery.evaluation.evaluation_process import EvaluationSetup
from rookery.event import Counters, Evaluated, Event, Warned
from rookery.training import launch
from rookery.training.run import TrainingRun
from run_processes import nothing_new, record, shared

MOODY = {"env.id": "misbehaving_envs:Moody"}
ONE_MARK = {"eval.period": 10_000}


def moody(mood: str) -> dict[str, Any]:
    """Settings of an environment that misbehaves in evaluation, and only there."""
    return MOODY | ONE_MARK | {"env.kwargs": {"mood": mood, "at": 5, "where": "judge"}}


def evaluations(run_dir: Path) -> list[tuple[int, list[float]]]:
    return [(e["env_steps"], e["returns"]) for e in record(run_dir, "evaluated")]


def warnings(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.message) for event in events if isinstance(event, Warned)]


def test_a_manage_process_killed_twice_costs_nothing_but_two_warnings(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(launch, "EvaluationClient", Inline)
        with begin(tmp_path / "calm") as training_run:
            calm = finish(training_run)
    events: list[Event] = []
    pids: list[int] = []

    def look(training_run: TrainingRun, event: Event) -> None:
        events.append(event)
        first, judging = not pids, isinstance(event, Evaluated) and len(pids) == 1
        if first or judging:
            assert training_run.evaluation_client.pid is not None
            pids.append(training_run.evaluation_client.pid)
            os.kill(training_run.evaluation_client.pid, SIGKILL)

    before = shared()
    # training waits for the evaluator, so that marks are left when it dies for the second time
    with begin(tmp_path / "run", {"eval.queue": 1}) as training_run:
        answer = finish(training_run, look)

    died = ("evaluator", "the evaluation process died (status -9); it is started again")
    assert warnings(events) == [died, died]
    assert len(set(pids)) == 2
    same = ("weights_sha256", "env_steps", "learner_steps", "episodes", "best_score")
    assert {key: answer[key] for key in same} == {key: calm[key] for key in same}
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "calm")
    assert [e["env_steps"] for e in record(tmp_path / "run", "logged")] == [
        e["env_steps"] for e in record(tmp_path / "calm", "logged")
    ]
    assert [e["message"] for e in record(tmp_path / "run", "warned")] == [died[1]] * 2
    assert len(record(tmp_path / "run", "stopped")) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert nothing_new(before)


def test_an_evaluation_that_hangs_is_killed_tried_again_and_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_client, "MARGIN_S", 0.5)
    events: list[Event] = []
    limits = {"eval.timeout_s": 0.5, "eval.max_restarts": 1}

    with begin(tmp_path, moody("hang") | limits) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    kinds, messages = zip(*warnings(events), strict=True)
    assert kinds == ("evaluator", "evaluator", "evaluation")
    assert re.match(
        r"the evaluation process has not answered for \d+ s \(eval.timeout_s", messages[0]
    )
    assert messages[2].startswith("the evaluation at env step 1200 was given up after 1 restarts")
    assert (answer["reason"], answer["best_score"]) == ("env_steps", None)
    assert len(record(tmp_path, "warned")) == 3


def test_an_evaluation_that_crashes_the_process_ends_judging_but_not_the_run(tmp_path):
    events: list[Event] = []

    with begin(tmp_path, moody("die") | {"eval.max_restarts": 0}) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    assert warnings(events) == [
        ("evaluator", "the evaluation process died (status -11); it is started again"),
        (
            "evaluation",
            "the evaluation at env step 1200 was given up after 0 restarts; "
            "no further snapshots are evaluated",
        ),
    ]
    assert answer["reason"] == "env_steps"
    assert len(record(tmp_path, "stopped")) == 1


def test_an_environment_that_raises_only_in_evaluation_is_shown_with_its_traceback(tmp_path):
    events: list[Event] = []

    with begin(tmp_path, moody("raise")) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    ((kind, message),) = warnings(events)
    assert kind == "evaluation"
    assert "RuntimeError: the motor is on fire" in message
    assert "misbehaving_envs.py" in message
    assert answer["reason"] == "env_steps"


def test_a_line_written_by_a_process_that_died_before_saying_so_is_not_doubled(
    tmp_path, monkeypatch
):
    config = load("corridor", changes={"report.tensorboard": False})
    warned = Warned(Counters(7, 8, 9), "test", "only once")
    client = EvaluationClient(EvaluationSetup(config, str(tmp_path), None, None, False))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(client, "_receive", lambda message: None)  # its answer is lost
            client.write(warned)
            path = tmp_path / "metrics.jsonl"
            assert eventually(lambda: path.exists() and path.read_text() != "", 30.0)
            assert client.pid is not None
            os.kill(client.pid, SIGKILL)
            assert eventually(lambda: bool(list(client.poll())), 30.0)
        client.write(Warned(Counters(8, 8, 9), "test", "another"))
    finally:
        client.close()

    assert [e["message"] for e in record(tmp_path, "warned")] == ["only once", "another"]
