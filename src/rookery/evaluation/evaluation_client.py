"""The training process's client of the evaluation process; sending never blocks training.

    client.write(event)           # to every log writer (sink)
    client.submit(snapshot)       # to be evaluated, in order, none skipped
    for result in client.poll(): ...

A snapshot is a copy of the learner's weights. If the evaluation process dies, hangs or does not
start, the client yields a warning, restarts the process, and sends unfinished work again. A
snapshot that crashes the process repeatedly is skipped. After several such snapshots in a row,
evaluation ends and training continues.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rookery.engines.processes import Child, spawn
from rookery.evaluation.evaluation_process import (
    CloseProcess,
    EvaluationBegun,
    EvaluationSetup,
    EvaluationSnapshot,
    SnapshotEvaluated,
    WriteEvent,
)
from rookery.event import Counters, Event, Warned
from rookery.runtime.supervision import Supervision

START_S = 60.0  # for a new process to import its modules
MARGIN_S = 5.0  # beyond eval.timeout_s, which the process itself enforces where it can
CLOSE_S = 20.0  # for sinks to flush


class EvaluationClient:
    """Client of the evaluation process: sends it weight snapshots and log events.

    It starts the evaluation process, and restarts it after a failure.
    """

    def __init__(self, setup: EvaluationSetup):
        self._setup = setup
        self._limit_s = setup.config.eval.timeout_s
        most = setup.config.eval.max_restarts  # since a snapshot was evaluated
        self._restarts = Supervision("the evaluation process", max_restarts=most)
        self._child: Child | None = None
        self._number = 0
        self._began = 0.0  # when the process could begin with the oldest pending snapshot
        self._lost = 0  # snapshots given up since the last evaluation
        self._given_up = False  # the process has failed too often to be restarted, or was closed
        self.unconfirmed: deque[WriteEvent] = deque()  # sent, and not known to be written
        self.pending: deque[EvaluationSnapshot] = deque()
        self.counters = Counters()
        with contextlib.suppress(OSError):  # `poll` reports it and tries again
            self._start()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def unwritten(self) -> list[Event]:
        """Events that the evaluation process has not yet confirmed as written."""
        return [message.event for message in self.unconfirmed]

    def write(self, event: Event, *, again: bool = False) -> None:
        """Sends an event that the evaluation process writes to all sinks (log file, trackers).

        With `again` the log may contain the event already, as after a resume; then it is skipped.
        """
        if self._given_up:
            return
        self._number += 1
        message = WriteEvent(self._number, event, again)
        self.unconfirmed.append(message._replace(again=again or self._child is not None))
        self._send(message)

    def submit(self, snapshot: EvaluationSnapshot) -> None:
        """Queues a snapshot of the weights for evaluation.

        Does nothing once evaluation has ended after too many failures.
        """
        if self._given_up or self._lost > self._restarts.max_restarts:
            return  # a warning was given before
        if not self.pending:
            self._began = max(self._began, time.monotonic())
        self.pending.append(snapshot)
        self._send(snapshot)

    def poll(
        self, timeout_s: float = 0.0
    ) -> Iterator[tuple[EvaluationSnapshot, SnapshotEvaluated] | Warned]:
        """Yields finished evaluations, in the order of submission, and warnings.

        It also restarts the evaluation process if it died or hangs.
        """
        if self._child is None:
            time.sleep(timeout_s)
        while self._child and (message := self._child.receive(timeout_s)) is not None:
            if isinstance(message, SnapshotEvaluated) and self.pending:
                self._restarts.recovered()
                self._lost = 0
                self._began = time.monotonic()
                yield self.pending.popleft(), message
                timeout_s = 0.0
            elif isinstance(message, Warned):
                yield replace(message, counters=self.counters)
            else:
                self._receive(message)
        yield from self._repair()

    def _receive(self, message: Any) -> None:
        if isinstance(message, EvaluationBegun):
            self._began = time.monotonic()
        elif isinstance(message, int):
            while self.unconfirmed and self.unconfirmed[0].number <= message:
                self.unconfirmed.popleft()

    def close(self) -> None:
        """Waits until all events are written to the logs, then ends the evaluation process.

        It waits at most about 20 s. A process that dies meanwhile is restarted once.
        """
        deadline = time.monotonic() + CLOSE_S
        self.pending.clear()
        closed = not self._number or self._close_sinks(deadline)  # else nothing was written
        if not closed and self.unconfirmed and not self._given_up:
            self._end()
            with contextlib.suppress(OSError):  # out of processes
                self._start()
                self._close_sinks(deadline)
        self._end(2.0 if self._number else 0.0)
        self._given_up = True

    def _close_sinks(self, deadline: float) -> bool:
        """Asks the evaluation process to close its sinks (log writers).

        Returns False if the process died or did not confirm before the deadline.
        """
        self._send(CloseProcess())
        while self._child and self._child.alive and time.monotonic() < deadline:
            message = self._child.receive(0.1)
            if isinstance(message, CloseProcess):
                return True
            self._receive(message)
        return False

    def _end(self, grace_s: float = 0.0) -> int | None:
        """Ends the evaluation process; returns its exit status, or None without a process."""
        child, self._child = self._child, None
        return None if child is None else child.stop(grace_s)

    def _send(self, message: Any) -> None:
        if self._child:
            self._child.send(message)

    def _start(self) -> None:
        self._child = spawn("rookery.evaluation.evaluation_process:serve", self._setup, name="eval")
        self._began = time.monotonic() + START_S
        for message in (*self.unconfirmed, *self.pending):
            self._send(message)
        self.unconfirmed = deque(message._replace(again=True) for message in self.unconfirmed)
        self._setup = replace(self._setup, resumed_at=None)

    def _repair(self) -> Iterator[Warned]:
        if self._child is not None and (problem := self._problem(self._child)):
            yield from self._count_failure(problem.format(status=self._end()))
        if self._child is None and not self._given_up and self._restarts.due:
            try:
                self._start()
            except OSError as error:  # out of memory or processes
                yield from self._count_failure(f"could not be started: {error}")

    def _count_failure(self, problem: str) -> Iterator[Warned]:
        """Counts a failure of the evaluation process and schedules its restart; yields warnings.

        After too many failures in a row, `_give_up` skips weight snapshots or ends evaluation.
        """
        self._restarts.count_failure()
        yield self._warning("evaluator", f"the evaluation process {problem}")
        if self._restarts.too_many:
            yield from self._give_up()

    def _give_up(self) -> Iterator[Warned]:
        """Skips weight snapshots that cannot be evaluated; yields warnings.

        Called after too many failures of the evaluation process in a row. Skips the oldest queued
        snapshot; after too many skips in a row, all queued snapshots. With no snapshot queued, the
        evaluation process is not restarted any more.
        """
        most = self._restarts.max_restarts
        if not self.pending:
            self._given_up = True
            self.unconfirmed.clear()
            yield self._warning(
                "evaluator",
                f"the evaluation process does not start after {most} restarts; training "
                "continues without evaluations and reports",
            )
            return
        self._lost += 1
        last = self._lost > most
        lost = [self.pending.popleft() for _ in range(len(self.pending) if last else 1)]
        # while snapshots wait, one try for each
        self._restarts.in_a_row = most if self.pending else 0
        more = "; no further snapshots are evaluated" if last else ""
        for snapshot in lost:
            yield self._warning(
                "evaluation",
                f"the evaluation at env step {snapshot.counters.env_steps} was given up after "
                f"{most} restarts{more}",
            )

    def _problem(self, child: Child) -> str:
        if not child.alive:
            return "died (status {status}); it is started again"
        late = time.monotonic() - self._began
        if self.pending and late > self._limit_s + MARGIN_S:
            return (
                f"has not answered for {late:.0f} s (eval.timeout_s is {self._limit_s:.0f}); "
                "it is started again"
            )
        return ""

    def _warning(self, kind: str, message: str) -> Warned:
        return Warned(self.counters, kind, message)
