"""The manager: the training side of the manage process. It never makes training wait.

    manager.write(event)          # into every sink
    manager.submit(snapshot)      # to be judged, in order, none skipped
    for news in manager.news(): ...

The process may die, hang or never come up. It is then reported, started again, and given what it
had not finished; a mark that keeps killing it is given up, and so, in the end, is judging.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rookery.engines.processes import Child, spawn
from rookery.event import Counters, Event, Warned
from rookery.loops.desk import Begun, Close, Judgement, Setup, Snapshot, Write
from rookery.manage.patience import back_off_s

START_S = 60.0  # for a fresh interpreter to import what it needs
MARGIN_S = 5.0  # beyond eval.timeout_s, which the process watches itself where it can
CLOSE_S = 20.0  # for sinks to write out what they hold


class Manager:
    """Supervises the manage process."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._limit_s = setup.config.eval.timeout_s
        self._most = setup.config.eval.max_restarts
        self._child: Child | None = None
        self._unwritten: deque[Write] = deque()
        self._number = 0
        self._began = 0.0  # when the oldest pending snapshot could first be worked on
        self._strikes = 0  # deaths since a snapshot was last judged
        self._lost = 0  # marks given up since then
        self._next_try: float | None = 0.0  # when to start again; None: not to be
        self.pending: deque[Snapshot] = deque()
        self.counters = Counters()
        with contextlib.suppress(OSError):  # told, and tried again, when news are asked for
            self._start()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def unwritten(self) -> list[Event]:
        """Events that may not be in the record yet."""
        return [message.event for message in self._unwritten]

    def write(self, event: Event) -> None:
        """Puts an event into the record."""
        self._write(event, again=False)

    def rewrite(self, events: Sequence[Event]) -> None:
        """Puts events of an earlier session into the record, where it lacks them."""
        for event in events:
            self._write(event, again=True)

    def _write(self, event: Event, *, again: bool) -> None:
        if self._gone:
            return
        self._number += 1
        message = Write(self._number, event, again)
        self._unwritten.append(message._replace(again=again or self._child is not None))
        self._send(message)

    def submit(self, snapshot: Snapshot) -> None:
        """Has a snapshot judged."""
        if self._gone or self._lost > self._most:
            return  # said when it came to that
        if not self.pending:
            self._began = max(self._began, time.monotonic())
        self.pending.append(snapshot)
        self._send(snapshot)

    def news(self, timeout_s: float = 0.0) -> Iterator[tuple[Snapshot, Judgement] | Warned]:
        """Yields judgements in the order of their marks, and what went wrong."""
        if self._child is None:
            time.sleep(timeout_s)
        while self._child and (message := self._child.receive(timeout_s)) is not None:
            if isinstance(message, Judgement) and self.pending:
                self._strikes = self._lost = 0
                self._began = time.monotonic()
                yield self.pending.popleft(), message
                timeout_s = 0.0
            elif isinstance(message, Warned):
                yield replace(message, counters=self.counters)
            else:
                self._note(message)
        yield from self._repair()

    def _note(self, message: Any) -> None:
        if isinstance(message, Begun):
            self._began = time.monotonic()
        elif isinstance(message, int):
            while self._unwritten and self._unwritten[0].number <= message:
                self._unwritten.popleft()

    def close(self) -> None:
        """Lets the sinks finish, then ends the process; one that died is started again for that."""
        deadline = time.monotonic() + CLOSE_S
        self.pending.clear()
        if not self._number:  # it was given nothing to write
            self.kill()
            return
        if not self._say_goodbye(deadline) and self._unwritten and not self._gone:
            self.kill()
            with contextlib.suppress(OSError):  # no process left for it
                self._start()
                self._say_goodbye(deadline)
        if self._child is not None:
            self._child.stop(grace_s=2.0)
            self._child = None

    def _say_goodbye(self, deadline: float) -> bool:
        """Returns whether the sinks were closed; False where the process died or took too long."""
        self._send(Close())
        while self._child and self._child.alive and time.monotonic() < deadline:
            message = self._child.receive(0.1)
            if isinstance(message, Close):
                return True
            self._note(message)
        return False

    def kill(self) -> int | None:
        """Ends the process now; returns its exit status, none where there is no process."""
        if self._child is None:
            return None
        status = self._child.stop(grace_s=0.0)
        self._child = None
        return status

    @property
    def _gone(self) -> bool:
        """Is the process given up for good?"""
        return self._child is None and self._next_try is None

    def _send(self, message: Any) -> None:
        if self._child:
            self._child.send(message)

    def _start(self) -> None:
        self._child = spawn("rookery.loops.desk:serve", self._setup, name="manage")
        self._next_try = None
        self._began = time.monotonic() + START_S
        for message in (*self._unwritten, *self.pending):
            self._send(message)
        self._unwritten = deque(message._replace(again=True) for message in self._unwritten)
        self._setup = replace(self._setup, first_try=False)

    def _repair(self) -> Iterator[Warned]:
        if self._child is not None and (trouble := self._trouble(self._child)):
            status = self.kill()
            yield from self._count(trouble.format(status=status))
        if self._next_try is not None and time.monotonic() >= self._next_try:
            try:
                self._start()
            except OSError as error:  # no memory or no process left for it
                yield from self._count(f"could not be started: {error}")

    def _count(self, trouble: str) -> Iterator[Warned]:
        """Decides what follows from one more death."""
        self._strikes += 1
        wait_s = back_off_s(self._strikes)
        self._next_try = time.monotonic() + wait_s
        yield self._warning("evaluator", f"the manage process {trouble}")
        if self._strikes > self._most:
            yield from self._give_up()

    def _give_up(self) -> Iterator[Warned]:
        """Gives up a mark; where there is none, or where many were lost in a row, the cause."""
        if not self.pending:
            self._next_try = None
            self._unwritten.clear()
            yield self._warning(
                "evaluator",
                f"the manage process does not come up after {self._most} restarts; training goes "
                "on without evaluation and reports",
            )
            return
        self._lost += 1
        lost = [self.pending.popleft()]
        if self._lost > self._most:
            lost += self.pending
            self.pending.clear()
        self._strikes = self._most if self.pending else 0  # while marks wait, one try for each
        for snapshot in lost:
            yield self._warning(
                "evaluation",
                f"the evaluation at env step {snapshot.counters.env_steps} was given up after "
                f"{self._most} restarts" + self._more(),
            )

    def _more(self) -> str:
        return "; nothing will be judged any more" if self._lost > self._most else ""

    def _trouble(self, child: Child) -> str:
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
