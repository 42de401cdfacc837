"""What is decided about a manage process that fails, tried on one that only pretends to be one."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from inline import begin, finish
from rookery.config.load import load
from rookery.event import Counters, Warned
from rookery.loops import manager
from rookery.loops.desk import Begun, Close, Judgement, Setup, Snapshot, Write
from rookery.loops.manager import Manager

LIMIT_S = 10.0


class Fake:
    """A child that answers every write, closes when asked, and otherwise does as it is told."""

    def __init__(self, *, deadly: bool = False):
        self.deadly, self.alive, self.pid = deadly, True, 1
        self.sent: list[Any] = []
        self.answers: deque[Any] = deque()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, Write):
            self.answers.append(message.number)
        if isinstance(message, Close):
            self.answers.append(message)
        if isinstance(message, Snapshot) and self.deadly:
            self.answers.append(Begun(message.counters.env_steps))
            self.alive = False

    def receive(self, timeout_s: float = 0.0) -> Any | None:
        return self.answers.popleft() if self.answers else None

    def stop(self, grace_s: float) -> int:
        self.alive = False
        return -9


class Nurse:
    """Makes the children, and the time."""

    def __init__(self) -> None:
        self.children: list[Fake] = []
        self.deadly, self.broken, self.now = False, False, 1_000.0

    def spawn(self, target: str, setup: Setup, *, name: str) -> Fake:
        if self.broken:
            raise OSError("no process left")
        self.children.append(Fake(deadly=self.deadly))
        return self.children[-1]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def nurse(monkeypatch: pytest.MonkeyPatch) -> Nurse:
    nurse = Nurse()
    monkeypatch.setattr(manager, "spawn", nurse.spawn)
    monkeypatch.setattr(manager, "time", nurse)
    return nurse


def make(**settings: Any) -> Manager:
    changes = {f"eval.{key}": value for key, value in settings.items()}
    config = load("corridor", changes={"eval.timeout_s": LIMIT_S, **changes})
    return Manager(Setup(config, "nowhere", None, None, False, first_try=True))


def snapshot(mark: int) -> Snapshot:
    return Snapshot(Counters(mark), mark, 0.0, 0.0, {})


def told(managing: Manager, nurse: Nurse, looks: int = 100) -> Iterator[Warned]:
    """Looks for news again and again and writes warnings down, as a waiting run does."""
    for _ in range(looks):
        for news in managing.news(0.1):
            assert isinstance(news, Warned)
            managing.write(news)
            yield news
        nurse.now += 0.1


def test_a_mark_that_always_kills_is_given_up_although_every_write_is_answered(nurse):
    nurse.deadly = True
    managing = make(max_restarts=2)
    managing.submit(snapshot(1))
    managing.submit(snapshot(2))

    kinds = [warned.kind for warned in told(managing, nurse)]

    # three deaths for the first mark; while others wait, one try is enough for each
    assert kinds == ["evaluator"] * 3 + ["evaluation"] + ["evaluator"] + ["evaluation"]
    assert not managing.pending


def test_after_too_many_lost_marks_nothing_is_judged_but_reports_go_on(nurse):
    nurse.deadly = True
    managing = make(max_restarts=1)
    for mark in (1, 2, 3, 4):
        managing.submit(snapshot(mark))

    messages = [warned.message for warned in told(managing, nurse) if warned.kind == "evaluation"]
    managing.submit(snapshot(5))
    managing.write(Warned(Counters(5), "test", "still here"))

    assert len(messages) == 4
    assert "any more" not in messages[0]
    assert "nothing will be judged any more" in messages[-1]
    assert not managing.pending
    assert nurse.children[-1].alive
    assert any(m.event.message == "still here" for m in nurse.children[-1].sent)


def test_a_judgement_makes_up_for_the_deaths_before_it(nurse):
    managing = make(max_restarts=1)
    for mark in range(1, 6):
        managing.submit(snapshot(mark))
        nurse.children[-1].alive = False
        warned = list(told(managing, nurse, looks=2))
        assert [each.kind for each in warned] == ["evaluator"]
        nurse.children[-1].answers.append(Judgement(mark, (1.0,), (1,), None))
        ((given, judgement),) = list(managing.news())
        assert given.counters.env_steps == judgement.env_steps == mark


def test_what_cannot_be_started_is_given_up_and_nobody_waits_for_it(nurse):
    nurse.broken = True
    managing = make(max_restarts=2)
    managing.write(Warned(Counters(), "test", "lost"))

    messages = [warned.message for warned in told(managing, nurse)]
    managing.submit(snapshot(1))
    managing.write(Warned(Counters(), "test", "lost too"))
    managing.close()

    assert len(messages) == 4
    assert "no process left" in messages[0]
    assert "training goes on without evaluation and reports" in messages[-1]
    assert not managing.pending
    assert managing.unwritten == []


def test_restarts_in_a_row_are_further_and_further_apart(nurse):
    managing = make(max_restarts=10)
    starts = []
    for _ in range(4):
        nurse.children[-1].alive = False
        died, count = nurse.now, len(nurse.children)
        while len(nurse.children) == count:
            list(managing.news(0.01))
        starts.append(nurse.now - died)

    assert starts == pytest.approx([0.0, 0.5, 1.0, 2.0], abs=0.05)


def test_time_to_import_is_not_counted_as_a_hang_and_time_to_judge_is(nurse):
    managing = make()
    managing.submit(snapshot(1))
    nurse.now += manager.START_S

    assert list(managing.news()) == []
    nurse.children[-1].answers.append(Begun(1))
    assert list(managing.news()) == []
    nurse.now += LIMIT_S + manager.MARGIN_S + 1.0
    (warned,) = list(managing.news())

    assert isinstance(warned, Warned)
    assert "has not answered for 16 s" in warned.message
    assert [m.counters.env_steps for m in nurse.children[-1].sent if isinstance(m, Snapshot)] == [1]


def test_a_process_that_dies_at_the_very_end_is_started_again_for_what_is_unwritten(nurse):
    managing = make()
    nurse.children[-1].answers = deque(maxlen=0)  # it answers nothing
    managing.write(Warned(Counters(), "test", "precious"))
    nurse.children[-1].alive = False

    managing.close()

    first, second = nurse.children
    assert [type(m) for m in second.sent] == [Write, Close]
    assert second.sent[0].again
    assert not first.sent[0].again


def test_a_run_ends_without_a_manage_process(nurse, tmp_path):
    nurse.broken = True

    with begin(tmp_path, {"eval.max_restarts": 0}) as driver:
        answer = finish(driver)

    assert (answer["reason"], answer["best_score"]) == ("env_steps", None)
