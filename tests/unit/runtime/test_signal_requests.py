"""Signals become requests, in the main thread alone."""

import signal
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
