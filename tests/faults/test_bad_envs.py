"""Environments and settings that go wrong in the middle of a run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventually import eventually
from inline_runs import begin, finish, inline, resume
from rookery.checkpoints import checkpoint
from rookery.errors import EnvError, LostError
from rookery.event import Event, Learned, Logged, Warned
from rookery.training.run import TrainingRun
from run_processes import SMALL, CommandForker, record, words

__all__ = ["inline"]  # a fixture


def moody(mood: str, at: int = 60) -> dict[str, Any]:
    return {"env.id": "misbehaving_envs:Moody", "env.kwargs": {"mood": mood, "at": at}}


@pytest.mark.usefixtures("inline")
def test_an_environment_that_raises_is_named_with_its_step_and_the_line(tmp_path):
    with pytest.raises(EnvError) as raised, begin(tmp_path, moody("raise")) as training_run:
        finish(training_run)

    message = str(raised.value)
    assert message.startswith("misbehaving_envs:Moody, environment 0, step 60: step raised")
    assert "RuntimeError: the motor is on fire" in message
    assert "misbehaving_envs.py, line " in message
    assert raised.value.exit_code == 3


@pytest.mark.usefixtures("inline")
def test_a_value_that_is_not_finite_is_named_and_never_stored(tmp_path):
    with begin(tmp_path, moody("nan")) as training_run:
        with pytest.raises(EnvError) as raised:
            finish(training_run)
        parts = training_run.parts
        stored = [ring.columns["obs"].copy() for ring in (parts.replay.ring, parts.actors.rings[0])]
        rows = parts.replay.ring.committed

    assert "misbehaving_envs:Moody, environment 0, step 60: observation[0] is nan" in str(
        raised.value
    )
    assert rows > 300
    assert all(np.isfinite(column).all() for column in stored)


@pytest.mark.usefixtures("inline")
def test_what_was_saved_before_an_environment_broke_is_there_to_go_on_from(tmp_path):
    with pytest.raises(EnvError), begin(tmp_path, moody("raise")) as training_run:
        finish(training_run)
    found = checkpoint.newest(tmp_path / "checkpoints").found

    assert found is not None
    assert found.env_steps // 300 == 1
    with resume(tmp_path) as training_run:
        assert training_run.parts.counters.env_steps == found.env_steps


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("mode", [{}, {"run.mode": "sync", "run.engine": "inline"}])
def test_an_environment_that_calls_sys_exit_is_named_with_its_step(mode, tmp_path):
    with (
        pytest.raises((EnvError, LostError)) as raised,
        begin(tmp_path, moody("leave") | mode) as training_run,
    ):
        finish(training_run)

    where = "misbehaving_envs:Moody, environment 0, step 60: step raised SystemExit: 0"
    assert where in str(raised.value)
    assert raised.value.exit_code == 3


def test_a_command_whose_environment_calls_sys_exit_says_so_and_ends_with_3(forker, tmp_path):
    settings = {"env.id": "misbehaving_envs:Moody", "env.kwargs": "{mood: leave, at: 60}"}
    run = command(forker, tmp_path / "run", settings | {"env.check": "false"})

    assert run.wait() == 3, run.said
    assert "misbehaving_envs:Moody, environment 0, step 60: step raised SystemExit: 0" in run.said


def command(forker: CommandForker, folder: Path, settings: dict[str, Any]) -> Any:
    """Starts `rookery train` with an environment that misbehaves, in a folder of its own."""
    folder.mkdir()
    changes = words(SMALL | {"run.env_steps": 2_000} | settings)
    return forker.start(["train", "corridor", "--json", "--quiet", *changes], folder)


def test_a_hang_in_the_check_or_in_a_constructor_ends_the_run_with_the_call(forker, tmp_path):
    """With the environment check, and without it in both kinds of engine."""
    unchecked: dict[str, Any] = {"env.check": "false"}
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "checked": ("check", "reset", {}),
        "made": ("make", "the constructor", {}),
        "single": ("make", "the constructor", unchecked),
        "async": ("make", "the constructor", unchecked | {"run.mode": "async", "actor.num": 1}),
    }
    limit = {"env.id": "misbehaving_envs:Staged", "actor.env_step_timeout_s": 1.0}
    runs = {}
    for name, (stage, _, more) in cases.items():
        staged = {"env.kwargs": f"{{reached: '{tmp_path / name}-reached', at: {stage}}}"}
        runs[name] = command(forker, tmp_path / name, limit | staged | more)

    for name, (_, call, _) in cases.items():
        assert runs[name].wait() == 3, runs[name].said
        *_, last = runs[name].stderr.read_text().splitlines()
        said = rf"rookery: error: misbehaving_envs:Staged has not answered for \d+ s in {call} \("
        assert re.match(said, last), (name, last)


@pytest.mark.parametrize("mode", [{}, {"run.mode": "async", "actor.num": 1}], ids=["one", "async"])
def test_eight_slow_steps_in_a_vector_are_not_a_hang(mode, tmp_path):
    """Together they take longer than the limit, which is for one of them."""
    events: list[Event] = []
    slow = {"env.id": "misbehaving_envs:Sluggish", "env.kwargs": {"step_s": 0.2}}
    limits = {"actor.env_step_timeout_s": 1.0, "actor.envs": 8, "actor.chunk": 8}
    short = {"run.env_steps": 24, "replay.learning_starts": 24, "replay.batch_size": 8}
    with begin(tmp_path, slow | limits | short | mode | {"algo.n_step": 1}) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    assert answer["reason"] == "env_steps"
    assert not [event for event in events if isinstance(event, Warned)]


@pytest.mark.fresh  # the watchdog's signal does not find the main thread of a cloned process
@pytest.mark.parametrize(("stage", "call"), [("judge", "step"), ("judge make", "the constructor")])
def test_a_hang_in_the_evaluation_process_is_reported_with_the_call(stage, call, tmp_path):
    events: list[Event] = []
    staged = {"env.kwargs": {"reached": str(tmp_path / "reached"), "at": stage}}
    limits = {"actor.env_step_timeout_s": 0.7, "eval.period": 10_000, "run.env_steps": 300}
    settings = {"env.id": "misbehaving_envs:Staged"} | staged | limits
    with begin(tmp_path / "run", settings) as training_run:
        answer = finish(training_run, lambda _, event: events.append(event))

    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert answer["reason"] == "env_steps"
    assert warned.kind == "evaluation"
    said = rf"StalledError: misbehaving_envs:Staged has not answered for \d+ s in {call} \("
    assert re.search(said, warned.message)


EXPLODING = moody("huge", at=50) | {"learner.max_grad_norm": None, "learner.lr": 1e30}


@pytest.mark.usefixtures("inline")
def test_losses_that_are_not_finite_are_skipped_counted_and_in_the_end_fatal(tmp_path):
    events: list[Event] = []

    with (
        pytest.raises(LostError, match=r"10 learner steps in a row .* not finite") as lost,
        begin(tmp_path, EXPLODING | {"report.log_period": 64}) as training_run,
    ):
        finish(training_run, lambda _, event: events.append(event))

    skipped = [e for e in events if isinstance(e, Learned) and e.result.td_error is None]
    assert len(skipped) == 9  # the tenth raised
    assert lost.value.exit_code == 3
    assert "lower learner.lr (1e+30)" in str(lost.value)
    assert training_run.parts.learner.skipped == 10


@pytest.mark.usefixtures("inline")
def test_a_step_that_was_skipped_now_and_then_is_logged_and_not_fatal(tmp_path):
    events: list[Event] = []

    def look(training_run: TrainingRun, event: Event) -> None:
        """Spoils replay once, for as long as it takes to skip three steps."""
        events.append(event)
        reward = training_run.parts.replay.ring.columns["reward"]
        if isinstance(event, Learned):
            skipped = training_run.parts.learner.skipped
            reward[:] = np.inf if event.counters.learner_steps == 10 and skipped < 3 else 0.0

    with begin(tmp_path) as training_run:
        answer = finish(training_run, look)

    assert answer["reason"] == "env_steps"
    assert [e.metrics["faults/skipped_steps"] for e in events if isinstance(e, Logged)][-1] == 3
    learned = [e.counters.learner_steps for e in events if isinstance(e, Learned)]
    assert learned == [*range(1, 11), 10, 10, 10, *range(11, answer["learner_steps"] + 1)]


@pytest.mark.usefixtures("inline")
def test_the_best_model_outlives_weights_that_exploded(tmp_path):
    good = {"env.id": "misbehaving_envs:Moody", "env.kwargs": {"mood": "huge", "at": 100}}

    with (
        pytest.raises(LostError),
        begin(tmp_path, EXPLODING | good | {"learner.lr": 1e-3}) as training_run,
    ):
        finish(training_run)
    best = checkpoint.newest(tmp_path / "best", resumable=False)

    assert best.broken == []
    assert best.found is not None
    assert all(abs(array).max() < 1e3 for array in best.found.weights().values())


def test_the_command_ends_with_one_line_that_says_it_and_keeps_the_record(
    forker: CommandForker, tmp_path: Path
):
    settings = SMALL | {
        "env.id": "misbehaving_envs:Moody",
        "env.kwargs": "{mood: raise, at: 200}",
    }
    run = forker.start(
        ["train", "corridor", "--json", "--quiet", "--run-dir", "run", *words(settings)], tmp_path
    )

    assert run.wait() == 3, run.said
    *_, last = run.stderr.read_text().splitlines()
    assert last.startswith("rookery: error: misbehaving_envs:Moody, environment 0, step 200: ")
    assert "direct cause of the following" not in run.said  # its own traceback at most, not ours
    assert eventually(lambda: bool(record(tmp_path / "run", "logged")), 5.0)
