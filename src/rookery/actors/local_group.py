"""The actors of one host: their processes, control messages to them, and their restarts.

    for reports in actors.collect(64, epsilons): ...      # sync: every actor plays 64 steps
    actors.start(); actors.allow(True, epsilons)          # async: every actor plays by itself
    for report in actors.reports(): ...

An actor that dies, raises or sends no heartbeat is killed and restarted, after a pause that doubles
with every failure in a row (`runtime/supervision.py`). Each restart of an actor is called its next
incarnation. It gets a new transport ring (the ring buffer in shared memory that carries its rows,
the stored env steps, to replay), so that a late write of the killed process does no harm. Its open
episodes are broken off. In async mode its environments begin with the progress (state that outlives
episodes) that the actor reported last. Too many failures in a row, without a chunk (the steps an
actor plays between two messages) played in between, end the run with the actor's traceback. So do
more than 20 failures of one actor in an hour, and three times the same error of an environment.

With the inline engine all actors run in the learner's process, one after another. An actor that
hangs there cannot be restarted: the run ends.
"""

import contextlib
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rookery.actors import messages
from rookery.actors.actor import transport
from rookery.actors.actor_group import ActorGroupState, SupervisedActors, refuse_other_actors
from rookery.actors.inference.server_supervision import InferenceSupervisor
from rookery.actors.start_errors import started
from rookery.actors.worker import InlineWatch
from rookery.config.schema import Engine, Inference
from rookery.engines import ENGINES
from rookery.engines.engine import CloseRole, RoleHandle, copies, describe
from rookery.errors import EnvError, RoleFailed, RookeryError, StalledError
from rookery.replay.ring import UNLIMITED_ROWS, Ring
from rookery.runtime.supervision import ActorLoss, LossKind, Supervision

PER_HOUR = 20  # losses of one actor within an hour that do not end a run
START_S = 120.0  # for a fresh interpreter to import what it needs and make its environments
PATIENCE_S = 0.05  # between two checks for failed actors while waiting for an answer
CLOSE_S = 2.0  # for all actors to close their environments
NAP_S = 0.001  # between two polls for rows: each wakes a CPU that an actor may be using
SOON_S = 0.02  # that the learner waits for all rows it needs, where some have come

ActorHandle: TypeAlias = RoleHandle[messages.ActorOrder, messages.ActorAnswer]


@dataclass
class ActorSeat:
    """Record that `LocalActors` keeps of one actor: process, unanswered control message, failures.

    The actor's number stays the same when its process is restarted.
    """

    index: int  # in this group
    number: int  # in the run
    incarnation: int
    watch: Supervision
    host: ActorHandle | None = None
    order: messages.ActorOrder | None = None  # not answered yet
    self_driven: bool = False  # plays by itself, in async mode
    answers: list[messages.ActorAnswer] = field(default_factory=list)

    @property
    def working(self) -> bool:
        return self.order is not None or self.self_driven


class LocalActors(SupervisedActors):
    """All actors of one host: starts, messages and restarts their worker processes."""

    def __init__(self, setup: messages.ActorGroupSetup):
        """Starts one process per actor; with the inline engine, builds all actors in this process.

        With central inference it also starts the inference server.
        """
        super().__init__(setup.progress)
        self.setup, self.config, self.spec = setup, setup.config, setup.spec
        config = setup.config
        self._start_role = ENGINES[config.engine]
        self._losses: list[ActorLoss] = []  # not taken yet
        self.rings: list[Ring] = []
        self.seats: list[ActorSeat] = []
        inline = config.engine is Engine.INLINE
        self._hangs = InlineWatch(setup) if inline else None
        self._inference: InferenceSupervisor | None = None
        with contextlib.ExitStack() as stack:  # the actors that were started must end
            stack.callback(self.close)
            if config.actor.inference is Inference.CENTRAL:
                with started("the inference server"):
                    self._inference = InferenceSupervisor(setup)
                    self._inference.start()
            numbers = range(config.actor.num) if setup.numbers is None else setup.numbers
            for index, number in enumerate(numbers):
                incarnation = setup.incarnation(index)
                watch = Supervision(
                    f"actor {number}",
                    max_restarts=config.actor.max_restarts,
                    start_s=START_S,
                    remedy="correct the environment",
                    per_hour=PER_HOUR,
                )
                with started(f"actor {index} of {config.actor.num}"):
                    self.rings.append(self._ring(number, incarnation))
                    self.seats.append(ActorSeat(index, number, incarnation, watch))
                    self._start(self.seats[-1])
            stack.pop_all()

    def _here(self, seat: ActorSeat) -> contextlib.AbstractContextManager[None]:
        """Returns the context manager inside which an actor must be called.

        If the actor runs in this process, `HangWatch` supervises it there; for an actor in a
        process of its own the context manager does nothing.
        """
        if self._hangs is None:
            return contextlib.nullcontext()
        return self._hangs.watch(self.rings[seat.index])

    def _ring(self, number: int, incarnation: int) -> Ring:
        ring = transport(self.spec, self.config.actor, index=number, incarnation=incarnation)
        ring.beat()
        return ring

    def _start(self, seat: ActorSeat) -> None:
        group, self.setup = self.setup, self.setup._replace(envs=None)  # the first actor takes them
        server, ring = self._inference, self.rings[seat.index]
        ring_fd, fd = copies(ring.fd, group.weights_fd if server is None else server.slots.fd)
        setup = messages.ActorSetup(
            group._replace(progress=()),  # of all actors, for this process only
            seat.number,
            seat.incarnation,
            ring_fd,
            fd,
            self.progress.of(seat.number),
            None if self._hangs is None else self._hangs.calls,
        )
        with self._here(seat):
            seat.host = self._start_role(
                "rookery.actors.worker:ActorWorker",
                setup,
                name=f"actor-{seat.number}",
                fds=[ring_fd, fd],
            )
        seat.watch.started()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the actors and of the inference server, by process name."""
        hosts = [seat.host for seat in self.seats if seat.host is not None]
        pids = {} if self._hangs else {host.name: host.pid for host in hosts}
        return pids | (self._inference.pids if self._inference else {})

    @property
    def incarnations(self) -> list[int]:
        return [seat.incarnation for seat in self.seats]

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of lost actors by kind, and metrics of the inference server."""
        return super().metrics() | (self._inference.metrics() if self._inference else {})

    def take_losses(self) -> tuple[ActorLoss, ...]:
        """Returns the actors that were lost since the last call."""
        losses, self._losses = tuple(self._losses), []
        return losses

    # In sync mode: orders and answers.

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[messages.ActorReport]]:
        """Makes every actor play `env_steps` steps, or `episodes` episodes; yields their reports.

        With fewer `epsilons` than actors, only the first `len(epsilons)` actors play. If the
        episodes do not fit into an actor's ring buffer, it yields more than once, and replay must
        read the ring buffers after each yield.
        """
        orders = {i: messages.PlayChunk(env_steps, episodes, e) for i, e in enumerate(epsilons)}
        while orders:
            answers = self._ask(orders)
            reports = {i: a for i, a in answers.items() if isinstance(a, messages.ActorReport)}
            yield list(reports.values())
            orders = {
                i: messages.PlayChunk(env_steps, report.left, epsilons[i])
                for i, report in reports.items()
                if report.left
            }

    def save(self) -> ActorGroupState:
        """Returns the state of all actors, for a checkpoint."""
        saved = self._ask({seat.index: messages.SaveActor() for seat in self.seats}).values()
        states = [state for state in saved if isinstance(state, messages.ActorState)]
        return ActorGroupState(self.incarnations, states)

    def restore(self, state: ActorGroupState) -> None:
        """Restores all actors from the state that `save` returned."""
        refuse_other_actors(state, len(self.seats))
        self._ask({i: messages.RestoreActor(own) for i, own in enumerate(state.actors)})

    def cut(self) -> None:
        """Truncates the episodes in progress of all actors."""
        self._ask({seat.index: messages.CutEpisodes() for seat in self.seats})

    def _ask(self, orders: Mapping[int, messages.ActorOrder]) -> dict[int, messages.ActorAnswer]:
        """Sends control messages by actor index, waits, and returns the answers in their order.

        Actors that fail meanwhile are restarted and get their message again.
        """
        for index, order in orders.items():
            self._tell(self.seats[index], order)
        waiting = list(orders)
        while waiting:
            self._hear(self.seats[waiting[0]], PATIENCE_S)
            for index in waiting[1:]:
                self._hear(self.seats[index])
            self._supervise()
            waiting = [i for i in waiting if not self.seats[i].answers]
        return {index: self.seats[index].answers.pop() for index in orders}

    def _tell(self, seat: ActorSeat, order: messages.ActorOrder) -> None:
        seat.order = order
        seat.watch.expect()
        if seat.host is not None:
            seat.host.send(order)

    # In async mode: actors play by themselves, and report now and then.

    def start(self) -> None:
        """Makes every actor play continuously from now on (async mode)."""
        for seat in self.seats:
            seat.self_driven = True
            self._tell(seat, messages.PlayFreely())

    def allow(self, go: bool, epsilons: Sequence[float], room: int | None = None) -> None:
        """Lets all actors play if `go`, otherwise pauses them; sets their exploration epsilons.

        `room` is the number of rows (stored env steps) that each actor may write until the next
        call; None means no limit. An actor may exceed it only to complete the `actor.chunk` steps
        it has begun.
        """
        rows = UNLIMITED_ROWS if room is None else room
        for ring, epsilon in zip(self.rings, epsilons, strict=True):
            ring.control(go, epsilon, rows)

    def wait(self, timeout_s: float, rows: int = 1) -> None:
        """Blocks until actors have written rows (env steps) for replay, at most `timeout_s`.

        For the first 20 ms it waits for `rows` rows, after that for any row: each check takes CPU
        time that an actor may need. Actors of the inline engine, which run in this process, play
        during this call.
        """
        began, passed = time.monotonic(), 0.0
        while not self._enough(rows if passed < SOON_S else 1) and passed < timeout_s:
            if self._hangs is None:
                time.sleep(NAP_S)
            for seat in self.seats if self._hangs else ():
                self._hear(seat)
            passed = time.monotonic() - began

    def _enough(self, rows: int) -> bool:
        """Returns whether at least `rows` rows (env steps) wait for insertion into replay.

        Also True if the ring buffer of an actor is half full, so that the actor may soon block.
        """
        waiting = [ring.committed - ring.consumed for ring in self.rings]
        full = zip(waiting, self.rings, strict=True)
        return sum(waiting) >= rows or any(2 * count >= ring.capacity for count, ring in full)

    def reports(self) -> list[messages.ActorReport]:
        """Returns the actors' reports since the last call, and restarts actors that failed."""
        for seat in self.seats:
            self._hear(seat)
        self._supervise()
        answers = [answer for seat in self.seats for answer in seat.answers]
        for seat in self.seats:
            seat.answers.clear()
        return [answer for answer in answers if isinstance(answer, messages.ActorReport)]

    # In both: supervision.

    def _hear(self, seat: ActorSeat, timeout_s: float = 0.0) -> None:
        if seat.host is None:
            time.sleep(timeout_s)
        while seat.host is not None and not (seat.answers and not seat.self_driven):
            with self._here(seat):
                message = seat.host.receive(timeout_s)
            if message is None:
                return
            if isinstance(message, RoleFailed):
                seat.watch.failed(message)
                return
            seat.order = None
            seat.watch.heard_from()
            seat.answers.append(message)
            if isinstance(message, messages.ActorReport) and message.progress is not None:
                self.progress.take(message.progress)
            if self._hangs is not None:
                return  # one turn for each actor
            timeout_s = 0.0

    def _supervise(self) -> None:
        if self._inference is not None:
            self._inference.supervise()
            self._warnings += self._inference.warnings
            self._inference.warnings.clear()
        for seat in self.seats:
            if seat.host is not None and (trouble := self._trouble(seat, seat.host)):
                self._lose(seat, seat.host, trouble)
            elif notice := seat.watch.slow_start(self.config.actor.env_step_timeout_s):
                self._warnings.append(notice)
            if seat.host is None and seat.watch.due and self._emptied(seat):
                self._replace(seat)

    def _trouble(self, seat: ActorSeat, host: ActorHandle) -> str | None:
        if not host.alive and seat.watch.failure is None:
            self._hear(seat)  # what it sent before it ended
        return seat.watch.trouble(
            alive=host.alive,
            silence_s=self.rings[seat.index].silence_s,
            limit_s=self.config.actor.env_step_timeout_s,
            closing_s=CLOSE_S,
            busy=self._hangs is None and seat.working,
        )

    def _lose(self, seat: ActorSeat, host: ActorHandle, trouble: str) -> None:
        """Kills a failed actor and schedules its restart.

        Raises LostError, which ends the run, after too many failures in a row.
        """
        seat.host, status = None, None
        with self._here(seat), contextlib.suppress(EnvError):  # it is gone, closed or not
            status = host.stop(0.0)
        if self._brought(seat):
            seat.watch.recovered()
        if seat.watch.loss is LossKind.HANG:
            rows = self.rings[seat.index].committed
            trouble += f" in {self.spec.name}, after {rows} rows"
        self._warnings.append(seat.watch.lost(trouble, status=status, details=self._details(seat)))
        failure = seat.watch.failure or RoleFailed("", "", final=False)
        self._count(ActorLoss(seat.watch.loss, failure.summary, failure.traceback))

    def _count(self, loss: ActorLoss) -> None:
        """Counts a lost actor; raises EnvError, which ends the run, at its environment's third."""
        self._losses.append(loss)
        self.tally.add(loss)

    def _details(self, seat: ActorSeat) -> str:
        seed = self.config.run.seed
        return f" of {self.spec.name} (seed {seed}, incarnation {seat.incarnation})"

    def _brought(self, seat: ActorSeat) -> bool:
        """Returns whether a failed actor had played since its start.

        If so, its earlier failures do not count as failures in a row. In async mode the actor must
        have written at least `actor.chunk` rows (stored env steps). In sync mode it must have
        answered a control message, or replay must have read rows from it.
        """
        ring = self.rings[seat.index]
        if seat.self_driven:
            return ring.committed >= self.config.actor.chunk
        return bool(seat.answers) or ring.consumed > 0

    def _emptied(self, seat: ActorSeat) -> bool:
        """Returns whether replay has read all env steps from a failed actor's ring buffer.

        In sync mode, steps of a control message that the actor did not answer are not inserted, so
        they do not count: the restarted actor gets the message again.
        """
        counts = seat.self_driven or seat.answers
        return not (counts and self.rings[seat.index].waiting)

    def _replace(self, seat: ActorSeat) -> None:
        """Restarts a failed actor with a new ring buffer for its env steps.

        The new process gets the control message that the failed one had not answered.
        """
        try:
            ring = self._ring(seat.number, seat.incarnation + 1)
            old, self.rings[seat.index] = self.rings[seat.index], ring
            old.close()
            seat.incarnation += 1
            self._start(seat)
        except StalledError:
            raise
        except (OSError, RookeryError) as error:
            trouble, text = f"could not be started: {error}", traceback.format_exc()
            self._warnings.append(seat.watch.count(trouble, text, details=self._details(seat)))
            failure = describe(error, text)
            kind = LossKind.ENV_ERROR if failure.environment else LossKind.CRASH
            self._count(ActorLoss(kind, failure.summary, text))
            return
        self.restarts += 1
        if seat.self_driven:
            self._tell(seat, messages.PlayFreely())
        elif seat.order is not None:
            self._tell(seat, seat.order)

    def close(self) -> None:
        """Ends all actors: they may close their environments, and are killed after 2 s."""
        deadline = time.monotonic() + CLOSE_S
        with contextlib.ExitStack() as stack:
            for ring in self.rings:
                stack.callback(ring.close)
            if self._inference is not None:  # it is closed after the actors
                stack.callback(self._inference.close)
            if self._hangs is not None:
                stack.callback(self._hangs.close)
            for seat in self.seats:
                if seat.host is not None:
                    seat.host.send(CloseRole())
                    stack.callback(self._stop, seat, seat.host, deadline)

    def _stop(self, seat: ActorSeat, host: ActorHandle, deadline: float) -> None:
        """Ends one actor, and kills it at the deadline, or at once if it is still starting."""
        seat.host = None
        with self._here(seat):
            host.stop(max(0.0, deadline - time.monotonic()) if seat.watch.heard else 0.0)
