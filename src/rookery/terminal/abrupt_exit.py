"""Signal handlers that end the process at once, for times when no run is active to be saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextmanager
def abrupt() -> Iterator[None]:
    """Context in which the first SIGINT or SIGTERM ends the process at once.

    The process prints one line and exits with 128 plus the signal's number. Used while torch and
    other large packages are imported: a KeyboardInterrupt raised there may be swallowed, or turn
    into another error of a half-initialised extension.
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
    """Installs a handler that ends the process at once at SIGTERM, with exit code 143.

    A training run later replaces it by a handler that saves a checkpoint before the end.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def leave_at_once() -> None:
    """Installs a handler that ends the process at once at the next SIGINT or SIGTERM.

    The exit code is 128 plus the signal's number.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _WORDS:
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    word = _WORDS[signal.Signals(number)]
    os.write(2, f"rookery: {word}\n".encode())
    os._exit(128 + number)
