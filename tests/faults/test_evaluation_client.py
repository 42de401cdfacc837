"""What the evaluation client does when its process fails, with a fake process."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from inline_runs import begin, finish
from rookery.config.load import load
from rookery.evaluation import evaluation_client
from rookery.evaluation.evaluation_client import EvaluationClient
from rookery.evaluation.evaluation_process import (
    CloseProcess,
    EvaluationBegun,
    EvaluationSetup,
    EvaluationSnapshot,
    SnapshotEvaluated,
    WriteEvent,
)
from rookery.event import Counters, Warned

LIMIT_S = 10.0


class Fake:
    """A child that answers every write, closes when asked, and otherwise does as it is told."""

    def __init__(self, *, deadly: bool = False):
        self.deadly, self.alive, self.pid = deadly, True, 1
        self.sent: list[Any] = []
        self.answers: deque[Any] = deque()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, WriteEvent):
            self.answers.append(message.number)
        if isinstance(message, CloseProcess):
            self.answers.append(message)
        if isinstance(message, EvaluationSnapshot) and self.deadly:
            self.answers.append(EvaluationBegun())
            self.alive = False

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        return self.answers.popleft() if self.answers else None

    def stop(self, grace_s: float) -> int:
        self.alive = False
        return -9


class FakeProcesses:
    """Makes the children, and the time."""

    def __init__(self) -> None:
        self.children: list[Fake] = []
        self.deadly, self.broken, self.now = False, False, 1_000.0

    def spawn(self, target: str, setup: EvaluationSetup, *, name: str) -> Fake:
        if self.broken:
            raise OSError("no process left")
        self.children.append(Fake(deadly=self.deadly))
        return self.children[-1]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake_processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    fake_processes = FakeProcesses()
    monkeypatch.setattr(evaluation_client, "spawn", fake_processes.spawn)
    monkeypatch.setattr(evaluation_client, "time", fake_processes)
    monkeypatch.setattr("rookery.runtime.supervision.time", fake_processes)
    return fake_processes


def make(**settings: Any) -> EvaluationClient:
    changes = {f"eval.{key}": value for key, value in settings.items()}
    config = load("corridor", changes={"eval.timeout_s": LIMIT_S, **changes})
    return EvaluationClient(EvaluationSetup(config, "nowhere", None, None, False))


def snapshot(mark: int) -> EvaluationSnapshot:
    return EvaluationSnapshot(Counters(mark), mark, 0.0, 0.0, {})


def told(
    client: EvaluationClient, fake_processes: FakeProcesses, looks: int = 100
) -> Iterator[Warned]:
    """Looks for news again and again and writes warnings down, as a waiting run does."""
    for _ in range(looks):
        for news in client.poll(0.1):
            assert isinstance(news, Warned)
            client.write(news)
            yield news
        fake_processes.now += 0.1


def test_a_mark_that_always_kills_is_given_up_although_every_write_is_answered(fake_processes):
    fake_processes.deadly = True
    client = make(max_restarts=2)
    client.submit(snapshot(1))
    client.submit(snapshot(2))

    kinds = [warned.kind for warned in told(client, fake_processes)]

    # three deaths for the first mark; while others wait, one try is enough for each
    assert kinds == ["evaluator"] * 3 + ["evaluation"] + ["evaluator"] + ["evaluation"]
    assert not client.pending


def test_after_too_many_lost_snapshots_evaluation_ends_and_reports_continue(fake_processes):
    fake_processes.deadly = True
    client = make(max_restarts=1)
    for mark in (1, 2, 3, 4):
        client.submit(snapshot(mark))

    messages = [
        warned.message for warned in told(client, fake_processes) if warned.kind == "evaluation"
    ]
    client.submit(snapshot(5))
    client.write(Warned(Counters(5), "test", "still here"))

    assert len(messages) == 4
    assert "any more" not in messages[0]
    assert "no further snapshots are evaluated" in messages[-1]
    assert not client.pending
    assert fake_processes.children[-1].alive
    assert any(m.event.message == "still here" for m in fake_processes.children[-1].sent)


def test_an_evaluation_resets_the_count_of_deaths(fake_processes):
    client = make(max_restarts=1)
    for mark in range(1, 6):
        client.submit(snapshot(mark))
        fake_processes.children[-1].alive = False
        warned = list(told(client, fake_processes, looks=2))
        assert [each.kind for each in warned] == ["evaluator"]
        fake_processes.children[-1].answers.append(SnapshotEvaluated((mark,), (1,), None))
        ((given, evaluation),) = list(client.poll())
        assert (given.counters.env_steps, evaluation.returns) == (mark, (mark,))


def test_a_process_that_cannot_be_started_is_given_up_and_not_waited_for(fake_processes):
    fake_processes.broken = True
    client = make(max_restarts=2)
    client.write(Warned(Counters(), "test", "lost"))

    messages = [warned.message for warned in told(client, fake_processes)]
    client.submit(snapshot(1))
    client.write(Warned(Counters(), "test", "lost too"))
    client.close()

    assert len(messages) == 4
    assert "no process left" in messages[0]
    assert "training continues without evaluations and reports" in messages[-1]
    assert not client.pending
    assert client.unwritten == []


def test_restarts_in_a_row_are_further_and_further_apart(fake_processes):
    client = make(max_restarts=10)
    starts = []
    for _ in range(4):
        fake_processes.children[-1].alive = False
        died, count = fake_processes.now, len(fake_processes.children)
        while len(fake_processes.children) == count:
            list(client.poll(0.01))
        starts.append(fake_processes.now - died)

    assert starts == pytest.approx([0.0, 0.5, 1.0, 2.0], abs=0.05)


def test_time_to_import_is_not_counted_as_a_hang_and_time_to_evaluate_is(fake_processes):
    client = make()
    client.submit(snapshot(1))
    fake_processes.now += evaluation_client.START_S

    assert list(client.poll()) == []
    fake_processes.children[-1].answers.append(EvaluationBegun())
    assert list(client.poll()) == []
    fake_processes.now += LIMIT_S + evaluation_client.MARGIN_S + 1.0
    (warned,) = list(client.poll())

    assert isinstance(warned, Warned)
    assert "has not answered for 16 s" in warned.message
    assert [
        m.counters.env_steps
        for m in fake_processes.children[-1].sent
        if isinstance(m, EvaluationSnapshot)
    ] == [1]


def test_a_process_that_dies_at_the_very_end_is_started_again_for_what_is_unwritten(fake_processes):
    client = make()
    fake_processes.children[-1].answers = deque(maxlen=0)  # it answers nothing
    client.write(Warned(Counters(), "test", "precious"))
    fake_processes.children[-1].alive = False

    client.close()

    first, second = fake_processes.children
    assert [type(m) for m in second.sent] == [WriteEvent, CloseProcess]
    assert second.sent[0].again
    assert not first.sent[0].again


def test_a_run_ends_without_a_manage_process(fake_processes, tmp_path):
    fake_processes.broken = True

    with begin(tmp_path, {"eval.max_restarts": 0}) as training_run:
        answer = finish(training_run)

    assert (answer["reason"], answer["best_score"]) == ("env_steps", None)
