"""The crew: a run's actors, wherever they live, and the one who looks after them.

    for reports in crew.play(64, epsilons): drain          # sync: everybody plays a chunk
    crew.roam(); crew.allow(True, epsilons)                # async: everybody plays by itself
    for report in crew.news(): ...

An actor that dies, raises or falls silent is killed, reaped and replaced by its next incarnation,
after a pause that doubles with every loss in a row. The next one gets a ring of its own, so what
the last one may still do touches nothing; its open episodes end where they were. In async its
environments begin with the progress that the last one told of. Too many losses in a row, without a
chunk played in between, end the run, with the actor's own traceback.

Two things only end a run that has actors in this process: one that hangs there, because nobody can
be put in its place, and in single mode one that raises, because there is nobody else.
"""

import contextlib
import errno
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rookery.actor import Actor, transport
from rookery.booth import Booths, layout_of
from rookery.config.schema import Config, Engine, Exploration, Inference, Mode
from rookery.engines import ENGINES
from rookery.engines.inline import Inline
from rookery.engines.interface import Close, Failed, Host, copies
from rookery.envs.make import Envs
from rookery.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    LostError,
    RookeryError,
    StalledError,
    noted,
)
from rookery.loops.caller import Line
from rookery.loops.player import (
    Cut,
    Play,
    Player,
    Report,
    Restore,
    Roam,
    Save,
    Saved,
    Setup,
)
from rookery.loops.progress import Progress
from rookery.loops.warden import Warden
from rookery.manage.patience import Patience, back_off_s
from rookery.manage.watchdog import Hung, Watchdog
from rookery.replay.ring import Ring
from rookery.selfplay.gallery import Gallery
from rookery.types import Array, EnvSpec

START_S = 120.0  # for a fresh interpreter to import what it needs and make its environments
PATIENCE_S = 0.05  # between two looks after everybody while an answer is waited for
CLOSE_S = 2.0  # for everybody to close its environments
NAP_S = 0.001  # between two looks for rows: each wakes a processor that an actor may be using
SOON_S = 0.02  # that all rows a learner needs are waited for, where some have come
LADDER = 7.0  # Horgan et al. 2018: actor i of N explores with e**(1 + 7i/(N-1))
ADVICE = {  # what to do where the system has no more of something
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the whole machine has no more open files to give",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the container's pids limit)",
    errno.ENOMEM: "close other programs: there is no memory left",
}


def rungs(epsilon: float, config: Config) -> list[float]:
    """Returns each actor's share of random actions."""
    num = config.actor.num
    if config.actor.exploration is Exploration.SHARED or num == 1:
        return [epsilon] * num
    return [epsilon ** (1 + LADDER * i / (num - 1)) for i in range(num)]


class Dealt(NamedTuple):
    """The state of all actors, for a checkpoint."""

    numbers: dict[str, Any]
    arrays: dict[str, Array]
    exact: bool  # False: environments that cannot export their state are in the middle of episodes


@dataclass
class Seat:
    """An actor's place. Whoever sits in it may be replaced."""

    index: int  # in this crew
    number: int  # in the run
    incarnation: int
    host: Host | None = None
    order: Any = None  # not answered yet
    roams: bool = False
    heard: bool = False  # anything, of this incarnation
    proven: bool = False  # an incarnation has answered: the settings can be played with
    failed: Failed | None = None  # its last words
    patience: Patience = field(default_factory=Patience)
    strikes: int = 0  # losses since it last brought a chunk
    next_try: float = 0.0
    answers: list[Any] = field(default_factory=list)

    @property
    def working(self) -> bool:
        return self.order is not None or self.roams


class Crew:
    """Starts actors, talks to them, replaces them."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        *,
        board_fd: int,
        factory: Any = None,
        envs: Envs | None = None,
        incarnations: Sequence[int] = (),
        numbers: Sequence[int] | None = None,
        progress: Iterable[Sequence[Any]] = (),
        memory: int = 0,
        gallery: Gallery | None = None,
    ):
        """`numbers` are those of the actors in the run, where this crew is not all of them.

        `progress` is what their environments begin with: standings, as `Progress` takes them.
        `memory` is what the policy remembers of an environment; an oracle's callers must know.
        """
        self.config, self.spec, self._factory, self._board_fd = config, spec, factory, board_fd
        self._start_role = ENGINES[config.engine]
        self._envs = envs  # the first inline actor takes them
        self._gallery = gallery  # where the opponents' snapshots are
        self.progress = Progress(progress)  # in async
        self.restarts = 0
        self._complaints: list[str] = []
        self._allowed: tuple[bool, Sequence[float]] | None = None
        self._at_work: Seat | None = None  # who does something in this process right now
        self._vigil = Patience()
        self.rings: list[Ring] = []
        self.seats: list[Seat] = []
        inline = config.engine is Engine.INLINE  # only another thread notices that this one hangs
        self._watchdog = Watchdog(self._hung) if inline else None
        self._memory = memory
        self._booths = self._make_booths()
        self._warden: Warden | None = None
        try:
            if self._booths is not None:
                self._warden = Warden(config, spec, self._booths, board_fd)
            for index, number in enumerate(range(config.actor.num) if numbers is None else numbers):
                incarnation = incarnations[index] if index < len(incarnations) else 0
                self.rings.append(self._ring(number, incarnation))
                self.seats.append(Seat(index, number, incarnation))
                self._seat(self.seats[-1])
        except BaseException as error:  # whatever it was, those who sit already must go
            self.close()
            if isinstance(error, OSError) and not isinstance(error, RookeryError):
                raise self._unstarted(error) from error
            raise

    def _unstarted(self, error: OSError) -> LostError:
        advice = ADVICE.get(error.errno or 0, "see what the system says")
        last = f"actor {len(self.seats) - 1} of {self.config.actor.num}"
        return LostError(
            f"{last if self.seats else 'the inference server'} could not be started "
            f"({error}); {advice}, or use fewer actors (--actors)"
        )

    def _hung(self) -> str | None:
        """Says who hangs in this process; the watchdog asks."""
        seat, limit_s = self._at_work, self.config.actor.env_step_timeout_s
        if seat is None:
            self._vigil = Patience()
            return None
        if not self._vigil.at_end(self.rings[seat.index].silence_s, limit_s):
            return None
        return (
            f"{self.spec.name} has not answered for {self._vigil.silent_s:.0f} s "
            f"(actor.env_step_timeout_s is {limit_s:g}); mend the environment, raise the limit, "
            "or use --mode sync or async with --engine processes, where a hung actor is replaced"
        )

    @contextlib.contextmanager
    def _here(self, seat: Seat) -> Iterator[None]:
        """Around whatever an actor may do in this process."""
        self.rings[seat.index].beat()
        self._at_work = seat
        try:
            yield
        except Hung as hung:
            raise StalledError(str(hung)) from None
        finally:
            self._at_work = None

    def _make_booths(self) -> Booths | None:
        actor = self.config.actor
        if actor.inference is Inference.LOCAL:
            return None
        return Booths(layout_of(self.spec, self._memory, actor.envs), actor.num)

    def _ring(self, number: int, incarnation: int) -> Ring:
        ring = transport(self.spec, self.config.actor, index=number, incarnation=incarnation)
        ring.beat()
        return ring

    def _seat(self, seat: Seat) -> None:
        envs, self._envs = self._envs, None
        central = self._booths is not None
        ring_fd, fd = copies(self.rings[seat.index].fd, self._source_fd)
        setup = Setup(
            self.config,
            self._factory,
            seat.number,
            seat.incarnation,
            ring_fd,
            None if central else fd,
            envs,
            self._line(seat, fd) if central else None,
            self._gallery,
            self.progress.of(seat.number),
        )
        with self._here(seat):
            seat.host = self._start_role(
                "rookery.loops.player:Player",
                setup,
                name=f"actor-{seat.number}",
                fds=[ring_fd, fd],
            )
        seat.heard, seat.failed = False, None

    @property
    def _source_fd(self) -> int:
        """Of whatever tells actors what to do: weights, or an oracle's answers."""
        return self._board_fd if self._booths is None else self._booths.fd

    def _line(self, seat: Seat, fd: int) -> Line:
        actor = self.config.actor
        return Line(self.spec, self._memory, actor.envs, actor.num, seat.index, fd)

    @property
    def actors(self) -> list[Actor]:
        """The actors that live in this process."""
        roles = [seat.host.role for seat in self.seats if isinstance(seat.host, Inline)]
        return [role.actor for role in roles if isinstance(role, Player)]

    @property
    def pids(self) -> dict[str, int]:
        """The processes of actors that have one of their own, by name."""
        hosts = [seat.host for seat in self.seats if seat.host is not None]
        pids = {host.name: host.pid for host in hosts if not isinstance(host, Inline)}
        return pids | (self._warden.pids if self._warden else {})

    @property
    def incarnations(self) -> list[int]:
        return [seat.incarnation for seat in self.seats]

    def metrics(self) -> dict[str, float]:
        """What is worth a line in the record, beyond what the driver knows."""
        return self._warden.metrics() if self._warden else {}

    @property
    def complete(self) -> bool:
        """Replay is here: it can be saved whoever is missing."""
        return True

    def complaints(self) -> Iterator[str]:
        """Yields what went wrong since the last call."""
        while self._complaints:
            yield self._complaints.pop(0)

    # In sync mode: orders and answers.

    def play(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[Report]]:
        """Has everybody play a chunk. What was written must be drained between two reports.

        There is more than one where episodes are longer than a ring.
        """
        orders = {i: Play(env_steps, episodes, e) for i, e in enumerate(epsilons)}
        while orders:
            reports: dict[int, Report] = self._ask(orders)
            yield [reports[i] for i in sorted(reports)]
            orders = {
                i: Play(env_steps, report.left, report.epsilon)
                for i, report in reports.items()
                if report.left
            }

    def save(self) -> Dealt:
        """Returns everybody's state."""
        saved: dict[int, Saved] = self._ask({seat.index: Save() for seat in self.seats})
        numbers = {
            "incarnations": self.incarnations,
            "actors": [saved[i].numbers for i in sorted(saved)],
        }
        arrays = {f"{i}.{name}": a for i, one in saved.items() for name, a in one.arrays.items()}
        return Dealt(numbers, arrays, all(one.exact for one in saved.values()))

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Goes on from what `save` returned."""
        if len(numbers["actors"]) != len(self.seats):
            raise CheckpointError(
                f"the checkpoint has {len(numbers['actors'])} actors, this run has "
                f"{len(self.seats)}; resume with --actors {len(numbers['actors'])}"
            )
        orders = {}
        for i, own_numbers in enumerate(numbers["actors"]):
            prefix = f"{i}."
            mine = {k[len(prefix) :]: a for k, a in arrays.items() if k.startswith(prefix)}
            orders[i] = Restore(own_numbers, mine)
        self._ask(orders)

    def cut(self) -> None:
        """Ends everybody's open episodes."""
        self._ask({seat.index: Cut() for seat in self.seats})

    def _ask(self, orders: Mapping[int, Any]) -> dict[int, Any]:
        """Hands out orders and waits for all the answers, replacing whoever is lost meanwhile."""
        for index, order in orders.items():
            self._tell(self.seats[index], order)
        waiting = list(orders)
        while waiting:
            self._hear(self.seats[waiting[0]], PATIENCE_S)
            for index in waiting[1:]:
                self._hear(self.seats[index])
            self._look_after()
            waiting = [i for i in waiting if not self.seats[i].answers]
        return {index: self.seats[index].answers.pop() for index in orders}

    def _tell(self, seat: Seat, order: Any) -> None:
        seat.order, seat.patience = order, Patience()  # silence counts from here
        if seat.host is not None:
            seat.host.send(order)

    # In async mode: everybody plays, and is listened to now and then.

    def roam(self) -> None:
        """Has everybody play by itself from now on."""
        for seat in self.seats:
            seat.roams = True
            self._tell(seat, Roam())

    def allow(self, go: bool, epsilons: Sequence[float], room: int | None = None) -> None:
        """Opens or closes everybody's gate. `room` is for those who drain by themselves."""
        if (go, epsilons) == self._allowed:
            return
        for ring, epsilon in zip(self.rings, epsilons, strict=True):
            ring.control(go, epsilon)
        self._allowed = go, epsilons

    def wait(self, timeout_s: float, rows: int = 1) -> None:
        """Waits for rows that can be drained; whoever lives here plays some.

        For so many `rows` it waits a little longer than for the first: every look at what has come
        takes time that an actor may need.
        """
        began, passed = time.monotonic(), 0.0
        while not self._enough(rows if passed < SOON_S else 1) and passed < timeout_s:
            if self._watchdog is None:
                time.sleep(NAP_S)
            for seat in self.seats if self._watchdog else ():
                self._hear(seat)
            passed = time.monotonic() - began

    def _enough(self, rows: int) -> bool:
        """Are so many rows waiting, or is a ring half full, whose actor may soon have to wait?"""
        waiting = [ring.committed - ring.consumed for ring in self.rings]
        full = zip(waiting, self.rings, strict=True)
        return sum(waiting) >= rows or any(2 * count >= ring.capacity for count, ring in full)

    def news(self) -> list[Report]:
        """Returns what was reported since the last call, and looks after everybody."""
        for seat in self.seats:
            self._hear(seat)
        self._look_after()
        found = [answer for seat in self.seats for answer in seat.answers]
        for seat in self.seats:
            seat.answers.clear()
        return found

    # In both: looking after them.

    def _hear(self, seat: Seat, timeout_s: float = 0.0) -> None:
        if seat.host is None:
            time.sleep(timeout_s)
        while seat.host is not None and not (seat.answers and not seat.roams):
            message = self._receive(seat, seat.host, timeout_s)
            if message is None:
                return
            if isinstance(message, Failed):
                self._take_last_words(seat, message)
                return
            seat.heard = seat.proven = True
            seat.order, seat.patience = None, Patience()  # that was a sign of life
            seat.answers.append(message)
            if isinstance(message, Report) and message.progress is not None:
                self.progress.take(message.progress)
            if isinstance(seat.host, Inline):
                return  # one turn for everybody
            timeout_s = 0.0

    def _receive(self, seat: Seat, host: Host, timeout_s: float) -> Any | None:
        if not isinstance(host, Inline):
            return host.receive(timeout_s)
        with self._here(seat):
            return host.receive(timeout_s)

    def _take_last_words(self, seat: Seat, failed: Failed) -> None:
        if failed.error is not None and self.config.run.mode is Mode.SINGLE:
            raise failed.error
        seat.failed, seat.patience = failed, Patience()  # it may still close its environments

    def _look_after(self) -> None:
        if self._warden is not None:
            self._warden.look_after()
            self._complaints += self._warden.take_complaints()
        for seat in self.seats:
            if seat.host is not None and (trouble := self._trouble(seat, seat.host)):
                self._lose(seat, seat.host, trouble)
            if seat.host is None and time.monotonic() >= seat.next_try and self._emptied(seat):
                self._replace(seat)

    def _trouble(self, seat: Seat, host: Host) -> str | None:
        if not host.alive and seat.failed is None:
            self._hear(seat)  # what it said before it went
        silence_s = self.rings[seat.index].silence_s
        if seat.failed is not None:
            gone = not host.alive or seat.patience.at_end(silence_s, CLOSE_S)
            return seat.failed.summary if gone else None
        if not host.alive:
            return "died"
        limit_s = self.config.actor.env_step_timeout_s
        allowed_s = limit_s + (0 if seat.heard else START_S)
        if self._watchdog or not seat.working or not seat.patience.at_end(silence_s, allowed_s):
            return None
        return (
            f"has not moved for {seat.patience.silent_s:.0f} s "
            f"(actor.env_step_timeout_s is {limit_s:g})"
        )

    def _lose(self, seat: Seat, host: Host, trouble: str) -> None:
        """Ends what is left of an actor, and decides what follows."""
        seat.host, failed, status = None, seat.failed, None
        with self._here(seat), contextlib.suppress(EnvError):  # it is gone, tidily or not
            status = host.stop(0.0)
        if failed is not None and failed.final and not seat.proven:
            _, _, message = failed.summary.partition(": ")
            raise noted(ConfigError(f"actor {seat.number}: {message}"), failed.traceback)
        if failed is None and status is not None:
            trouble += f" (exit status {status})"
        if self._brought(seat):
            seat.strikes = 0
        self._count(seat, trouble, failed.traceback if failed else "")

    def _brought(self, seat: Seat) -> bool:
        """Are there rows of this incarnation in replay, or left for it? In async, a chunk's."""
        ring = self.rings[seat.index]
        if seat.roams:
            return ring.committed >= self.config.actor.chunk
        return bool(seat.answers) or ring.consumed > 0

    def _count(self, seat: Seat, trouble: str, its_traceback: str) -> None:
        """Says when to try again, or that this was once too often."""
        seat.strikes += 1
        most = self.config.actor.max_restarts
        if seat.strikes > most:
            lost = LostError(
                f"actor {seat.number} of {self.spec.name} (seed {self.config.run.seed}, "
                f"incarnation {seat.incarnation}) was lost {seat.strikes} times in a row, the last "
                f"time: {trouble}; mend the environment, or raise actor.max_restarts ({most})"
            )
            raise noted(lost, its_traceback)
        wait_s = back_off_s(seat.strikes)
        seat.next_try = time.monotonic() + wait_s
        self._complaints.append(
            f"actor {seat.number} was lost ({trouble}) and is replaced"
            + (f" in {wait_s:g} s" if wait_s else "")
        )

    def _emptied(self, seat: Seat) -> bool:
        """Is nothing left to drain that counts? Of a chunk that is played anew nothing does."""
        counts = seat.roams or seat.answers
        return not (counts and self.rings[seat.index].waiting)

    def _replace(self, seat: Seat) -> None:
        """Seats the next incarnation, with a ring of its own, and repeats what it has to do."""
        try:
            ring = self._ring(seat.number, seat.incarnation + 1)
            old, self.rings[seat.index] = self.rings[seat.index], ring
            old.close()
            seat.incarnation += 1
            self._seat(seat)
        except StalledError:
            raise
        except (OSError, RookeryError) as error:
            self._count(seat, f"could not be started: {error}", traceback.format_exc())
            return
        self.restarts += 1
        self._allowed = None  # its gate is told anew
        if seat.roams:
            self._tell(seat, Roam())
        elif seat.order is not None:
            self._tell(seat, seat.order)

    def close(self) -> None:
        """Lets everybody close its environments, and ends those who take too long."""
        deadline = time.monotonic() + CLOSE_S
        with contextlib.ExitStack() as stack:
            for ring in self.rings:
                stack.callback(ring.close)
            for part in (self._booths, self._warden):  # the last first, and actors before both
                if part is not None:
                    stack.callback(part.close)
            if self._watchdog is not None:
                stack.callback(self._watchdog.close)
            for seat in self.seats:
                if seat.host is not None:
                    seat.host.send(Close())
                    stack.callback(self._stop, seat, seat.host, deadline)

    def _stop(self, seat: Seat, host: Host, deadline: float) -> None:
        """Whoever never said a word is still starting, and has nothing to close."""
        seat.host = None
        with self._here(seat):
            host.stop(max(0.0, deadline - time.monotonic()) if seat.heard else 0.0)
