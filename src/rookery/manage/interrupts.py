"""Signals: Ctrl+C and SIGTERM become a request that a run honours between two events."""

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from rookery.event import Reason

REASONS: dict[int, Reason] = {
    signal.SIGINT: Reason.INTERRUPTED,
    signal.SIGTERM: Reason.TERMINATED,
    signal.SIGHUP: Reason.TERMINATED,
}
EXIT_CODES: dict[Reason, int] = {Reason.INTERRUPTED: 130, Reason.TERMINATED: 143}
PATIENCE_S = 9.0  # from the first signal to the end, whatever hangs


class Interrupts:
    """While entered, the first signal asks for an end, the second one ends at once.

    Before `begin()` there is nothing to save and a signal simply raises. Outside the main thread
    Python delivers no signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._gentle = False
        self._former: dict[int, Any] = {}
        self._late: threading.Timer | None = None  # ends the process if we do not

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._handle) for number in REASONS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if self._late is not None:
            self._late.cancel()

    def begin(self) -> None:
        """From now on there is something worth saving."""
        self._gentle = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        reason = REASONS[number]
        if self.reason is not None:
            _leave(EXIT_CODES[reason], "interrupted twice: leaving without a last checkpoint")
        self.reason = reason
        self._late = _arm(EXIT_CODES[reason])
        if not self._gentle:
            if reason is Reason.INTERRUPTED:
                raise KeyboardInterrupt
            raise SystemExit(EXIT_CODES[reason])


def _arm(code: int) -> threading.Timer:
    """A hung environment or disk must not keep the user waiting."""
    late = threading.Timer(
        PATIENCE_S, _leave, (code, "could not stop in time; the last periodic checkpoint is intact")
    )
    late.daemon = True
    late.start()
    return late


def _leave(code: int, message: str) -> None:
    sys.stderr.write(f"rookery: {message}\n")
    sys.stderr.flush()
    os._exit(code)
