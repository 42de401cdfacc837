"""Supervision of worker processes: detects failures, delays restarts, and limits their number.

    watch = Supervision("actor 3", max_restarts=3, start_s=120.0)
    watch.started()                              # the caller has started the process
    watch.heard_from()                           # the process has sent a message
    if trouble := watch.trouble(alive=True, silence_s=61.0, limit_s=60.0):
        warning = watch.lost(trouble)            # LostError after too many failures in a row
    if watch.due: ...                            # the caller may now start a new process

Used for actors, the inference server, the hosts of a cluster, the evaluation process and gradient
workers (`components/worker_group.py`). A process counts as lost if it died, raised or sent no
heartbeat in time. The caller starts and stops the processes; a `Supervision` only decides.
"""

import time
from typing import Protocol

from rookery.errors import ConfigError, LostError, noted
from rookery.runtime.timeouts import Patience, back_off_s


class Failure(Protocol):
    """Interface of an error that a process reported before it ended."""

    @property
    def summary(self) -> str: ...

    @property
    def traceback(self) -> str: ...

    @property
    def final(self) -> bool:
        """Whether a restarted process would fail in the same way, as with a wrong setting."""


class Restarts:
    """Counts consecutive failures of a process, and sets the pause before each restart.

    There is no pause after the first failure; from the second on it doubles with each failure.
    """

    def __init__(self, max_restarts: int):
        self.max_restarts, self.in_a_row = max_restarts, 0
        self.next_try = 0.0  # when the next process may be started, monotonic

    def count(self) -> float:
        """Counts a failure of the process; returns the seconds to wait before its restart."""
        self.in_a_row += 1
        wait_s = back_off_s(self.in_a_row)
        self.next_try = time.monotonic() + wait_s
        return wait_s

    def recovered(self) -> None:
        """Resets the count of consecutive failures: the process has worked."""
        self.in_a_row = 0

    @property
    def too_many(self) -> bool:
        return self.in_a_row > self.max_restarts

    @property
    def due(self) -> bool:
        """Whether the pause before the next restart is over."""
        return time.monotonic() >= self.next_try


class Supervision:
    """State of one supervised process: its heartbeats, its error, and its failures so far."""

    def __init__(
        self,
        name: str,
        *,
        max_restarts: int,
        start_s: float = 0.0,
        remedy: str = "",
        setting: str = "actor.max_restarts",
    ):
        """Creates the state of a process that may be restarted `max_restarts` times in a row.

        `start_s` seconds are added to the heartbeat timeout of a process that has not answered yet.
        `remedy` (advice to the user) and `setting` (name of the setting of `max_restarts`) are put
        into the message of LostError.
        """
        self.name, self._start_s, self._remedy, self._setting = name, start_s, remedy, setting
        self.restarts = Restarts(max_restarts)
        self.heard = False  # anything, of the present process
        self.proven = False  # some process has answered: the settings work
        self.failure: Failure | None = None  # of the present process
        self._patience = Patience()

    def started(self) -> None:
        """Clears heartbeat and error of the previous process: a new process was just started.

        The count of consecutive failures stays.
        """
        self.heard, self.failure, self._patience = False, None, Patience()

    def expect(self) -> None:
        """Restarts the heartbeat timeout: the process has just received a control message."""
        self._patience = Patience()

    def alive(self) -> None:
        """Records a heartbeat of the process."""
        self.heard, self._patience = True, Patience()

    def heard_from(self) -> None:
        """Records a message from the process other than an error.

        It counts as a heartbeat, and proves that a process with these settings can run.
        """
        self.alive()
        self.proven = True

    def failed(self, failure: Failure) -> None:
        """Records the error that the process raised; it may still be closing its environments."""
        self.failure, self._patience = failure, Patience()

    def recovered(self) -> None:
        """Resets the count of consecutive failures: the process has worked."""
        self.restarts.recovered()

    def trouble(
        self,
        *,
        alive: bool,
        silence_s: float,
        limit_s: float,
        setting: str = "",
        closing_s: float = 0.0,
        busy: bool = True,
    ) -> str | None:
        """Returns the reason why the process counts as failed, or None if it has not failed.

        A process that has raised gets `closing_s` seconds to end. `silence_s` is the time since its
        last heartbeat and `limit_s` the timeout, which applies only if `busy`: while the process
        has work to do. `setting` names the timeout in the reason.
        """
        if self.failure is not None:
            closing = closing_s > 0 and alive and not self._patience.at_end(silence_s, closing_s)
            return None if closing else self.failure.summary
        if not alive:
            return "died"
        allowed_s = limit_s + (0 if self.heard else self._start_s)
        if not busy or not self._patience.at_end(silence_s, allowed_s):
            return None
        limit = f" ({setting} is {limit_s:g})" if setting else ""
        return f"has not moved for {self._patience.silent_s:.0f} s{limit}"

    def lost(self, trouble: str, *, status: int | None = None, details: str = "") -> str:
        """Counts a failure of the process for the reason `trouble`; returns a warning for the log.

        Raises ConfigError if no process has worked yet and this one reported an error that a
        restart cannot cure. Raises LostError after too many failures in a row; in its message
        `details` are appended to the name of the process.
        """
        failure = self.failure
        if failure is not None and failure.final and not self.proven:
            _, _, message = failure.summary.partition(": ")
            raise noted(ConfigError(f"{self.name}: {message}"), failure.traceback)
        if failure is None and status is not None:
            trouble += f" (exit status {status})"
        return self.count(trouble, failure.traceback if failure else "", details=details)

    def count(self, trouble: str, traceback: str = "", *, details: str = "") -> str:
        """Counts a failure of the process for the reason `trouble`; returns a warning for the log.

        Called by `lost`, and directly for a process that could not be started. Raises LostError
        after too many failures in a row.
        """
        wait_s = self.restarts.count()
        if self.restarts.too_many:
            lost = LostError(
                f"{self.name}{details} was lost {self.restarts.in_a_row} times in a row, the last "
                f"time: {trouble}; {self._remedy}, or raise {self._setting} "
                f"({self.restarts.max_restarts})"
            )
            raise noted(lost, traceback)
        pause = f" in {wait_s:g} s" if wait_s else ""
        return f"{self.name} was lost ({trouble}) and is replaced{pause}"

    @property
    def due(self) -> bool:
        """Whether the pause before the next restart is over."""
        return self.restarts.due
