"""Signals become requests, in the main thread alone."""

import contextlib
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from misbehaving_envs import Wander
from rookery.config.schema import EnvConfig
from rookery.envs.make import make
from rookery.runtime.signals import REASONS, Interrupts


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in REASONS]


def test_outside_the_main_thread_interrupts_leave_signals_alone():
    before, seen = _handlers(), []

    def work() -> None:
        with Interrupts() as interrupts:
            interrupts.begin()
            seen.append((_handlers(), interrupts.wakeup_fd, interrupts.exit_code))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10.0)

    assert seen == [(before, -1, 0)]


def test_in_the_main_thread_they_take_the_signals_and_give_them_back():
    before = _handlers()
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGINT) == interrupts.handle

    assert _handlers() == before


def test_the_first_signal_calls_a_function_in_another_thread():
    called, threads = threading.Event(), set[str]()

    def call() -> None:
        threads.add(threading.current_thread().name)
        called.set()

    with Interrupts() as interrupts:
        interrupts.on_signal = call
        interrupts.begin()
        signal.raise_signal(signal.SIGTERM)
        assert called.wait(10.0)

    assert threads == {"signals"}


RAISED = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


def begin_after(number: int, raised: type[BaseException]) -> None:
    with Interrupts() as interrupts:
        with contextlib.suppress(raised):
            signal.raise_signal(number)
        interrupts.begin()


def fail_after(number: int, raised: type[BaseException]) -> None:
    with Interrupts():
        with contextlib.suppress(raised):
            signal.raise_signal(number)
        raise RuntimeError("no compiled object yet")


@pytest.mark.parametrize(("number", "raised"), RAISED)
def test_a_signal_whose_exception_was_caught_ends_the_start_at_begin(number, raised):
    with pytest.raises(raised):
        begin_after(number, raised)


@pytest.mark.parametrize(("number", "raised"), RAISED)
def test_an_error_that_a_signal_has_caused_is_replaced_by_the_signals_exception(number, raised):
    with pytest.raises(raised):
        fail_after(number, raised)


def test_an_error_without_a_signal_stays_as_it_is():
    with pytest.raises(RuntimeError), Interrupts():
        raise RuntimeError("of the environment")


COMMAND = """
import contextlib, ctypes, signal, threading
from rookery.runtime.signals import Interrupts
from rookery.terminal import abrupt_exit

abrupt_exit.start_command()
with Interrupts():
    {body}
"""
IGNORED = {
    "callback": "ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal({number}))()",
    "destructor": "type('Gone', (), {{'__del__': lambda self: signal.raise_signal({number})}})()",
}


def ended(body: str) -> subprocess.CompletedProcess[str]:
    script = COMMAND.format(body=body)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("where", IGNORED)
@pytest.mark.parametrize(
    ("number", "code", "said"), [(2, 130, "interrupted"), (15, 143, "terminated")]
)
def test_a_signal_where_python_ignores_exceptions_ends_a_command_without_a_traceback(
    where, number, code, said
):
    done = ended(IGNORED[where].format(number=number) + "; threading.Event().wait(50)")

    assert (done.returncode, done.stderr) == (code, f"rookery: {said}\n")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(2, 130, "interrupted"), (15, 143, "terminated"), (1, 143, "terminated")],
)
def test_a_command_that_is_still_starting_ends_although_the_exception_was_caught(
    number, code, said
):
    """After START_PATIENCE_S: one that ended after PATIENCE_S could not stop in time."""
    body = f"""with contextlib.suppress(BaseException):
        signal.raise_signal({number})
    threading.Event().wait(50)"""

    done = ended(body)

    assert (done.returncode, done.stderr) == (code, f"rookery: {said}\n")


class Signalled(Wander):
    """Gets a signal while it is reset."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        signal.raise_signal(self.number)
        return super().reset(**given)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_that_comes_while_an_environment_is_called_is_no_error_of_the_environment(
    number, kind
):
    envs = make(EnvConfig(), 1, factory=lambda: Signalled(number))

    with pytest.raises(kind) as left, Interrupts():
        envs.reset(0)

    assert getattr(left.value, "code", 143) == 143
