"""The manager: the training side of the manage process. It never makes training wait.

    manager.write(event)          # into every sink
    manager.submit(snapshot)      # to be judged, in order, none skipped
    for news in manager.news(): ...

The process may die, hang or never come up. It is then reported, started again, and given what it
had not finished; a mark that keeps killing it is given up.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from rookery.engines.processes import Child, spawn
from rookery.event import Counters, Event, Warned
from rookery.loops.desk import Close, Judgement, Setup, Snapshot, Write

START_S = 60.0  # for a fresh interpreter to import what it needs
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
        self._strikes = 0  # deaths since something was last finished
        self.pending: deque[Snapshot] = deque()
        self.counters = Counters()
        self._start()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def write(self, event: Event) -> None:
        """Puts an event into the record."""
        self._number += 1
        message = Write(self._number, event)
        self._unwritten.append(message)
        if self._child:
            self._child.send(message)

    def submit(self, snapshot: Snapshot) -> None:
        """Has a snapshot judged."""
        if not self.pending:
            self._began = time.monotonic()
        self.pending.append(snapshot)
        if self._child:
            self._child.send(snapshot)

    def news(self, timeout_s: float = 0.0) -> Iterator[tuple[Snapshot, Judgement] | Warned]:
        """Yields judgements in the order of their marks, and what went wrong."""
        while self._child and (message := self._child.receive(timeout_s)) is not None:
            self._strikes = 0
            if isinstance(message, int):
                while self._unwritten and self._unwritten[0].number <= message:
                    self._unwritten.popleft()
            elif isinstance(message, Judgement) and self.pending:
                self._began = time.monotonic()
                yield self.pending.popleft(), message
                timeout_s = 0.0
            elif isinstance(message, Warned):
                yield replace(message, counters=self.counters)
        yield from self._repair()

    def close(self) -> None:
        """Lets the sinks finish, then ends the process."""
        if self._child is None:
            return
        self._child.send(Close())
        deadline = time.monotonic() + CLOSE_S
        while self._child.alive and time.monotonic() < deadline:
            if isinstance(self._child.receive(0.1), Close):
                break
        self._child.stop(grace_s=2.0)
        self._child = None

    def kill(self) -> None:
        """Ends the process now."""
        if self._child:
            self._child.kill()
            self._child.stop(grace_s=0.0)
            self._child = None

    def _start(self) -> None:
        self._child = spawn("rookery.loops.desk:serve", self._setup, name="manage")
        self._began = time.monotonic() + START_S
        for message in (*self._unwritten, *self.pending):
            self._child.send(message)
        self._setup = replace(self._setup, first_try=False)

    def _repair(self) -> Iterator[Warned]:
        if self._child is None or not (trouble := self._trouble(self._child)):
            return
        self.kill()
        self._strikes += 1
        yield self._warning("evaluator", f"the manage process {trouble}")
        if self._strikes > self._most and self.pending:
            lost = self.pending.popleft()
            self._strikes = 0
            yield self._warning(
                "evaluation",
                f"the evaluation at env step "
                f"{lost.counters.env_steps} was given up after "
                f"{self._most} restarts",
            )
        if self._strikes <= self._most:
            self._start()
        else:
            yield self._warning(
                "evaluator",
                "the manage process does not come up; training goes "
                "on without evaluation and reports",
            )

    def _trouble(self, child: Child) -> str:
        if not child.alive:
            return f"died (status {child.process.poll()}); it is started again"
        late = time.monotonic() - self._began
        if self.pending and late > self._limit_s + 5.0:
            return (
                f"has not answered for {late:.0f} s (eval.timeout_s is {self._limit_s:.0f}); "
                "it is started again"
            )
        return ""

    def _warning(self, kind: str, message: str) -> Warned:
        return Warned(self.counters, kind, message)
