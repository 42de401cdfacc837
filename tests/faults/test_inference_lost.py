"""The inference server and those who ask it are killed, stopped and interrupted."""

import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSTOP
from typing import Any

import pytest

import row_lineage as lineage
from eventually import eventually
from inline_runs import begin, finish, inline
from rookery.config.load import load
from rookery.config.schema import Engine
from rookery.engines import ENGINES
from rookery.errors import LostError
from rookery.event import Ask, Event, IterationEnded, Warned
from rookery.training import LOOPS
from rookery.training.build import build_parts
from rookery.training.run import TrainingRun
from run_processes import SMALL, CommandForker, Started, named, nothing_new, settled, shared, words
from thread_engine import start as in_a_thread

__all__ = ["inline"]  # a fixture

pytestmark = pytest.mark.timeout(90)
CENTRAL: dict[str, Any] = {
    "run.mode": "async",
    "actor.num": 2,
    "actor.inference": "central",
    "run.env_steps": 10_000_000,
    "replay.capacity": 100_000,
    "replay.batch_size": 16,
    "replay.learning_starts": 100,
    "replay.samples_per_insert": 16.0,
    "checkpoint.period": 10_000_000,
    "eval.period": 10_000_000,
    "report.log_period": 64,
}
SYNC = {"run.mode": "sync", "run.env_steps": 600}


def answered(training_run: TrainingRun) -> int:
    return training_run.parts.actors._inference.slots.done.questions


class Story:
    """Does one thing after another to a run, each once its time has come, then ends it."""

    def __init__(self, *chapters: Callable[[TrainingRun], bool]):
        self._chapters, self.said = list(chapters), list[str]()

    def look(self, training_run: TrainingRun, event: Event) -> None:
        if isinstance(event, Warned):
            self.said.append(event.message)
        if isinstance(event, IterationEnded) and self._chapters and self._chapters[0](training_run):
            self._chapters.pop(0)
        if not self._chapters:
            training_run._asked.add(Ask.STOP)


def send(number: int, *names: str) -> Callable[[TrainingRun], bool]:
    def chapter(training_run: TrainingRun) -> bool:
        for name in names:
            os.kill(training_run.parts.actors.pids[name], number)
        return True

    return chapter


def played(*lives: tuple[int, int]) -> Callable[[TrainingRun], bool]:
    """Waits for rows of these (actor, incarnation)."""
    return lambda training_run: lineage.counts(training_run.parts.replay.ring).keys() >= set(lives)


def restarted(times: int) -> Callable[[TrainingRun], bool]:
    """Waits for the server's next life, and for it to answer more than a chunk."""
    before: list[int] = []

    def chapter(training_run: TrainingRun) -> bool:
        if training_run.parts.actors._inference.restarts < times:
            return False
        before.append(answered(training_run))
        return answered(training_run) > before[0] + 20

    return chapter


@pytest.mark.usefixtures("inline")
def test_in_async_server_and_actors_are_killed_and_stopped_and_each_is_replaced(tmp_path):
    """A dead actor does not delay the others; without a server, actors wait."""
    story = Story(
        played((0, 0), (1, 0)),
        send(SIGKILL, "actor-1"),
        send(SIGKILL, "infer"),
        restarted(1),
        played((1, 1)),
        send(SIGSTOP, "infer"),
        restarted(2),
    )

    with begin(tmp_path, CENTRAL | {"actor.env_step_timeout_s": 3.0}) as training_run:
        answer = finish(training_run, story.look)
        lineage.check(training_run.parts.replay.ring)
        assert training_run.parts.actors.incarnations == [0, 1]

    assert answer["reason"] == "callback"
    killed, stopped = (line for line in story.said if line.startswith("the inference server"))
    assert killed == "the inference server was lost (died (exit status -9)) and is replaced"
    assert re.match(r"the inference server was lost \(has not moved for \d s \(", stopped)
    assert len(story.said) == 3


@pytest.mark.usefixtures("inline")
def test_in_sync_a_run_whose_server_is_killed_ends_with_the_same_weights(tmp_path, monkeypatch):
    """A question brings its own seed, so the next server answers as the last one would have."""
    with monkeypatch.context() as patch:
        patch.setitem(ENGINES, Engine.PROCESSES, in_a_thread)
        with begin(tmp_path / "whole", CENTRAL | SYNC) as training_run:
            whole = finish(training_run)
    killed: list[int] = []

    def kill(training_run: TrainingRun, event: Event) -> None:
        if isinstance(event, IterationEnded) and event.counters.env_steps >= 300 and not killed:
            killed.append(training_run.parts.actors.pids["infer"])
            os.kill(killed[0], SIGKILL)

    with begin(tmp_path / "torn", CENTRAL | SYNC) as training_run:
        torn = finish(training_run, kill)
        assert training_run.parts.actors._inference.restarts == 1
        assert training_run.parts.actors.incarnations == [0, 0]

    assert torn["weights_sha256"] == whole["weights_sha256"]


def test_an_algorithm_that_always_raises_ends_the_run_with_the_servers_traceback():
    before = shared()
    broken = {"algo.name": "user_algorithm:Speechless", "actor.max_restarts": 0, "env.check": False}
    settings = load("corridor", changes=CENTRAL | SYNC | {"learner.device": "cpu"} | broken)

    with closing(build_parts(settings)) as parts, pytest.raises(LostError) as lost:
        for _ in LOOPS[settings.run.mode](parts):
            pass

    assert re.match(r"the inference server was lost 1 times in a row, .*Error: no", str(lost.value))
    assert "--inference local" in str(lost.value)
    (traceback,) = lost.value.__notes__
    assert 'raise RuntimeError("no words")' in traceback
    assert nothing_new(before)


def begun(run: Started, run_dir: Path, mark: int) -> bool:
    folder = run_dir / "checkpoints"
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return run.poll() is not None or any(name >= f"ckpt-{mark:012d}" for name in names)


def test_a_run_is_interrupted_and_goes_on_and_killed_and_nothing_is_left(
    forker: CommandForker, tmp_path: Path
) -> None:
    settings = SMALL | {"run.env_steps": 100_000, "run.mode": "sync"}
    flags = ["--inference", "central", "--json", "--quiet"]
    run = forker.start(["train", "corridor", "--run-dir", "a", *flags, *words(settings)], tmp_path)
    assert eventually(lambda: begun(run, tmp_path / "a", 1_000), 60.0), run.said
    run.send(SIGINT)
    assert run.wait() == 130, run.said
    assert settled(run.pid)
    first = run.answer["env_steps"]

    run = forker.start(["train", "--resume", "a", *flags[2:]], tmp_path)
    assert eventually(lambda: begun(run, tmp_path / "a", first + 1_000), 60.0), run.said
    assert named(run.pid, "rookery-infer")
    run.send(SIGKILL)
    assert run.wait() == -SIGKILL, run.said
    assert settled(run.pid)
