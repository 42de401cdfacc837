"""Signals become requests, in the main thread alone."""

import signal
import threading

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
