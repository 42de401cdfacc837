"""Watchdog thread that detects and interrupts a main thread that hangs in an environment.

It raises `Hung` in the main thread. If that has no effect, because the main thread is inside
compiled code that never returns, it ends the process with the same message.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rookery.errors import StalledError

LOOK_S = 0.25  # between two checks
GRACE_S = 5.0  # for the main thread to leave what it hangs in
SIGNAL = signal.SIGUSR2


class Hung(BaseException):
    """Raised in the main thread when it hangs; the message says in which file and line.

    It is not an Exception, since an environment might catch that.
    """


class Watchdog:
    """Thread that checks every 0.25 s whether the main thread hangs, and raises `Hung` in it if so.

    The function `hung` makes the check: it returns None, or a message that says what hangs. Only
    the main thread can be interrupted: created in another thread, a `Watchdog` does nothing.
    """

    def __init__(self, hung: Callable[[], str | None]):
        self._hung, self._over = hung, threading.Event()
        self._main = threading.main_thread()
        self._before: Any = None
        self._thread: threading.Thread | None = None
        if threading.current_thread() is self._main:
            self._before = signal.signal(SIGNAL, self._raise)
            self._thread = threading.Thread(target=self._work, name="watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            signal.signal(SIGNAL, self._before)

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            if self._hung() is None:
                continue
            signal.pthread_kill(self._main.ident or 0, SIGNAL)
            if message := self._after(GRACE_S):
                place = _place(sys._current_frames().get(self._main.ident or 0))
                os.write(2, f"rookery: error: {message}{place}\n".encode())
                os._exit(StalledError.exit_code)

    def _after(self, grace_s: float) -> str | None:
        """Waits at most `grace_s` seconds until the main thread no longer hangs.

        Returns None if it no longer hangs or the watchdog is closed, otherwise the message of
        `hung`.
        """
        deadline = time.monotonic() + grace_s
        while (message := self._hung()) and time.monotonic() < deadline:
            if self._over.wait(LOOK_S):
                return None
        return message

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if message := self._hung():  # it may have come to an end in the meantime
            raise Hung(message + _place(frame))
        if callable(self._before):  # the signal was for another handler
            self._before(number, frame)


def _place(frame: FrameType | None) -> str:
    return "" if frame is None else f" (it is in {frame.f_code.co_filename}, line {frame.f_lineno})"
