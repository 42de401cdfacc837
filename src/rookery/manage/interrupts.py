"""Signals: Ctrl+C and SIGTERM become a request that a run honours between two events."""

import os
import signal
import socket
import threading
from functools import cache
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
TWICE = "interrupted twice: leaving without a last checkpoint"
LATE = "could not stop in time; the last periodic checkpoint is intact"


class Interrupts:
    """While entered, the first signal asks for an end, the second one ends at once.

    Before `begin()` there is nothing to save and a signal simply raises. Outside the main thread
    Python delivers no signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._gentle = False
        self._former: dict[int, Any] = {}
        self._watch: _Watch | None = None

    @property
    def exit_code(self) -> int:
        """128 + the signal that came, or 0."""
        return EXIT_CODES[self.reason] if self.reason else 0

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            _mind_forks()
            self._watch = _Watch()
            self._former = {n: signal.signal(n, self._handle) for n in REASONS if not _nohup(n)}
            _entered.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watch is None:
            return
        _entered.remove(self)
        self._let_go()
        self._watch.close()

    def begin(self) -> None:
        """From now on there is something worth saving."""
        self._gentle = True

    def _let_go(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        reason = REASONS[number]
        if self.reason is not None:
            _leave(EXIT_CODES[reason], TWICE)
        self.reason = reason
        if not self._gentle:
            if reason is Reason.INTERRUPTED:
                raise KeyboardInterrupt
            raise SystemExit(EXIT_CODES[reason])


class _Watch:
    """Ends the process where the main thread does not.

    Python runs a handler when the main thread next runs Python; an environment that hangs in
    compiled code never does. The kernel's side of a signal arrives here all the same.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._former = signal.set_wakeup_fd(-1)
        self.look()
        self._thread = threading.Thread(target=self._work, name="signals", daemon=True)
        self._thread.start()

    def look(self) -> None:
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)

    def look_away(self) -> None:
        signal.set_wakeup_fd(self._former)

    def close(self) -> None:
        self.look_away()
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def _work(self) -> None:
        first = self._next(None)
        if first is None:
            return
        try:
            second = self._next(PATIENCE_S)
        except TimeoutError:
            _leave(EXIT_CODES[REASONS[first]], LATE)
        else:
            if second is not None:
                _leave(EXIT_CODES[REASONS[second]], TWICE)

    def _next(self, timeout_s: float | None) -> int | None:
        """Returns the next signal that asks for an end, None once nobody watches any more."""
        self._ours.settimeout(timeout_s)
        while byte := self._ours.recv(1):
            if byte[0] in REASONS:
                return byte[0]
        return None


def _nohup(number: int) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


_entered: list[Interrupts] = []


@cache
def _mind_forks() -> None:
    """A fork of ours, such as an environment's worker, is not the run: signals may end it."""
    os.register_at_fork(before=_look_away, after_in_parent=_look, after_in_child=_let_go)


def _watches() -> list[_Watch]:
    """Returns whom a fork concerns; only the main thread may touch what they hold."""
    here = threading.current_thread() is threading.main_thread()
    return [one._watch for one in _entered if here and one._watch is not None]


def _look_away() -> None:
    for watch in _watches():
        watch.look_away()


def _look() -> None:
    for watch in _watches():
        watch.look()


def _let_go() -> None:
    for interrupts in _entered:
        interrupts._let_go()


def _leave(code: int, message: str) -> None:
    os.write(2, f"rookery: {message}\n".encode())  # sys.stderr may be in the middle of a line
    os._exit(code)
