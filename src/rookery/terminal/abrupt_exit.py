"""Signal handlers that end the process at once, for times when no run is active to be saved."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rookery.errors import Terminated

_ENDING = (signal.SIGINT, signal.SIGTERM)
_TERMINATED = 128 + signal.SIGTERM


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
    before = {number: signal.signal(number, _leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def start_command() -> None:
    """Makes this process end promptly at SIGINT and SIGTERM; called when a command starts.

    SIGTERM ends it at once, with exit code 143; a training run later replaces this handler by one
    that saves a checkpoint before the end. An exception that a signal handler raised may be ignored
    by Python, in callbacks from compiled code and in destructors; then the process ends there.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)
        sys.unraisablehook = _leave_if_interrupted


def is_command() -> bool:
    """Returns whether this process is the command `rookery`, and not a program that imports it."""
    return sys.unraisablehook is _leave_if_interrupted


def leave(number: int) -> NoReturn:
    """Ends the process at once, with one line: exit code 130 for SIGINT, 143 for any other."""
    word, code = ("interrupted", 130) if number == signal.SIGINT else ("terminated", _TERMINATED)
    os.write(2, f"rookery: {word}\n".encode())
    os._exit(code)


def leave_at_once() -> None:
    """Installs a handler that ends the process at once at the next SIGINT or SIGTERM.

    The exit code is 128 plus the signal's number.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    leave(number)


def _leave_if_interrupted(ignored: "sys.UnraisableHookArgs") -> None:
    """Ends the process if Python is about to ignore what a signal handler raised."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        leave(signal.SIGINT)
    if issubclass(ignored.exc_type, Terminated):
        leave(signal.SIGTERM)
    sys.__unraisablehook__(ignored)
