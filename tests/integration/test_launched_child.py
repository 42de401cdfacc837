"""The process that a run on another host is in: its signals while it starts, and its output."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import launched_runs
from eventually import eventually
from rookery.cluster.remote_run import PollRun, RemoteRun, RemoteRunSetup, RunEnded
from rookery.config.schema import Config
from rookery.evaluation.backend import RunRequest

END_S = 30.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture
def launched() -> Iterator[Callable[[str], RemoteRun]]:
    """Starts runs with a function of `launched_runs`, and ends them."""
    made: list[RemoteRun] = []

    def start(name: str) -> RemoteRun:
        options = RunRequest()
        made.append(RemoteRun(RemoteRunSetup(Config(), options, f"launched_runs:{name}")))
        return made[-1]

    yield start
    for run in made:
        run.close()


def followed(run: RemoteRun, first: int = 0) -> tuple[str, Any]:
    """Asks for output until the run has ended; returns all of it, and the result."""
    answers = [run.do(PollRun(first))]

    def ended() -> bool:
        answers.append(run.do(PollRun()))
        return answers[-1].ended is not None

    assert eventually(ended, END_S)
    return "".join(answer.text for answer in answers), answers[-1].ended


@pytest.mark.parametrize("number", CODES)
def test_a_signal_before_the_process_can_take_one_ends_the_run_once_it_can(launched, number):
    _, ended = followed(launched("waiting"), number)

    assert ended.exit_code == CODES[number]


@pytest.mark.parametrize("number", CODES)
def test_a_signal_while_the_run_is_loaded_ends_it(launched, number):
    said, ended = followed(launched(number.name))

    assert ended.exit_code == CODES[number]
    assert "Traceback" not in said


def test_all_output_is_returned_however_much_comes_at_the_end(launched):
    said, ended = followed(launched("talkative"))

    assert said.count("x") == launched_runs.LETTERS
    assert ended == RunEnded({"env_steps": 7}, 0)
