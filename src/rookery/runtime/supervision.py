"""Supervision of worker processes: detects failures, delays restarts, and limits their number.

    watch = Supervision("actor 3", max_restarts=3, start_s=120.0)
    watch.started()                              # the caller has started the process
    watch.heard_from()                           # the process has sent a message
    if trouble := watch.trouble(alive=True, silence_s=61.0, limit_s=60.0):
        warning = watch.lost(trouble)            # LostError after too many failures in a row
    if watch.due: ...                            # the caller may now start a new process

Used for actors, the inference server, the hosts of a cluster, the evaluation process and gradient
workers (`components/async_loop.py`). A process counts as lost if it died, raised or sent no
heartbeat in time. The caller starts and stops the processes; a `Supervision` only decides.
"""

import re
import time
from collections import Counter, deque
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import NamedTuple

from rookery.errors import ConfigError, EnvError, LostError, RoleFailed, noted
from rookery.runtime.timeouts import Patience

HOUR_S = 3600.0
BACK_OFF_S = 0.5  # before the second restart in a row; doubles with each one
SAME_ERRORS = 3  # of an environment, in one run: another process would not cure it
NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


class LossKind(StrEnum):
    """Kinds of reasons for which a process was lost, as the answer of a run counts them."""

    ENV_ERROR = "env_error"  # its environment raised, or returned a wrong value
    ERROR = "error"  # other code in it raised
    HANG = "hang"  # it sent no heartbeat in time
    CRASH = "crash"  # it ended without a message, or could not be started


class ActorLoss(NamedTuple):
    """Report that an actor's process was lost: the kind of the reason, and its error if any."""

    kind: LossKind
    summary: str = ""
    traceback: str = ""


class LossTally:
    """Counts the lost actors of a run by kind; the same environment error three times ends it.

    Two errors are the same if their messages differ in numbers only, such as the number of the
    step.
    """

    def __init__(self) -> None:
        self.counts: Counter[LossKind] = Counter()
        self._env_errors: Counter[str] = Counter()

    def add(self, loss: ActorLoss) -> None:
        """Counts a lost actor; raises EnvError if its environment's error came too often."""
        self.counts[loss.kind] += 1
        if loss.kind is not LossKind.ENV_ERROR:
            return
        text = NUMBER.sub("#", loss.summary)
        self._env_errors[text] += 1
        if self._env_errors[text] >= SAME_ERRORS:
            _, _, message = loss.summary.partition(": ")
            error = EnvError(
                f"{message}; {SAME_ERRORS} actors of this run were lost with this error, apart "
                "from numbers in it; correct the environment, then resume the run"
            )
            raise noted(error, loss.traceback)


@dataclass
class Supervision:
    """State of one supervised process: its heartbeats, its error, and its failures so far.

    There is no pause before the restart after the first failure in a row; from the second on it
    doubles with each failure.
    """

    name: str
    _: KW_ONLY
    max_restarts: int  # in a row
    start_s: float = 0.0  # added to the heartbeat timeout of a process that has not answered yet
    remedy: str = ""  # advice to the user, for the message of LostError
    per_hour: int | None = None  # restarts within one hour, whatever the process did in between
    in_a_row: int = 0  # failures
    next_try: float = 0.0  # when the next process may be started, monotonic
    loss: LossKind = LossKind.CRASH  # kind of the reason that `trouble` returned last
    heard: bool = False  # anything, of the present process
    proven: bool = False  # some process has answered: the settings work
    failure: RoleFailed | None = None  # of the present process
    _noticed: bool = False  # whether the present process was called slow

    def __post_init__(self) -> None:
        self._patience = Patience()
        most = None if self.per_hour is None else self.per_hour + 1
        self._lost_at = deque[float](maxlen=most)  # when the last failures were counted

    def started(self) -> None:
        """Clears heartbeat and error of the previous process: a new process was just started.

        The count of consecutive failures stays.
        """
        self.heard, self.failure, self._patience = False, None, Patience()
        self._noticed = False

    def expect(self) -> None:
        """Restarts the heartbeat timeout: the process has just received a control message."""
        self._patience = Patience()

    def heard_from(self) -> None:
        """Records a message from the process other than an error.

        It counts as a heartbeat, and proves that a process with these settings can run.
        """
        self.heard, self.proven, self._patience = True, True, Patience()

    def failed(self, failure: RoleFailed) -> None:
        """Records the error that the process raised; it may still be closing its environments."""
        self.failure, self._patience = failure, Patience()

    def trouble(
        self,
        *,
        alive: bool,
        silence_s: float,
        limit_s: float,
        closing_s: float = 0.0,
        busy: bool = True,
    ) -> str | None:
        """Returns the reason why the process counts as failed, or None if it has not failed.

        A process that has raised gets `closing_s` seconds to end. `silence_s` is the time since its
        last heartbeat and `limit_s` the timeout, `actor.env_step_timeout_s`, which applies only if
        `busy`: while the process has work to do.
        """
        if self.failure is not None:
            self.loss = LossKind.ENV_ERROR if self.failure.environment else LossKind.ERROR
            closing = closing_s > 0 and alive and not self._patience.at_end(silence_s, closing_s)
            return None if closing else self.failure.summary
        if not alive:
            self.loss = LossKind.CRASH
            return "died"
        allowed_s = limit_s + (0 if self.heard else self.start_s)
        if not busy or not self._patience.at_end(silence_s, allowed_s):
            return None
        self.loss = LossKind.HANG
        silent_s = self._patience.silent_s
        return f"has not moved for {silent_s:.0f} s (actor.env_step_timeout_s is {limit_s:g})"

    def count_failure(self) -> float:
        """Counts a failure of the process; returns the seconds to wait before its restart."""
        self.in_a_row += 1
        wait_s = BACK_OFF_S * 2 ** (self.in_a_row - 2) if self.in_a_row > 1 else 0.0
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

    def slow_start(self, limit_s: float) -> str:
        """Returns a notice, once for each process, if it has not answered within `limit_s`.

        Otherwise returns an empty string.
        """
        silent_s = self._patience.silent_s
        if self.heard or self._noticed or silent_s <= limit_s:
            return ""
        self._noticed = True
        return (
            f"{self.name} is still starting: it has not answered for {silent_s:.0f} s, and is "
            f"replaced after {limit_s + self.start_s:.0f} s"
        )

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
        wait_s, often = self.count_failure(), ""
        if self.too_many:
            often = f"{self.in_a_row} times in a row"
            advice = f"{self.remedy}, or raise actor.max_restarts ({self.max_restarts})"
        elif self._too_many_per_hour():
            often = f"{len(self._lost_at)} times within an hour"
            advice = f"at most {self.per_hour} are allowed; {self.remedy}, then resume the run"
        if often:
            last = f"{self.name}{details} was lost {often}, the last time: {trouble}; {advice}"
            raise noted(LostError(last), traceback)
        pause = f" in {wait_s:g} s" if wait_s else ""
        return f"{self.name} was lost ({trouble}) and is replaced{pause}"

    def _too_many_per_hour(self) -> bool:
        self._lost_at.append(time.monotonic())
        full = len(self._lost_at) == self._lost_at.maxlen
        return full and self._lost_at[-1] - self._lost_at[0] < HOUR_S
