"""A run on another host, seen from both sides, without a cluster and without that run."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from rookery.cluster import remote_run as module
from rookery.cluster.remote_run import (
    PollRun,
    RemoteRun,
    RemoteRunSetup,
    RunEnded,
    RunOutput,
)
from rookery.config.schema import ClusterConfig, Config, Engine, Mode, RunConfig
from rookery.engines.ray import RayNode
from rookery.errors import ConfigError, LostError
from rookery.evaluation.backend import RunRequest
from rookery.runtime.signals import Interrupts
from rookery.training.launch import launch

OPTIONS = RunRequest()


class FakeHandle:
    """Handle of a worker that gives scripted answers; None is no answer yet."""

    def __init__(self, *answers: RunOutput | None):
        self.answers, self.sent = list(answers), list[PollRun]()
        self.alive, self.address, self.failure, self.silence_s = True, "10.0.0.1", None, 0.0

    def send(self, order: PollRun) -> None:
        self.sent.append(order)

    def receive(self, timeout_s: float) -> RunOutput | None:
        answer = self.answers.pop(0)
        if callable(answer):
            answer()
            return None
        return answer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


class TestFollowing:
    def test_ctrl_c_before_the_run_has_started_there_is_an_interrupt(self, quick, monkeypatch):
        """And the cluster is left, which ends what was being started."""
        host, closed = FakeHandle(interrupt), list[bool]()
        cluster = SimpleNamespace(
            nodes=lambda: [RayNode("id", "name", "10.0.0.1", {"CPU": 1.0})],
            start=lambda *_, **__: host,
            close=lambda: closed.append(True),
        )
        monkeypatch.setattr(module.Cluster, "open", lambda *_, **__: cluster)

        with pytest.raises(KeyboardInterrupt):
            module.send_away(Config(), OPTIONS, "")
        assert closed == [True]

    def test_ctrl_c_later_is_passed_on_once_and_the_result_awaited(self, quick):
        silence, ended = RunOutput("", None), RunEnded({"reason": "interrupted"}, 130)
        host: Any = FakeHandle(silence, interrupt, silence, silence, RunOutput("", ended))

        with Interrupts() as interrupts:
            assert module._follow(host, interrupts, ClusterConfig()) == ended
        assert [order.signal for order in host.sent] == [0, 0, signal.SIGINT, 0]


class TestResult:
    @pytest.mark.parametrize(
        ("ended", "error", "code"),
        [
            (RunEnded({}, 130, "interrupted"), KeyboardInterrupt, None),
            (RunEnded({}, 143), SystemExit, 143),
            (RunEnded({}, 2, "no such setting"), ConfigError, None),
            (RunEnded({}, 3, "the run's process died"), LostError, None),
        ],
    )
    def test_a_run_that_ended_before_it_began_ends_here_in_the_same_way(
        self, monkeypatch, ended, error, code
    ):
        monkeypatch.setattr(module, "send_away", lambda *_: ended)
        config = Config(
            run=RunConfig(mode=Mode.ASYNC, engine=Engine.RAY),
            cluster=ClusterConfig(address="a:1", learner_resources={"GPU": 1}),
        )

        with pytest.raises(error) as raised:
            launch(config)
        assert getattr(raised.value, "code", None) == code


class TestOutput:
    @pytest.fixture
    def child(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """A child that has ended; its output is written to `output`."""
        made = SimpleNamespace(alive=False, pid=0, said=[], output=-1)
        made.receive = lambda timeout_s: made.said.pop(0) if made.said else None
        made.stop = lambda grace_s: None

        def spawn(target: str, given: Any, **_: Any) -> SimpleNamespace:
            made.output = os.dup(given[0])
            return made

        monkeypatch.setattr(module, "spawn", spawn)
        return made

    def test_a_letter_of_several_bytes_is_not_cut_between_two_answers(self, child, monkeypatch):
        monkeypatch.setattr(module, "TEXT_BYTES", 5)
        run = RemoteRun(RemoteRunSetup(Config(), OPTIONS, ""))
        os.write(child.output, "réussi: 100 €€€".encode())
        child.said.append(RunEnded({}, 0))
        answers = [run.do(PollRun())]
        while answers[-1].ended is None:
            answers.append(run.do(PollRun()))
        run.close()
        os.close(child.output)

        assert "".join(answer.text for answer in answers) == "réussi: 100 €€€"
