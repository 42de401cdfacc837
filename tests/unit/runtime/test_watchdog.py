"""The watchdog: what hangs in the main thread is ended there."""

import contextlib
import signal
import threading
import time

import pytest

from eventually import eventually
from rookery.runtime import watchdog
from rookery.runtime.watchdog import SIGNAL, Hung, Watchdog


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_S", 0.001)


class Sleeper:
    """Hangs until it is woken, and says so to whoever asks."""

    def __init__(self) -> None:
        self.asleep, self.asked = False, 0

    def hung(self) -> str | None:
        self.asked += 1
        return "it hangs" if self.asleep else None

    def sleep(self) -> None:
        self.asleep = True
        time.sleep(60.0)


def test_a_sleep_is_ended_with_the_message_and_the_place() -> None:
    sleeper = Sleeper()
    watching = Watchdog(sleeper.hung)
    try:
        with pytest.raises(Hung, match=rf"it hangs \(it is in {__file__}, line \d+\)"):
            sleeper.sleep()
    finally:
        watching.close()


def test_an_environment_that_catches_every_error_does_not_catch_this_one() -> None:
    sleeper = Sleeper()
    watching = Watchdog(sleeper.hung)
    try:
        with pytest.raises(Hung), contextlib.suppress(Exception):
            sleeper.sleep()
    finally:
        watching.close()


def test_what_has_ended_before_the_signal_arrived_is_left_alone() -> None:
    """Asked by the watchdog's thread it says yes; asked again where it is to be raised, no."""
    asked: list[str] = []

    def hung() -> str | None:
        asked.append(threading.current_thread().name)
        return None if "MainThread" in asked else "it hangs"

    watching = Watchdog(hung)
    assert eventually(lambda: "MainThread" in asked and asked[-1] != "MainThread", 5.0)
    watching.close()


def test_a_main_thread_that_takes_no_signal_any_more_ends_with_its_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def gone(ident: int, number: int) -> None:
        raise ProcessLookupError

    codes: list[int] = []
    monkeypatch.setattr(watchdog, "GRACE_S", 0.01)
    monkeypatch.setattr(watchdog.signal, "pthread_kill", gone)
    monkeypatch.setattr(watchdog.os, "_exit", codes.append)
    watching = Watchdog(lambda: "it hangs")
    try:
        eventually(lambda: codes, within_s=10.0)
    finally:
        watching.close()

    assert codes[0] == 3
    assert "rookery: error: it hangs" in capfd.readouterr().err


def test_it_goes_on_watching_after_a_hang_that_was_survived() -> None:
    sleeper = Sleeper()
    watching = Watchdog(sleeper.hung)
    try:
        for _ in range(2):
            with pytest.raises(Hung):
                sleeper.sleep()
            sleeper.asleep, asked = False, sleeper.asked
            assert eventually(lambda asked=asked: sleeper.asked > asked + 1, 5.0)
    finally:
        watching.close()


def test_closed_it_gives_the_signal_back() -> None:
    before = signal.getsignal(SIGNAL)
    watching = Watchdog(lambda: None)
    assert signal.getsignal(SIGNAL) != before
    watching.close()

    assert signal.getsignal(SIGNAL) == before


def test_a_signal_of_another_sender_is_passed_on() -> None:
    """Schedulers of clusters send this one before they end a job."""
    seen: list[int] = []
    before = signal.signal(SIGNAL, lambda number, frame: seen.append(number))
    watching = Watchdog(lambda: None)
    try:
        signal.raise_signal(SIGNAL)
    finally:
        watching.close()
        signal.signal(SIGNAL, before)

    assert seen == [SIGNAL]


def test_outside_the_main_thread_it_does_nothing() -> None:
    before = signal.getsignal(SIGNAL)
    made: list[Watchdog] = []
    thread = threading.Thread(target=lambda: made.append(Watchdog(lambda: "it hangs")))
    thread.start()
    thread.join()
    made[0].close()

    assert signal.getsignal(SIGNAL) == before
