"""The crew: a run's actors, wherever they live, and the one who looks after them.

    for reports in crew.play(64, epsilons): drain          # sync: everybody plays a chunk
    crew.roam(); crew.allow(True, epsilons)                # async: everybody plays by itself
    for report in crew.news(): ...

An actor that dies, raises or falls silent is killed, reaped and replaced by its next incarnation,
after a pause that doubles with every loss in a row. Its old ring is not drained any more, so what
it may still do touches nothing; its open episodes end where they were. Too many losses in a row
end the run, with the actor's own traceback.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rookery.actor import Actor, transport
from rookery.config.schema import Config, Engine, Exploration
from rookery.engines import ENGINES
from rookery.engines.inline import Inline
from rookery.engines.interface import Close, Failed, Host
from rookery.envs.make import Envs
from rookery.errors import LostError
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
    own,
)
from rookery.manage.watchdog import Watchdog
from rookery.replay.ring import Ring
from rookery.types import Array, EnvSpec

START_S = 120.0  # for a fresh interpreter to import what it needs and make its environments
BACK_OFF_S = 0.5  # before the second restart in a row; doubles with each one
PATIENCE_S = 0.05  # between two looks after everybody while an answer is waited for
CLOSE_S = 2.0  # for everybody to close its environments
NAP_S = 0.0002  # between two looks for rows
LADDER = 7.0  # Horgan et al. 2018: actor i of N explores with e**(1 + 7i/(N-1))


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

    index: int
    incarnation: int
    host: Host | None = None
    order: Any = None  # not answered yet
    roams: bool = False
    heard: bool = False  # anything, of this incarnation
    strikes: int = 0  # losses since it last played
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
    ):
        self.config, self.spec, self._factory, self._board_fd = config, spec, factory, board_fd
        self._start_role = ENGINES[config.engine]
        self._envs = envs  # the first inline actor takes them
        self.restarts = 0
        self._complaints: list[str] = []
        self._allowed: tuple[bool, Sequence[float]] | None = None
        self._watchdog: Watchdog | None = None
        self.rings: list[Ring] = []
        self.seats: list[Seat] = []
        first = list(incarnations) or [0] * config.actor.num
        try:
            for index in range(config.actor.num):
                self.rings.append(self._ring(index, first[index]))
                self.seats.append(Seat(index, first[index]))
                self._seat(self.seats[-1])
        except BaseException:  # whatever it was, those who sit already must go
            self.close()
            raise
        if config.engine is Engine.INLINE:  # only another thread can notice that this one hangs
            self._watchdog = Watchdog(self._hung)

    def _hung(self) -> str | None:
        limit_s = self.config.actor.env_step_timeout_s
        for seat, ring in zip(self.seats, self.rings, strict=True):
            busy = isinstance(seat.host, Inline) and seat.host.busy
            if busy and (silence := ring.silence_s) > limit_s:
                return (
                    f"{self.spec.name} has not answered for {silence:.0f} s "
                    f"(actor.env_step_timeout_s is {limit_s:g}); mend the environment, raise the "
                    "limit, or use --engine processes, where a hung actor is replaced"
                )
        return None

    def _ring(self, index: int, incarnation: int) -> Ring:
        ring = transport(self.spec, self.config.actor, index=index, incarnation=incarnation)
        ring.beat()
        return ring

    def _seat(self, seat: Seat) -> None:
        envs, self._envs = self._envs, None
        ring_fd, board_fd = own(self.rings[seat.index].fd), own(self._board_fd)
        setup = Setup(
            self.config, self._factory, seat.index, seat.incarnation, ring_fd, board_fd, envs
        )
        seat.host = self._start_role(
            "rookery.loops.player:Player",
            setup,
            name=f"actor-{seat.index}",
            fds=[ring_fd, board_fd],
        )
        seat.heard = False

    @property
    def actors(self) -> list[Actor]:
        """The actors that live in this process."""
        roles = [seat.host.role for seat in self.seats if isinstance(seat.host, Inline)]
        return [role.actor for role in roles if isinstance(role, Player)]

    @property
    def pids(self) -> dict[str, int]:
        """The processes of actors that have one of their own, by name."""
        hosts = [seat.host for seat in self.seats if seat.host is not None]
        return {host.name: host.pid for host in hosts if not isinstance(host, Inline)}

    @property
    def incarnations(self) -> list[int]:
        return [seat.incarnation for seat in self.seats]

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
        seat.order = order
        self.rings[seat.index].beat()  # silence counts from here
        if seat.host is not None:
            seat.host.send(order)

    # In async mode: everybody plays, and is listened to now and then.

    def roam(self) -> None:
        """Has everybody play by itself from now on."""
        for seat in self.seats:
            seat.roams = True
            self._tell(seat, Roam())

    def allow(self, go: bool, epsilons: Sequence[float]) -> None:
        """Opens or closes everybody's gate."""
        if (go, epsilons) == self._allowed:
            return
        for ring, epsilon in zip(self.rings, epsilons, strict=True):
            ring.control(go, epsilon)
        self._allowed = go, epsilons

    def wait(self, timeout_s: float) -> None:
        """Waits for rows that can be drained."""
        deadline = time.monotonic() + timeout_s
        while not any(ring.waiting for ring in self.rings) and time.monotonic() < deadline:
            time.sleep(NAP_S)

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
        while seat.host is not None and not (seat.answers and not seat.roams):
            message = seat.host.receive(timeout_s)
            if message is None:
                return
            seat.heard = True
            if isinstance(message, Failed):
                self._lose(seat, message.summary, message)
                return
            seat.order = None
            seat.strikes = 0
            seat.answers.append(message)
            if isinstance(seat.host, Inline):
                return  # one turn for everybody
            timeout_s = 0.0

    def _look_after(self) -> None:
        for seat in self.seats:
            if seat.host is not None and (trouble := self._trouble(seat, seat.host)):
                self._lose(seat, trouble)
            if seat.host is None and time.monotonic() >= seat.next_try:
                self._replace(seat)

    def _trouble(self, seat: Seat, host: Host) -> str | None:
        if isinstance(host, Inline):
            return None
        if not host.alive:
            self._hear(seat)  # its last words
            return None if seat.host is None else "died"
        limit_s = self.config.actor.env_step_timeout_s + (0 if seat.heard else START_S)
        silence = self.rings[seat.index].silence_s
        if seat.working and silence > limit_s:
            return (
                f"has not moved for {silence:.0f} s (actor.env_step_timeout_s is "
                f"{self.config.actor.env_step_timeout_s:g})"
            )
        return None

    def _lose(self, seat: Seat, trouble: str, failed: Failed | None = None) -> None:
        """Ends what is left of an actor, and decides what follows."""
        assert seat.host is not None, "whoever is lost sat there"
        status = seat.host.stop()
        seat.host = None
        seat.strikes += 1
        if status is not None and failed is None:
            trouble += f" (exit status {status})"
        most = self.config.actor.max_restarts
        if seat.strikes > most or (failed and failed.final):
            raise LostError(
                f"actor {seat.index} was lost {seat.strikes} times in a row, the last time it "
                f"{trouble}; mend the environment, or raise actor.max_restarts ({most})"
                + (f"\n{failed.traceback}" if failed else "")
            )
        wait_s = BACK_OFF_S * 2 ** (seat.strikes - 2) if seat.strikes > 1 else 0.0
        seat.next_try = time.monotonic() + wait_s
        self._complaints.append(
            f"actor {seat.index} was lost ({trouble}) and is replaced"
            + (f" in {wait_s:g} s" if wait_s else "")
        )

    def _replace(self, seat: Seat) -> None:
        """Seats the next incarnation, with a ring of its own, and repeats what it has to do."""
        seat.incarnation += 1
        self.restarts += 1
        old, self.rings[seat.index] = (
            self.rings[seat.index],
            self._ring(seat.index, seat.incarnation),
        )
        old.close()
        self._seat(seat)
        self._allowed = None  # its gate is told anew
        if seat.roams:
            self._tell(seat, Roam())
        elif seat.order is not None:
            self._tell(seat, seat.order)

    def close(self) -> None:
        """Lets everybody close its environments, and ends those who take too long."""
        if self._watchdog is not None:
            self._watchdog.close()
        hosts = [seat.host for seat in self.seats if seat.host is not None]
        deadline = time.monotonic() + CLOSE_S
        with contextlib.ExitStack() as stack:
            for ring in self.rings:
                stack.callback(ring.close)
            for host in hosts:
                host.send(Close())
                stack.callback(_stop, host, deadline)
            self.seats.clear()


def _stop(host: Host, deadline: float) -> None:
    host.stop(max(0.0, deadline - time.monotonic()))
