"""A gang: workers that compute gradients, and the one who brings those to a parameter server.

    gang = Gang(hands, agent.get_policy_parameters(), server)
    while ...: turn = gang.turn(timeout_s=0.05)        # gradients → server, parameters → workers
    gang.close()

Workers are processes, not threads: environments and the small steps of small networks hold Python's
lock most of the time, so that threads would take turns, and one that hangs or crashes would take
the others with it. What is large goes through shared memory: parameters over a board, gradients
through a ring for each worker. A worker that dies, raises or falls silent is replaced.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rookery.actors.messages import ActorReport
from rookery.components.protocols import Server
from rookery.config.schema import Engine
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, RoleFailed, RoleHandle, copies
from rookery.event import Episode
from rookery.learner.weight_store import WeightStore
from rookery.replay.ring import Ring
from rookery.runtime.supervision import Supervision
from rookery.server.gradient_worker import Setup, schema_for
from rookery.types import Array

START_S = 120.0  # for a fresh interpreter to import what it needs and make its environments
CLOSE_S = 2.0  # for everybody to close its environments
NAP_S = 0.0005  # between two looks at the rings
NEWS_S = 0.02  # between two looks for messages


class Turn(NamedTuple):
    """What a turn brought."""

    gradients: int
    env_steps: int
    ended: list[Episode]


@dataclass
class Seat:
    """A worker's place."""

    index: int
    name: str  # at the server
    ring: Ring
    watch: Supervision
    host: RoleHandle[None, ActorReport] | None = None
    incarnation: int = 0


class Gang:
    """Starts workers, feeds a server with what they compute, replaces them."""

    def __init__(
        self,
        hand: Callable[[int, int], Any],
        num: int,
        parameters: dict[str, Array],
        server: Server,
        *,
        name: str = "workers",
        timeout_s: float = 60.0,
        max_restarts: int = 3,
    ):
        """`hand` makes what worker i of a given incarnation is built from.

        To the server they are parts of one client, `name/i`. Call this from the main thread:
        processes end with the thread that started them.
        """
        self.parameters, self.server, self._hand = parameters, server, hand
        self._timeout_s, self._max_restarts = timeout_s, max_restarts
        self.restarts = 0
        self.codes: Counter[str] = Counter()  # what became of gradients
        self.ages: Counter[int] = Counter()  # versions that were made while they were computed
        self._open, self._listened = True, 0.0
        self.version = -1
        self.board = WeightStore(parameters)
        self._schema = schema_for(parameters)
        self.seats: list[Seat] = []
        try:
            self._publish()
            for index in range(num):
                worker = f"{name}/{index}"
                seat = Seat(index, worker, Ring.create(self._schema, 1), self._watch(worker))
                self.seats.append(seat)
                server.register_worker(seat.name)
                self._start(seat)
        except BaseException:  # whatever it was, those who work already must go
            self.close()
            raise

    def _watch(self, worker: str) -> Supervision:
        return Supervision(
            worker,
            max_restarts=self._max_restarts,
            start_s=START_S,
            remedy="mend the environment or the agent",
        )

    @property
    def pids(self) -> dict[str, int]:
        return {seat.name: seat.host.pid for seat in self.seats if seat.host is not None}

    def allow(self, go: bool) -> None:
        """Has everybody go on, or wait."""
        self._open = go
        for seat in self.seats:
            seat.ring.control(go, 0.0)

    def turn(self, timeout_s: float) -> Turn:
        """Waits for gradients, no longer than told; brings them to the server; listens."""
        deadline = time.monotonic() + timeout_s
        while not any(seat.ring.waiting for seat in self.seats) and time.monotonic() < deadline:
            time.sleep(NAP_S)
        waiting = [seat for seat in self.seats if seat.ring.waiting]
        for seat in waiting:
            self._push(seat)
        reports = self._news()
        ended = [episode for report in reports for episode in report.ended]
        return Turn(len(waiting), sum(report.env_steps for report in reports), ended)

    def _push(self, seat: Seat) -> None:
        """Hands a gradient over; what it changed is published before its worker goes on."""
        columns, ring = seat.ring.columns, seat.ring
        flat, version = columns["gradient"][0].copy(), int(columns["version"][0]) - 1
        self.ages[max(0, self.version - version)] += 1
        receipt = self.server.push_gradients(seat.name, self._named(flat), version=version)
        self.codes[receipt.code] += 1
        seat.watch.proven = True
        seat.watch.recovered()
        self._publish()
        ring.consume(ring.committed)

    def _publish(self) -> None:
        """Shows workers the newest parameters. A board's versions begin with 1."""
        newer = self.server.get_parameters(newer_than=self.version)
        if newer is not None:
            self.version = newer.version
            self.board.publish(newer.arrays, version=newer.version + 1)

    def _named(self, flat: Array) -> dict[str, Array]:
        sizes = np.cumsum([array.size for array in self.parameters.values()])[:-1]
        parts = zip(self.parameters.items(), np.split(flat, sizes), strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in parts}

    # Looking after them.

    def _start(self, seat: Seat) -> None:
        seat.ring.beat()
        seat.ring.control(self._open, 0.0)
        ring_fd, weights_fd = copies(seat.ring.fd, self.board.fd)
        given = self._hand(seat.index, seat.incarnation)
        seat.host = ENGINES[Engine.PROCESSES](
            "rookery.server.gradient_worker:GradientWorker",
            Setup(given, self.parameters, ring_fd, weights_fd),
            name=f"worker-{seat.index}",
            fds=[ring_fd, weights_fd],
        )
        seat.watch.started()

    def _news(self) -> list[ActorReport]:
        if time.monotonic() - self._listened < NEWS_S:
            return []
        self._listened, reports = time.monotonic(), list[ActorReport]()
        for seat in self.seats:
            reports += self._heard(seat)
            if seat.host is not None and (trouble := self._trouble(seat, seat.host)):
                self._lose(seat, seat.host, trouble)
            if seat.host is None and seat.watch.due:
                self._replace(seat)
        return reports

    def _heard(self, seat: Seat) -> list[ActorReport]:
        reports: list[ActorReport] = []
        while seat.host is not None and (message := seat.host.receive()) is not None:
            if isinstance(message, RoleFailed):
                seat.watch.failed(message)
                break
            seat.watch.alive()
            reports.append(message)
        return reports

    def _trouble(self, seat: Seat, host: RoleHandle[None, ActorReport]) -> str | None:
        return seat.watch.trouble(
            alive=host.alive, silence_s=seat.ring.silence_s, limit_s=self._timeout_s
        )

    def _lose(self, seat: Seat, host: RoleHandle[None, ActorReport], trouble: str) -> None:
        seat.host = None
        host.stop(0.0)
        seat.watch.lost(trouble)

    def _replace(self, seat: Seat) -> None:
        """The next incarnation gets a ring of its own: the last one may still write to the old."""
        old, seat.ring = seat.ring, Ring.create(self._schema, 1)
        old.close()
        seat.incarnation += 1
        self.restarts += 1
        self._start(seat)

    def close(self) -> None:
        """Lets everybody close its environments, and ends those who take too long."""
        deadline = time.monotonic() + CLOSE_S
        with contextlib.ExitStack() as stack:
            stack.callback(self.board.close)
            for seat in self.seats:
                stack.callback(seat.ring.close)
                if seat.host is not None:
                    seat.host.send(CloseRole())
                    stack.callback(self._stop, seat.host, deadline if seat.watch.heard else 0.0)
        leave = getattr(self.server, "unregister_worker", None)
        for seat in self.seats if leave is not None else ():
            leave(seat.name)  # type: ignore[misc]

    def _stop(self, host: RoleHandle[None, ActorReport], deadline: float) -> None:
        host.stop(max(0.0, deadline - time.monotonic()))
