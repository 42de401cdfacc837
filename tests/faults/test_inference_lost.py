"""The inference server and those who ask it are killed, stopped and interrupted."""

import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSTOP
from typing import Any

import pytest

import lineage
from eventually import eventually
from inline import begin, finish, inline
from rookery.config.load import load
from rookery.config.schema import Engine
from rookery.engines import ENGINES
from rookery.errors import LostError
from rookery.event import Ask, Event, Turned, Warned
from rookery.loops import LOOPS
from rookery.loops.driver import Driver
from rookery.loops.wiring import wire
from running import SMALL, Nursery, Started, named, nothing_new, settled, shared, words
from threads import start as in_a_thread

__all__ = ["inline"]  # a fixture

pytestmark = pytest.mark.timeout(90)
CENTRAL: dict[str, Any] = {
    "run.mode": "async",
    "actor.num": 2,
    "actor.inference": "central",
    "run.env_steps": 10_000_000,
    "replay.capacity": 100_000,
    "replay.batch": 16,
    "replay.warmup": 100,
    "replay.samples_per_insert": 16.0,
    "checkpoint.period": 10_000_000,
    "eval.period": 10_000_000,
    "report.log_period": 64,
}
SYNC = {"run.mode": "sync", "run.env_steps": 600}


def answered(driver: Driver) -> int:
    return driver.parts.crew._booths.done.questions


class Story:
    """Does one thing after another to a run, each once its time has come, then ends it."""

    def __init__(self, *chapters: Callable[[Driver], bool]):
        self._chapters, self.said = list(chapters), list[str]()

    def look(self, driver: Driver, event: Event) -> None:
        if isinstance(event, Warned):
            self.said.append(event.message)
        if isinstance(event, Turned) and self._chapters and self._chapters[0](driver):
            self._chapters.pop(0)
        if not self._chapters:
            driver._asked.add(Ask.STOP)


def send(number: int, *names: str) -> Callable[[Driver], bool]:
    def chapter(driver: Driver) -> bool:
        for name in names:
            os.kill(driver.parts.crew.pids[name], number)
        return True

    return chapter


def played(*lives: tuple[int, int]) -> Callable[[Driver], bool]:
    """Waits for rows of these (actor, incarnation)."""
    return lambda driver: lineage.counts(driver.parts.pool.ring).keys() >= set(lives)


def restarted(times: int) -> Callable[[Driver], bool]:
    """Waits for the server's next life, and for it to answer more than a chunk."""
    before: list[int] = []

    def chapter(driver: Driver) -> bool:
        if driver.parts.crew._warden.restarts < times:
            return False
        before.append(answered(driver))
        return answered(driver) > before[0] + 20

    return chapter


@pytest.mark.usefixtures("inline")
def test_in_async_server_and_actors_are_killed_and_stopped_and_each_is_replaced(tmp_path):
    """An actor that dies holds up nobody; where the server is away, actors wait."""
    story = Story(
        played((0, 0), (1, 0)),
        send(SIGKILL, "actor-1"),
        send(SIGKILL, "oracle"),
        restarted(1),
        played((1, 1)),
        send(SIGSTOP, "oracle"),
        restarted(2),
    )

    with begin(tmp_path, CENTRAL | {"actor.env_step_timeout_s": 3.0}) as driver:
        answer = finish(driver, story.look)
        lineage.check(driver.parts.pool.ring)
        assert driver.parts.crew.incarnations == [0, 1]

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
        with begin(tmp_path / "whole", CENTRAL | SYNC) as driver:
            whole = finish(driver)
    killed: list[int] = []

    def kill(driver: Driver, event: Event) -> None:
        if isinstance(event, Turned) and event.counters.env_steps >= 300 and not killed:
            killed.append(driver.parts.crew.pids["oracle"])
            os.kill(killed[0], SIGKILL)

    with begin(tmp_path / "torn", CENTRAL | SYNC) as driver:
        torn = finish(driver, kill)
        assert driver.parts.crew._warden.restarts == 1
        assert driver.parts.crew.incarnations == [0, 0]

    assert torn["weights_sha256"] == whole["weights_sha256"]


def test_an_algorithm_that_always_raises_ends_the_run_with_the_servers_traceback():
    before = shared()
    broken = {"algo.name": "own_algorithm:Speechless", "actor.max_restarts": 0, "env.check": False}
    settings = load("corridor", changes=CENTRAL | SYNC | {"learner.device": "cpu"} | broken)

    with closing(wire(settings)) as parts, pytest.raises(LostError) as lost:
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
    nursery: Nursery, tmp_path: Path
) -> None:
    settings = SMALL | {"run.env_steps": 100_000, "run.mode": "sync"}
    flags = ["--inference", "central", "--json", "--quiet"]
    run = nursery.start(["train", "corridor", "--run-dir", "a", *flags, *words(settings)], tmp_path)
    assert eventually(lambda: begun(run, tmp_path / "a", 1_000), 60.0), run.said
    run.send(SIGINT)
    assert run.wait() == 130, run.said
    assert settled(run.pid)
    first = run.answer["env_steps"]

    run = nursery.start(["train", "--resume", "a", *flags[2:]], tmp_path)
    assert eventually(lambda: begun(run, tmp_path / "a", first + 1_000), 60.0), run.said
    assert named(run.pid, "rookery-oracle")
    run.send(SIGKILL)
    assert run.wait() == -SIGKILL, run.said
    assert settled(run.pid)
