"""Ctrl+C and SIGTERM while there is nothing to save: before a run begins and after it has ended."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextmanager
def abrupt() -> Iterator[None]:
    """Ends the process at the first signal, with one line and the right exit code.

    For the seconds in which torch and its like are imported: an exception raised there may be
    swallowed, or come out of a half-initialised extension as something else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, _leave) for number in _WORDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def leave_when_terminated() -> None:
    """Gives SIGTERM its line and its exit code wherever nobody has a better answer to it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def leave_at_once() -> None:
    """Makes the next signal end the process at once, for good."""
    if threading.current_thread() is threading.main_thread():
        for number in _WORDS:
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    word = _WORDS[signal.Signals(number)]
    os.write(2, f"rookery: {word}\n".encode())
    os._exit(128 + number)
