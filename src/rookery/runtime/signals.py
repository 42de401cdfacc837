"""Signal handling: Ctrl+C and SIGTERM stop a run between two events of its training loop."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from rookery.errors import Terminated
from rookery.event import Reason
from rookery.terminal import abrupt_exit

REASONS: dict[int, Reason] = {
    signal.SIGINT: Reason.INTERRUPTED,
    signal.SIGTERM: Reason.TERMINATED,
    signal.SIGHUP: Reason.TERMINATED,
}
EXIT_CODES: dict[Reason, int] = {Reason.INTERRUPTED: 130, Reason.TERMINATED: 143}
PATIENCE_S = 9.0  # from the first signal to the end of the process
START_PATIENCE_S = 2.0  # the same for a command that is still starting: it has nothing to save
TWICE = "interrupted twice: leaving without a last checkpoint"
LATE = "could not stop in time"


class Interrupts:
    """Context manager for Ctrl+C and SIGTERM: the first signal stops the run, the second kills it.

    Until `begin()` is called there is nothing to save, and a signal raises KeyboardInterrupt, or
    `Terminated`, which leaves the context as SystemExit. Other code may catch that exception or
    replace it by another one; `begin()`, or the end of the context, then raises it again. Outside
    the main thread it does nothing, since Python delivers no signals there. If contexts are nested,
    the one entered last handles the signals.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.kept = ""  # what a run can be resumed from, for the message if it has to be ended
        self.on_signal: Callable[[], None] = _nothing  # called by a thread at the first signal
        self._gentle = False
        self._watch: _Watch | None = None

    @property
    def exit_code(self) -> int:
        """Exit code: 130 after Ctrl+C, 143 after SIGTERM or SIGHUP, 0 without a signal."""
        return EXIT_CODES[self.reason] if self.reason else 0

    def leave(self) -> None:
        """Raises what the signal asked for, if there was one, once everything is saved."""
        self._raise(SystemExit(self.exit_code))

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            _mind_forks()
            self._watch = _Watch(self)
            _stage.enter(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._watch is not None:
            _stage.leave(self)
            self._watch.close()
        caught = self.starting and not isinstance(error, KeyboardInterrupt | SystemExit)
        if caught or isinstance(error, Terminated):
            self._raise(SystemExit(self.exit_code))

    def begin(self) -> None:
        """From now on the first signal only sets `reason`, so that the run can save and stop.

        The first call raises the exception of a signal that came before it.
        """
        starting, self._gentle = self.starting, True
        if starting:
            self._raise(Terminated())

    @property
    def starting(self) -> bool:
        """Whether `begin()` has not been called: there is nothing to save yet."""
        return not self._gentle

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal sets `reason`, the second ends the process at once.

        Before `begin()` the first signal also raises KeyboardInterrupt or `Terminated`.
        """
        reason = REASONS[number]
        if self.reason is not None:
            _leave(EXIT_CODES[reason], TWICE)
        self.reason = reason
        if self.starting:
            self._raise(Terminated())

    def _raise(self, terminated: BaseException) -> None:
        """Raises KeyboardInterrupt or `terminated` for the signal that came, if one did."""
        if self.reason is not None:
            interrupted = self.reason is Reason.INTERRUPTED
            raise KeyboardInterrupt() if interrupted else terminated from None

    @property
    def wakeup_fd(self) -> int:
        return self._watch.fd if self._watch is not None else -1


class _Stage:
    """Stack of the `Interrupts` contexts entered in this process; the innermost handles signals."""

    def __init__(self) -> None:
        self._entered: list[Interrupts] = []
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def enter(self, interrupts: Interrupts) -> None:
        if not self._entered:
            self._before = {n: signal.getsignal(n) for n in REASONS if not _nohup(n)}
            self._wakeup_before = signal.set_wakeup_fd(-1)
        self._entered.append(interrupts)
        self.look()
        for number in self._before:
            signal.signal(number, interrupts.handle)

    def leave(self, interrupts: Interrupts) -> None:
        self._entered.remove(interrupts)
        top = self._entered[-1] if self._entered else None
        for number, handler in self._before.items():
            signal.signal(number, top.handle if top else handler)
        self.look()

    def look(self) -> None:
        """Sets Python's signal wake-up descriptor to that of the innermost `Interrupts` context.

        Outside all contexts, restores the descriptor that was set before the first one.
        """
        fd = self._entered[-1].wakeup_fd if self._entered else self._wakeup_before
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)

    def before_fork(self) -> None:
        if self.concerned:
            signal.set_wakeup_fd(-1)

    def after_fork(self) -> None:
        if self.concerned:
            self.look()

    def in_fork(self) -> None:
        """Restores the original signal handlers; called in forked child processes."""
        for number, handler in self._before.items() if self._entered else ():
            signal.signal(number, handler)
        self._entered.clear()

    @property
    def concerned(self) -> bool:
        """True in the main thread while it is inside a `with Interrupts()` block."""
        here = threading.current_thread() is threading.main_thread()
        return bool(self._entered) and here


_stage = _Stage()


class _Watch:
    """Thread that ends the process 9 s after a signal unless closed, or at once at a second signal.

    A command that has not called `begin()` is ended after 2 s. Python runs signal handlers only
    when the main thread executes Python code. An environment that hangs in compiled code prevents
    that. This thread reads the signal wake-up descriptor instead.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._thread = threading.Thread(target=self._work, name="signals", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        return self._theirs.fileno()

    def close(self) -> None:
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def _work(self) -> None:
        first = self._next(None)
        if first is None:
            return
        self._interrupts.on_signal()
        try:
            second = self._second(first)
        except TimeoutError:
            kept = self._interrupts.kept
            _leave(EXIT_CODES[REASONS[first]], f"{LATE}; {kept}" if kept else LATE)
        else:
            if second is not None:
                _leave(EXIT_CODES[REASONS[second]], TWICE)

    def _second(self, first: int) -> int | None:
        """Waits for a second signal as `_next` does, and ends a command that is still starting."""
        if not abrupt_exit.is_command():
            return self._next(PATIENCE_S)
        try:
            return self._next(START_PATIENCE_S)
        except TimeoutError:
            if self._interrupts.starting:
                abrupt_exit.leave(first)
        return self._next(PATIENCE_S - START_PATIENCE_S)

    def _next(self, timeout_s: float | None) -> int | None:
        """Waits for the next Ctrl+C, SIGTERM or SIGHUP and returns its number.

        Returns None after `close()`; raises TimeoutError after `timeout_s`.
        """
        self._ours.settimeout(timeout_s)
        while byte := self._ours.recv(1):
            if byte[0] in REASONS:
                return byte[0]
        return None


@cache
def _mind_forks() -> None:
    """Registers fork hooks, which restore the original signal handlers in forked child processes.

    Such children are, for example, the worker processes of an environment.
    """
    os.register_at_fork(
        before=_stage.before_fork, after_in_parent=_stage.after_fork, after_in_child=_stage.in_fork
    )


def _nothing() -> None: ...


def _nohup(number: int) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _leave(code: int, message: str) -> None:
    os.write(2, f"rookery: {message}\n".encode())  # sys.stderr may be in the middle of a line
    os._exit(code)
