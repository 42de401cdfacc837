"""A thread that notices when the main thread hangs in somebody else's code, and ends that.

It raises `StalledError` there. Where that does not help, because the main thread is inside compiled
code that never returns, the process ends with the same message and exit code.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rookery.errors import StalledError

LOOK_S = 0.25  # between two looks
GRACE_S = 5.0  # for the error to get through to whoever handles it
SIGNAL = signal.SIGUSR2


class Watchdog:
    """While open, asks `hung` now and then: None, or what to say about it.

    Signals reach only the main thread, so from any other this does nothing.
    """

    def __init__(self, hung: Callable[[], str | None]):
        self._hung, self._message = hung, ""
        self._over = threading.Event()
        self._main = threading.main_thread()
        self._before: Any = None
        self._thread = threading.Thread(target=self._work, name="watchdog", daemon=True)
        if threading.current_thread() is self._main:
            self._before = signal.signal(SIGNAL, self._raise)
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            signal.signal(SIGNAL, self._before)

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            if message := self._hung():
                self._message = message
                signal.pthread_kill(self._main.ident or 0, SIGNAL)
                if self._over.wait(GRACE_S) or not self._hung():
                    return
                os.write(2, f"rookery: {message}\n".encode())
                os._exit(StalledError.exit_code)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        raise StalledError(self._message)
