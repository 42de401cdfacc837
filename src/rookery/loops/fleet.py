"""The fleet: a run's actors on the hosts of a cluster. To a loop it is a `Crew`.

Each host has a station with its share of the actors and a shard of replay; the learner talks to
stations and never to their actors, which are looked after where they live (`station.py`).

A station is lost when Ray says that its host or its process is gone, or after `cluster.lost_s` of
silence. It is put on another host, or on the same one when it comes back, with the next
incarnations of its actors; its shard gets back what the last checkpoint holds of it, and the rest
is counted as lost. What the old one may still do reaches nobody: its calls are not answered.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rookery.actor import Actor
from rookery.config.schema import Config, Mode
from rookery.engines.interface import Close
from rookery.engines.ray import Cluster, Node
from rookery.engines.remote import Host
from rookery.errors import CheckpointError, ConfigError, LostError, noted
from rookery.loops.berth import Berth, shifted
from rookery.loops.crew import Dealt, rungs
from rookery.loops.player import Report
from rookery.loops.progress import Progress
from rookery.loops.station import (
    Badge,
    Brought,
    Cut,
    Deal,
    Play,
    Pull,
    Restore,
    Roam,
    Seat,
    Setup,
    Tend,
)
from rookery.manage.patience import back_off_s
from rookery.replay.ring import row_bytes, schema_of
from rookery.sharing import remains
from rookery.types import Array, EnvSpec

WAIT_S = 0.05  # between two looks at everybody while something is waited for
UNLIMITED = 64  # chunks of each actor between two rounds, where no limiter counts them
TEND_S = 0.02  # between two rounds of an async run, for each station
START_LOOK_S = 0.1  # before the first rows
HUNGRY_S = 0.004  # and where the learner waits for rows
NODES_S = 2.0  # between two looks at which hosts there are
STORE_BYTES = 200 << 20  # of Ray's object store, for rows on their way to a checkpoint
BATCHES = 64  # drawn batches that may lie in it
SLOWER = 10.0  # times `lost_s` may orders last that have much to do
ROOM_S = 5.0  # for Ray to find CPUs for a station
CLOSE_S = 3.0  # for everybody to close its environments


def embark(config: Config, spec: EnvSpec, weights: Mapping[str, Array]) -> tuple[Cluster, Config]:
    """Starts or joins a cluster; returns the settings with the number of actors it is to have."""
    weight = sum(array.nbytes for array in weights.values())
    batches = BATCHES * config.replay.batch * 2 * row_bytes(schema_of(spec)) * spec.frame_stack
    cluster = Cluster.open(
        config.cluster, cpus=config.actor.num, store_bytes=STORE_BYTES + 4 * weight + batches
    )
    each = config.cluster.actors_per_node
    if each is not None:
        nodes = max(1, len(usable(cluster)))
        config = replace(config, actor=replace(config.actor, num=each * nodes))
    return cluster, config


class Fleet:
    """Places stations, talks to them, replaces them."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        *,
        cluster: Cluster,
        weights: dict[str, Array],
        version: int,
        factory: Any = None,
        incarnations: Sequence[int] = (),
        badge: Badge | None = None,
        progress: Iterable[Sequence[Any]] = (),
    ):
        self.config, self.spec, self.cluster = config, spec, cluster
        self._factory, self._badge = factory, badge
        self._weights, self._version = weights, version
        self._parcel: Any = None  # of that version
        self.progress = Progress(progress)  # in async
        self.restarts = self.lost_rows = self.acknowledged_rows = 0
        self.recall: Callable[[int], Restore | None] = lambda place: None  # from a checkpoint
        self._complaints: list[str] = []
        self._allowed: tuple[bool, list[float]] = (True, rungs(config.randomness.first, config))
        self._roams = False
        self._room: int | None = None  # rows that the limiter takes; None: as many as there are
        self._looked = 0.0
        self._tags = 0
        self._reports: list[Report] = []
        self.berths: list[Berth] = []
        nodes = usable(cluster)
        if not nodes:
            raise ConfigError(
                "the Ray cluster has no host with CPUs; start one with "
                "`ray start --address=HOST:PORT --num-cpus=N`"
            )
        self.shards = config.replay.shards or min(len(nodes), config.actor.num)
        for place in range(self.shards):
            self._add(tuple(range(place, config.actor.num, self.shards)), incarnations)
        for berth in self.berths:
            self._place(berth, nodes)

    # Placing.

    def _add(self, actors: tuple[int, ...], incarnations: Sequence[int] = ()) -> None:
        known = len(incarnations)
        self.berths.append(
            Berth(
                place=len(self.berths),
                actors=actors,
                incarnations=tuple(incarnations[i] if i < known else 0 for i in actors),
                tag=self._next_tag(),
                wait=self.wait_a_little,
                absent_s=self.config.cluster.absent_s,
                patient=self.config.run.mode is not Mode.ASYNC,
            )
        )

    def _next_tag(self) -> int:
        self._tags += 1
        return self._tags - 1

    def _place(self, berth: Berth, nodes: Sequence[Node]) -> None:
        """Puts a station on the host with the fewest of them."""
        load = Counter(other.node for other in self.berths if other.host is not None)
        node = min(nodes, key=lambda n: (n.id == berth.shunned, load[n.id]))  # the first of equals
        berth.cpus = self._share(berth, node, len(nodes))
        berth.node = node.id
        self._start(berth)

    def _start(self, berth: Berth) -> None:
        """Starts a station where its berth is, and tells it what is going on."""
        setup = Setup(
            config=self.config,
            spec=self.spec,
            factory=self._factory,
            actors=berth.actors,
            incarnations=berth.incarnations,
            shards=self.shards,
            version=self._version,
            weights=self._weights,
            place=berth.place,
            badge=self._badge,
            progress=tuple(self.progress.share(berth.actors)),
        )
        berth.version, berth.placed = self._version, time.monotonic()
        berth.host = self.cluster.start(
            "rookery.loops.station:Station",
            setup,
            name=f"station-{berth.place}",
            cpus=berth.cpus,
            gpus=float(len(self.config.actor.devices)),
            node=berth.node,
        )
        if berth.recalled is not None:
            berth.send(berth.recalled)
        if self._roams:
            berth.send(Roam())
        if berth.order is not None:
            berth.send(berth.order)

    def _share(self, berth: Berth, node: Node, nodes: int) -> float:
        """Returns the CPUs to ask Ray for: no more than others leave, or it would never start."""
        crowd = -(-len(self.berths) // nodes)
        here = [b for b in self.berths if b.host is not None and b.node == node.id]
        left = node.resources["CPU"] - sum(other.cpus for other in here)
        return max(0.0, min(float(len(berth.actors)), node.resources["CPU"] / crowd, left))

    # What a crew can say about itself.

    @property
    def actors(self) -> list[Actor]:
        """None of them lives in this process."""
        return []

    @property
    def pids(self) -> dict[str, int]:
        """None of them is a process of this host that we may look at."""
        return {}

    @property
    def incarnations(self) -> list[int]:
        """By the actors' numbers."""
        found = {n: i for b in self.berths for n, i in zip(b.actors, b.incarnations, strict=True)}
        return [found[number] for number in sorted(found)]

    def metrics(self) -> dict[str, float]:
        """What is worth a line in the record."""
        present = [berth for berth in self.berths if not berth.absent]
        return {
            "cluster/stations": float(len(present)),
            "cluster/restarts": float(self.restarts),
            "cluster/acknowledged_rows": float(self.acknowledged_rows),
            "cluster/lost_rows": float(self.lost_rows),
        }

    def complaints(self) -> Iterator[str]:
        """Yields what went wrong since the last call."""
        while self._complaints:
            yield self._complaints.pop(0)

    @property
    def complete(self) -> bool:
        """Can everybody be asked now?"""
        return not any(berth.absent for berth in self.berths)

    # In sync mode.

    def play(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[Report]]:
        """Has everybody play a chunk. Stations drain by themselves."""
        orders = {b.place: Play(env_steps, episodes, _of(b, epsilons)) for b in self.berths}
        yield [report for brought in self.ask(orders).values() for report in brought.reports]

    def save(self) -> Dealt:
        """Returns the state of all actors, as a `Crew` does."""
        dealt = self.ask({berth.place: Deal() for berth in self.berths})
        numbers, arrays = dict[int, Any](), dict[str, Array]()
        for berth in self.berths:
            own: Dealt = dealt[berth.place]
            numbers |= zip(berth.actors, own.numbers["actors"], strict=True)
            for name, array in own.arrays.items():
                seat, _, rest = name.partition(".")
                arrays[f"{berth.actors[int(seat)]}.{rest}"] = array
        return Dealt(
            {
                "incarnations": self.incarnations,
                "actors": [numbers[number] for number in sorted(numbers)],
            },
            arrays,
            all(own.exact for own in dealt.values()),
        )

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Goes on from what `save` returned."""
        if len(numbers["actors"]) != len(self.incarnations):
            raise CheckpointError(
                f"the checkpoint has {len(numbers['actors'])} actors, this run has "
                f"{len(self.incarnations)}; resume with --actors {len(numbers['actors'])}"
            )
        self.ask({b.place: _seat(b, numbers["actors"], arrays) for b in self.berths})

    def cut(self) -> None:
        """Ends everybody's open episodes."""
        self.ask({berth.place: Cut() for berth in self.berths})

    def ask(self, orders: Mapping[int, Any]) -> dict[int, Any]:
        """Hands out orders by place and waits for all the answers.

        Whoever is lost meanwhile is replaced, and its order repeated.
        """
        asked = [self.berths[place] for place in orders]
        for berth in asked:
            berth.order, berth.reply = orders[berth.place], None
            berth.send(berth.order)
        while any(berth.order is not None for berth in asked):
            self.wait_a_little()
        return {berth.place: berth.reply for berth in asked}

    def settle(self) -> None:
        """Waits until everybody has done all it was told."""
        while any(berth.owes for berth in self.berths):
            self.wait_a_little()

    # In async mode.

    def roam(self) -> None:
        """Has everybody play by itself from now on."""
        self._roams = True
        for berth in self.berths:
            berth.send(Roam())

    def allow(self, go: bool, epsilons: Sequence[float], room: int | None = None) -> None:
        """Opens or closes everybody's gate, at the next round.

        `room` is how many rows the limiter would take now; the learner makes more meanwhile.
        """
        self._allowed = go, list(epsilons)
        self._room = room
        self._tend()

    def _tend(self, every_s: float = TEND_S) -> None:
        """Begins a round where it is time for one: who has answered the last one is asked anew."""
        now = time.monotonic()
        go, epsilons = self._allowed
        for berth in self.berths:
            due = berth.full or now - berth.tended >= every_s
            if due and not berth.tending and berth.host is not None:
                berth.tending, berth.tended = True, now
                berth.send(Tend(go, _of(berth, epsilons), self._allowance(berth)))

    def _allowance(self, berth: Berth) -> int:
        """Its part of the limiter's room: behind a learner that does not look, actors halt.

        Two rounds are foreseen, at the learner's pace: what comes with the answer to this one, and
        what is played until the next.
        """
        actor = self.config.actor
        if self._room is None:
            return len(berth.actors) * UNLIMITED * (actor.chunk + actor.envs)
        room = max(0, self._room - sum(other.uncounted for other in self.berths))
        heard = sum(other.heard for other in self.berths)
        share = (room + 2 * berth.appetite(room + heard)) // len(self.berths)
        return max(share, actor.chunk if room else 0)

    def wait(self, timeout_s: float, rows: int = 1) -> None:
        """Waits for rows, however few: stations send many at a time."""
        deadline = time.monotonic() + timeout_s
        while not any(berth.uncounted for berth in self.berths) and time.monotonic() < deadline:
            every_s = self._pace_s
            self._tend(every_s)
            self.wait_a_little(every_s)

    @property
    def _pace_s(self) -> float:
        """Between two rounds while the learner waits. Whoever is starting is not disturbed."""
        if not self.acknowledged_rows:
            return START_LOOK_S
        return TEND_S if self._room is None else HUNGRY_S

    def hold_open(self) -> None:
        """Lets everybody play a little, whatever the limiter says: there is nothing to draw."""
        epsilons = self._allowed[1]
        self._allowed, self._room = (True, epsilons), None
        if self._roams:
            self._tend()
            self.wait_a_little()
        else:
            list(self.play(self.config.actor.chunk, epsilons, self.config.actor.chunk_episodes))

    def news(self) -> list[Report]:
        """Returns what was reported since the last call, and looks after everybody."""
        self.look()
        reports, self._reports = self._reports, []
        return reports

    # In both.

    def spread(self, version: int, weights: Mapping[str, Array]) -> None:
        """Sends new weights, by reference, to all who are not busy with the last ones."""
        self._version, self._weights, self._parcel = version, dict(weights), None
        self._catch_up()

    def _catch_up(self) -> None:
        for berth in self.berths:
            behind = berth.host is not None and berth.version < self._version
            if behind and not (self._roams and berth.pulling):
                if self._parcel is None:
                    self._parcel = self.cluster.share(self._weights)
                berth.version = self._version
                berth.send(Pull(self._version), self._parcel)

    def wait_a_little(self, most_s: float = WAIT_S) -> None:
        """Waits until something may have come, and takes it in."""
        hosts = [berth.host for berth in self.berths if berth.host is not None]
        self.cluster.wait(hosts, most_s)
        self.look()

    def look(self) -> None:
        """Takes in what has come, and looks after everybody."""
        for berth in self.berths:
            berth.hear()
            for brought in berth.unread:
                self._read(berth, brought)
            berth.unread.clear()
            if berth.host is not None and (trouble := self._trouble(berth, berth.host)):
                self._lose(berth, berth.host, trouble)
            elif berth.host is not None and self._waits_for_room(berth, berth.host):
                self._squeeze_in(berth, berth.host)
        if self._roams:
            self._catch_up()
        self._fill()

    def _read(self, berth: Berth, brought: Brought) -> None:
        self.acknowledged_rows += brought.drained.count
        if self._roams:
            behind_s = time.monotonic() - brought.clock
            self._reports += [shifted(report, behind_s) for report in brought.reports]
        for report in brought.reports:
            if report.progress is not None:
                self.progress.take(report.progress)
        self._complaints += [f"{berth.where}: {complaint}" for complaint in brought.complaints]

    def _waits_for_room(self, berth: Berth, host: Host) -> bool:
        """Does Ray wait for CPUs that others have?"""
        waited_s = time.monotonic() - berth.placed
        return berth.cpus > 0 and host.node is None and waited_s > ROOM_S

    def _squeeze_in(self, berth: Berth, host: Host) -> None:
        """Starts a station without CPUs of its own: it shares those of the host."""
        berth.empty(self._next_tag())
        host.stop(0.0)
        self._complaints.append(
            f"station {berth.place} shares the CPUs of its host: {berth.cpus:g} were not free"
        )
        berth.cpus = 0.0
        self._start(berth)

    def _trouble(self, berth: Berth, host: Host) -> str | None:
        if berth.failed is not None:
            return berth.failed.summary
        if not host.alive:
            return host.failure or "died"
        cluster = self.config.cluster
        if host.address is None and host.silence_s > cluster.start_s:
            return f"not there after {host.silence_s:.0f} s; has its host CPUs that are free?"
        limit_s = cluster.lost_s if berth.up else cluster.start_s
        if berth.silence_s > limit_s * (SLOWER if berth.slow else 1.0):
            return f"no answer for {berth.silence_s:.0f} s"
        return None

    def _lose(self, berth: Berth, host: Host, trouble: str) -> None:
        """Ends what is left of a station, and decides what follows."""
        failed, where, extent = berth.failed, berth.where, berth.acknowledged
        berth.shunned = berth.node if host.alive else None  # its host may be cut off
        berth.empty(self._next_tag())
        host.stop(0.0)
        if failed is not None and failed.final and not berth.proven:
            raise ConfigError(failed.summary)
        self._count(berth, where, trouble, failed.traceback if failed else "")
        berth.recalled = self.recall(berth.place)
        kept = int(berth.recalled.numbers["committed"]) if berth.recalled is not None else 0
        lost = max(0, extent.committed - max(extent.oldest, kept))
        if self.config.algo.on_policy:
            lost = 0  # rollouts are brought to the learner: what it was told of it has
        self.lost_rows += lost
        self._complaints.append(
            f"{where} was lost ({trouble}); its {len(berth.actors)} actors are placed anew, "
            f"{lost} rows of replay are gone with it"
        )

    def _count(self, berth: Berth, where: str, trouble: str, its_traceback: str) -> None:
        """Says when to try again, or that this was once too often."""
        berth.strikes += 1
        most = self.config.actor.max_restarts
        if berth.strikes > most:
            lost = LostError(
                f"{where} was lost {berth.strikes} times in a row, the last time: {trouble}; see "
                f"to that host, or raise actor.max_restarts ({most})"
            )
            raise noted(lost, its_traceback)
        berth.empty_since = time.monotonic()
        berth.next_try = berth.empty_since + back_off_s(berth.strikes)

    def _fill(self) -> None:
        """Puts somebody into every empty berth, and berths onto hosts that have come."""
        now = time.monotonic()
        empty = [b for b in self.berths if b.host is None and now >= b.next_try]
        grows = self.config.cluster.actors_per_node is not None
        if not empty and now - self._looked < NODES_S:
            return
        self._looked, nodes = now, usable(self.cluster)
        self._miss_head()
        if self.cluster.silence_s > 0:
            nodes = []  # whoever starts something waits until there is a head
        for berth in empty:
            berth.next_try = now + NODES_S
            if nodes:
                self._replace(berth, nodes)
        taken = {berth.node for berth in self.berths if berth.host is not None}
        for node in nodes if grows else ():
            if node.id not in taken:
                self._welcome(node)
        self._refuse_solitude(now)

    def _miss_head(self) -> None:
        """Without a head nobody can be replaced, and its nodes end themselves after a minute."""
        silence_s = self.cluster.silence_s
        if silence_s > self.config.cluster.lost_s:
            raise LostError(
                f"the head of the Ray cluster has not answered for {silence_s:.0f} s; start one "
                "again, and its hosts, then `rookery train --resume RUN --address HOST:PORT` goes "
                "on from the last checkpoint"
            )

    def _refuse_solitude(self, now: float) -> None:
        """Where no host is left, waits a while for one, and gives up."""
        limit_s = self.config.cluster.start_s
        if all(b.host is None and now - b.empty_since > limit_s for b in self.berths):
            raise LostError(
                f"no host of the Ray cluster has come back within {limit_s:.0f} s; start it again, "
                "then `rookery train --resume` goes on from the last checkpoint"
            )

    def _replace(self, berth: Berth, nodes: Sequence[Node]) -> None:
        berth.incarnations = tuple(incarnation + 1 for incarnation in berth.incarnations)
        self._place(berth, nodes)
        self.restarts += 1

    def _welcome(self, node: Node) -> None:
        first = max(number for berth in self.berths for number in berth.actors) + 1
        more = self.config.cluster.actors_per_node or 1
        self._add(tuple(range(first, first + more)))
        self._place(self.berths[-1], [node])
        self._complaints.append(f"{node.name} ({node.address}) joined with {more} actors")

    def close(self) -> None:
        """Lets everybody close its environments, and ends those who take too long."""
        deadline = time.monotonic() + CLOSE_S
        there = [(berth, berth.host) for berth in self.berths if berth.host is not None]
        with contextlib.ExitStack() as stack:
            stack.callback(self._tidy)
            stack.callback(self.cluster.close)
            for berth, host in there:
                stack.callback(self._stop, host, deadline if berth.up else 0.0)
                if berth.up:
                    host.send(Close())  # all at once: nobody waits for another one's end

    def _tidy(self) -> None:
        """Removes what stations that were killed have left in the pool of this host."""
        if self._badge is not None and self.config.sharing.pool is not None:
            pool = Path(self.config.sharing.pool)
            remains.clear(pool)
            remains.dissolve(pool)

    def _stop(self, host: Host, deadline: float) -> None:
        host.stop(max(0.0, deadline - time.monotonic()))


def usable(cluster: Cluster) -> list[Node]:
    """Returns the live hosts that have CPUs."""
    return [node for node in cluster.nodes() if node.resources.get("CPU", 0) > 0]


def _of(berth: Berth, epsilons: Sequence[float]) -> tuple[float, ...]:
    """Those of its actors; ones that came later take turns at the others' places."""
    return tuple(epsilons[number % len(epsilons)] for number in berth.actors)


def _seat(berth: Berth, actors: Sequence[Any], arrays: Mapping[str, Array]) -> Seat:
    own: dict[str, Array] = {}
    for seat, number in enumerate(berth.actors):
        prefix = f"{number}."
        own |= {
            f"{seat}.{name[len(prefix) :]}": array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
    return Seat({"actors": [actors[number] for number in berth.actors]}, own)
