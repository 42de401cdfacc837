"""Watchdog thread that detects and interrupts a main thread that hangs in an environment.

with watched_calls("my:Env", limit_s=60.0) as calls:   # StalledError after 60 s in one call
    envs = make(config, 8, calls=calls)

It raises `Hung` in the main thread. If that has no effect, because the main thread is inside
compiled code that never returns, it ends the process with the same message.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from rookery.envs.env_calls import EnvCalls
from rookery.errors import StalledError
from rookery.runtime.timeouts import CLOCK, Patience

LOOK_S = 0.25  # between two checks
GRACE_S = 5.0  # for the main thread to leave what it hangs in
SIGNAL = signal.SIGUSR2
REMEDY = "correct the environment, or raise the limit"


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
            with contextlib.suppress(ProcessLookupError):  # the main thread has ended
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


class Heartbeat(Protocol):
    """Interface of the time of the last heartbeat; a `Ring` in shared memory has it too."""

    def beat(self) -> None: ...

    @property
    def silence_s(self) -> float:
        """Seconds since the last call of `beat`."""


class LocalHeartbeat:
    """Time of the last heartbeat of code in this process."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        self._last = time.clock_gettime(CLOCK)

    @property
    def silence_s(self) -> float:
        return time.clock_gettime(CLOCK) - self._last


class HangWatch(Watchdog):
    """Watchdog thread that checks the heartbeat of the environments that run in this process.

    Code of this process that hangs cannot be killed and restarted. `Hung` is raised in it instead,
    if there is no heartbeat for `limit_s` seconds.
    """

    def __init__(self, name: str, limit_s: float, calls: EnvCalls, remedy: str = REMEDY):
        """Starts the watchdog thread.

        `name` is that of the environment and `limit_s` the setting `actor.env_step_timeout_s`.
        `calls` is the record that the environments were made with.
        """
        self.calls = calls  # each of them is a heartbeat
        self._name, self._limit_s, self._remedy = name, limit_s, remedy
        self.heartbeat: Heartbeat | None = None  # of code that runs now; None: nothing is watched
        self._patience = Patience()
        super().__init__(self._message)

    def _message(self) -> str | None:
        """Returns an error message if the code hangs, else None; runs in the watchdog thread."""
        heartbeat = self.heartbeat
        if heartbeat is None:
            self._patience = Patience()
            return None
        if not self._patience.at_end(heartbeat.silence_s, self._limit_s):
            return None
        call = f" in {self.calls.running}" if self.calls.running else ""
        return (
            f"{self._name} has not answered for {self._patience.silent_s:.0f} s{call} "
            f"(actor.env_step_timeout_s is {self._limit_s:g}); {self._remedy}"
        )


@contextlib.contextmanager
def watched_calls(name: str, limit_s: float, calls: EnvCalls | None = None) -> Iterator[EnvCalls]:
    """Context manager around code that makes or calls environments; yields a record for `make`.

    `calls` is the record of environments that were made before. Raises StalledError if one call of
    an environment takes longer than `limit_s` seconds.
    """
    hang_watch, heartbeat = HangWatch(name, limit_s, calls or EnvCalls()), LocalHeartbeat()
    hang_watch.calls.beat, hang_watch.heartbeat = heartbeat.beat, heartbeat
    try:
        yield hang_watch.calls
    except Hung as hung:
        raise StalledError(str(hung)) from None
    finally:
        hang_watch.heartbeat = None
        hang_watch.close()
