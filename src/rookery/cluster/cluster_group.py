"""The learner's control of all actors of a run on a Ray cluster.

The hosts run host workers: processes that each run a part of the actors and hold a shard (part) of
the replay buffer (`host_worker.py`). The learner sends control messages to host workers only; they
supervise their actors.

A host worker counts as lost when Ray reports that it or its host is gone, or after it has not
answered for `cluster.lost_s`. A new worker is then started on another host, or on the same host
once it is back. Its replay shard is restored from the last checkpoint; rows (env steps) stored
since then are counted as lost. Late answers of the old worker are ignored.
"""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from rookery.actors.actor_group import (
    ActorGroupState,
    SupervisedActors,
    epsilons_of,
    refuse_other_actors,
)
from rookery.actors.messages import ActorReport, ActorState, CutEpisodes, PlayFreely, SaveActor
from rookery.cluster import messages
from rookery.cluster.host_handle import HostHandle, shifted
from rookery.cluster.peers import peers_builder
from rookery.config.schema import Config
from rookery.engines.engine import CloseRole
from rookery.engines.ray import Cluster, RayNode
from rookery.engines.rpc import RemoteHandle, SharedObject
from rookery.errors import ConfigError, LostError
from rookery.replay.ring import row_bytes, schema_of
from rookery.types import Array, EnvSpec

WAIT_S = 0.05  # between two polls of all hosts while the learner waits for an answer
UNLIMITED = 64  # chunks of each actor between two SetTerms messages, without a rate limiter
TEND_S = 0.02  # between two SetTerms messages to a host of an async run
START_LOOK_S = 0.1  # the same, before the first rows
HUNGRY_S = 0.004  # the same, when the learner begins to wait for rows
PATIENT_S = 0.05  # the same, when it has waited for long
NODES_S = 2.0  # between two searches for new hosts
STORE_BYTES = 200 << 20  # of Ray's object store, for rows on their way to a checkpoint
BATCHES = 64  # sampled batches that the object store may hold
SLOWER = 10.0  # times `lost_s` that slow orders may last
ROOM_S = 15.0  # for Ray to find CPUs for a host worker; slow on a host that has just joined
CLOSE_S = 3.0  # for all hosts to close their environments


HostProcess: TypeAlias = RemoteHandle[messages.HostOrder, messages.HostAnswer]


def embark(config: Config, spec: EnvSpec, weights: Mapping[str, Array]) -> tuple[Cluster, Config]:
    """Starts or joins a run's Ray cluster; returns it, and the settings with the final `actor.num`.

    If `cluster.actors_per_node` is set, `actor.num` (the number of actors) becomes that times the
    number of hosts with CPUs.
    """
    weight = sum(array.nbytes for array in weights.values())
    batches = BATCHES * config.replay.batch_size * 2 * row_bytes(schema_of(spec)) * spec.frame_stack
    cluster = Cluster.open(
        config.cluster, cpus=config.actor.num, store_bytes=STORE_BYTES + 4 * weight + batches
    )
    each = config.cluster.actors_per_node
    if each is None:
        return cluster, config
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        nodes = max(1, len(usable(cluster)))
        stack.pop_all()
    return cluster, replace(config, actor=replace(config.actor, num=each * nodes))


class ClusterActors(SupervisedActors):
    """All actors of a run on a Ray cluster, as the learner controls them.

    It starts, messages and restarts the host workers: processes on the cluster's hosts, each of
    which runs a part of the actors and holds a shard (part) of the replay buffer.
    """

    def __init__(
        self,
        setup: messages.HostSetup,
        *,
        cluster: Cluster,
        saved: ActorGroupState | None = None,
        recall: Callable[[int], messages.RestoreShard | None] | None = None,
    ):
        """Starts the host workers: processes on the cluster's hosts, one per replay shard.

        `setup` holds what is the same for all of them; its weights are copied. `saved` is the
        actors' state in the checkpoint from which the run resumes.
        `recall(i)` returns replay shard i (part i of the replay buffer) as the newest checkpoint
        holds it, None if there is none. It is called to restore the shard of a lost host worker.
        """
        saved = saved or ActorGroupState(incarnations=())
        super().__init__(saved.progress)
        self.config, self.spec, self.cluster = setup.config, setup.spec, cluster
        self._shared: SharedObject | None = None  # the newest weights, in Ray's store
        self.lost_rows = self.acknowledged_rows = 0
        self.recall = recall or (lambda place: None)
        first = epsilons_of(self.config.randomness.first, self.config)
        self._allowed: tuple[bool, list[float]] = (True, first)
        self._self_driven = False
        self._room: int | None = None  # rows that the limiter takes; None: as many as there are
        self._looked = 0.0
        self._tags = itertools.count()
        self._reports: list[ActorReport] = []
        self.handles: list[HostHandle] = []
        nodes = usable(cluster)
        if not nodes:
            raise ConfigError(
                "the Ray cluster has no host with CPUs; start one with "
                "`ray start --address=HOST:PORT --num-cpus=N`"
            )
        num = self.config.actor.num
        shards = self.config.replay.shards or min(len(nodes), num)
        self._setup = setup._replace(shards=shards, weights=_copied(setup.weights))
        for place in range(shards):
            self._add(tuple(range(place, num, shards)), saved.incarnations)
        for handle in self.handles:
            self._place(handle, nodes)

    # Placing.

    def _add(self, actors: tuple[int, ...], incarnations: Sequence[int] = ()) -> None:
        known, place, tag = len(incarnations), len(self.handles), next(self._tags)
        before = tuple(incarnations[i] if i < known else 0 for i in actors)
        handle = HostHandle(place, actors, before, tag, self.config, self.wait_a_little)
        self.handles.append(handle)

    def _place(self, handle: HostHandle, nodes: Sequence[RayNode]) -> None:
        """Starts a host worker on the host among `nodes` that has the fewest host workers.

        If the previous worker of this handle stopped answering, its host is chosen only if there is
        no other.
        """
        load = Counter(other.placement.node for other in self.handles if other.host is not None)
        avoid = handle.placement.avoid
        node = min(nodes, key=lambda n: (n.id == avoid, load[n.id]))  # the first of equals
        handle.placement.cpus = self._share(handle, node, len(nodes))
        handle.placement.node = node.id
        self._start(handle)

    def _start(self, handle: HostHandle) -> None:
        """Starts the host worker of a handle on the host that was chosen for it.

        If it replaces a lost worker, it gets that worker's replay shard from the newest checkpoint,
        and the control message that the learner still waits for.
        """
        place, actors, placed = handle.place, handle.actors, handle.placement
        progress = tuple(self.progress.share(actors))
        setup = self._setup._replace(
            place=place, actors=actors, incarnations=handle.incarnations, progress=progress
        )
        handle.version, placed.placed_at = setup.version, time.monotonic()
        handle.watch.started()
        target, gpus = "rookery.cluster.host_worker:HostWorker", len(self.config.actor.devices)
        handle.host = self.cluster.start(
            target, setup, name=f"host-{place}", cpus=placed.cpus, gpus=gpus, node=placed.node
        )
        if handle.recalled is not None:
            handle.send(handle.recalled)
        if self._self_driven:
            handle.send(PlayFreely())
        if handle.asked is not None and handle.asked.answer is None:
            handle.resend(handle.asked)

    def _share(self, handle: HostHandle, node: RayNode, nodes: int) -> float:
        """Returns how many CPUs Ray is to reserve for a host worker.

        The number is one per actor, but no more than are free, and no more than an equal share of
        the host's CPUs if the run has more host workers than hosts.
        """
        crowd = -(-len(self.handles) // nodes)
        placed = [other.placement for other in self.handles if other.host is not None]
        left = node.resources["CPU"] - sum(p.cpus for p in placed if p.node == node.id)
        return max(0.0, min(float(len(handle.actors)), node.resources["CPU"] / crowd, left))

    @property
    def count(self) -> int:
        """Number of actors of all hosts, including hosts that have joined since the run began."""
        return sum(len(handle.actors) for handle in self.handles)

    @property
    def incarnations(self) -> list[int]:
        """How often each actor was restarted, in the order of actor numbers."""
        found = {n: i for b in self.handles for n, i in zip(b.actors, b.incarnations, strict=True)}
        return [found[number] for number in sorted(found)]

    def metrics(self) -> dict[str, float]:
        """Returns metrics for the log, by name: answering hosts, restarts of host workers, rows.

        A row is one env step stored in replay. The metrics count the rows inserted by all hosts,
        and the rows lost with hosts. Lost actors are counted by kind.
        """
        present = [handle for handle in self.handles if not handle.absent]
        return {
            "cluster/hosts": float(len(present)),
            "cluster/restarts": float(self.restarts),
            "cluster/acknowledged_rows": float(self.acknowledged_rows),
            "cluster/lost_rows": float(self.lost_rows),
            **super().metrics(),
        }

    @property
    def complete(self) -> bool:
        """Whether every host worker of the run answers.

        False while a host worker is lost, still starting, or silent for more than
        `cluster.absent_s`.
        """
        return not any(handle.absent for handle in self.handles)

    # In sync mode.

    def collect(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None = None
    ) -> Iterator[list[ActorReport]]:
        """Makes every actor play `env_steps` steps, or `episodes` whole episodes; yields reports.

        Used in sync mode. Yields one list, once all actors have played; their host workers have
        stored the env steps in replay by then. The list begins with the reports of the steps that
        `hold_open` made actors play.
        """
        earlier, self._reports = self._reports, []
        yield [*earlier, *self._played(env_steps, epsilons, episodes)]

    def _played(
        self, env_steps: int, epsilons: Sequence[float], episodes: int | None
    ) -> list[ActorReport]:
        orders = [messages.PlayOnHost(env_steps, episodes, _of(b, epsilons)) for b in self.handles]
        reports = [own for own in self.ask(orders) if isinstance(own, messages.HostReport)]
        return [actor for report in reports for actor in report.reports]

    def save(self) -> ActorGroupState:
        """Returns the state of the actors of all hosts, for a checkpoint."""
        states: dict[int, ActorState] = {}
        answers = self.ask([SaveActor() for _ in self.handles])
        for handle, answer in zip(self.handles, answers, strict=True):
            assert isinstance(answer, ActorGroupState), "the answer to SaveActor"
            states |= zip(handle.actors, answer.actors, strict=True)
        return ActorGroupState(self.incarnations, [states[number] for number in sorted(states)])

    def restore(self, state: ActorGroupState) -> None:
        """Restores the actors of all hosts from the state that `save` returned."""
        refuse_other_actors(state, len(self.incarnations))
        states = [tuple(state.actors[n] for n in handle.actors) for handle in self.handles]
        self.ask([messages.RestoreActors(own) for own in states])

    def cut(self) -> None:
        """Truncates the episodes in progress of all actors."""
        self.ask([CutEpisodes() for _ in self.handles])

    def ask(self, orders: Sequence[messages.HostOrder | None]) -> list[messages.HostAnswer]:
        """Sends control messages to host workers, waits for all answers, and returns them.

        Message i is for host worker i; None is not sent and has no answer. A host worker that is
        lost meanwhile is restarted and gets its message again.
        """
        sent = []
        for handle, order in zip(self.handles, orders, strict=False):  # others have joined later
            if order is not None:
                handle.asked = handle.send(order)
                sent.append(handle.asked)
        while any(own.answer is None for own in sent):
            self.wait_a_little()
        for handle in self.handles:
            handle.asked = None  # an order to restore a shard is large
        return [own.answer for own in sent if own.answer is not None]

    def settle(self) -> None:
        """Waits until all host workers have answered all control messages."""
        while any(handle.owes for handle in self.handles):
            self.wait_a_little()

    # In async mode.

    def start(self) -> None:
        """Makes every actor play continuously from now on (async mode)."""
        self._self_driven = True
        for handle in self.handles:
            handle.send(PlayFreely())

    def allow(self, go: bool, epsilons: Sequence[float], room: int | None = None) -> None:
        """Lets all actors play if `go`, otherwise pauses them; sets their epsilons.

        Each host worker gets this with its next `SetTerms` message. `room` is the number of env
        steps that the rate limiter (samples per insert) accepts now; None means no limit.
        """
        self._allowed = go, list(epsilons)
        self._room = room
        self._tend()

    def _tend(self, every_s: float = TEND_S) -> None:
        """Sends a `SetTerms` message (play or pause, epsilons, allowance) to each host that is due.

        The allowance is the number of env steps that a host's actors may play. A host that has
        answered the previous message gets the next one after `every_s` seconds, or at once if it
        has used more than half of its allowance.
        """
        now = time.monotonic()
        go, epsilons = self._allowed
        for handle in self.handles:
            pacing = handle.pacing
            due = pacing.full or now - pacing.sent_at >= every_s
            if due and not pacing.open and handle.host is not None:
                pacing.open, pacing.sent_at = True, now
                handle.send(messages.SetTerms(go, _of(handle, epsilons), self._allowance(handle)))

    def _allowance(self, handle: HostHandle) -> int:
        """Returns how many env steps a host's actors may play until the learner's next message.

        It is the host's equal share of the steps that the rate limiter (samples per insert) accepts
        now and, as a forecast, of twice those newly accepted since the last `SetTerms` message.
        Without a rate limiter it is about 64 chunks per actor (`actor.chunk` steps each).
        """
        actor = self.config.actor
        if self._room is None:
            return len(handle.actors) * UNLIMITED * (actor.chunk + actor.envs)
        room = max(0, self._room - self._uncounted)
        heard = sum(other.pacing.env_steps for other in self.handles)
        share = (room + 2 * handle.pacing.new_room(room + heard)) // len(self.handles)
        return max(share, actor.chunk if room else 0)

    def wait(self, timeout_s: float, rows: int = 1) -> None:
        """Waits up to `timeout_s` seconds until hosts report at least `rows` new env steps.

        While there are fewer, the learner asks the hosts less and less often, since each request
        costs CPU time on both sides.
        """
        deadline, every_s = time.monotonic() + timeout_s, self._pace_s
        while self._uncounted < rows and time.monotonic() < deadline:
            self._tend(every_s)
            self.wait_a_little(every_s)
            every_s = max(self._pace_s, min(2 * every_s, PATIENT_S))

    @property
    def _uncounted(self) -> int:
        return sum(handle.uncounted for handle in self.handles)

    @property
    def _pace_s(self) -> float:
        """Shortest interval in seconds of messages to a host while the learner waits for steps."""
        if not self.acknowledged_rows:
            return START_LOOK_S
        return TEND_S if self._room is None else HUNGRY_S

    def hold_open(self) -> None:
        """Lets actors play a little even if the rate limiter (samples per insert) pauses them.

        The learner's replay calls it while no host has stored env steps that can be sampled.
        """
        epsilons = self._allowed[1]
        self._allowed, self._room = (True, epsilons), None
        if self._self_driven:
            self._tend()
            self.wait_a_little()
        else:
            actor = self.config.actor
            self._reports += self._played(actor.chunk, epsilons, actor.chunk_episodes)

    def reports(self) -> list[ActorReport]:
        """Returns the actors' reports since the last call, and restarts lost host workers."""
        self.look()
        reports, self._reports = self._reports, []
        return reports

    # In both.

    def spread(self, version: int, weights: Mapping[str, Array]) -> None:
        """Sends new network weights to all hosts through Ray's object store.

        In async mode a host that is still loading earlier weights gets the newest once it is done.
        """
        self._setup = self._setup._replace(version=version, weights=_copied(weights))
        self._shared = None
        self._catch_up()

    def _catch_up(self) -> None:
        newest = self._setup.version
        for handle in self.handles:
            behind = handle.host is not None and handle.version < newest
            if behind and not (self._self_driven and handle.owes_any(messages.PublishWeights)):
                if self._shared is None:
                    self._shared = self.cluster.share(self._setup.weights)
                handle.version = newest
                handle.send(messages.PublishWeights(newest), self._shared)

    def wait_a_little(self, most_s: float = WAIT_S) -> None:
        """Waits up to `most_s` for messages from hosts, and processes them."""
        hosts = [handle.host for handle in self.handles if handle.host is not None]
        self.cluster.wait(hosts, most_s)
        self.look()

    def look(self) -> None:
        """Processes all messages received from host workers, and restarts lost host workers."""
        for handle in self.handles:
            handle.hear()
            for report in handle.unread:
                self._read(handle, report)
            handle.unread.clear()
            if (host := handle.host) is None:
                continue
            cpus, waited_s = handle.placement.cpus, time.monotonic() - handle.placement.placed_at
            if trouble := self._trouble(handle, host):
                self._lose(handle, host, trouble)
            elif cpus > 0 and host.node is None and waited_s > ROOM_S:  # Ray finds no free CPUs
                self._share_cpus(handle, host)
        if self._self_driven:
            self._catch_up()
        self._fill()

    def _read(self, handle: HostHandle, report: messages.HostReport) -> None:
        self.acknowledged_rows += report.inserted.count
        if self._self_driven:
            behind_s = time.monotonic() - report.clock
            self._reports += [shifted(own, behind_s) for own in report.reports]
        for own in report.reports:
            if own.progress is not None:
                self.progress.take(own.progress)
        self._warnings += [f"{handle.where}: {warning}" for warning in report.complaints]
        for loss in report.losses:
            self.tally.add(loss)

    def _share_cpus(self, handle: HostHandle, host: HostProcess) -> None:
        """Restarts a host worker without reserved CPUs, so that Ray can start it on a busy host."""
        handle.empty(next(self._tags))
        host.stop(0.0)
        cpus, handle.placement.cpus = handle.placement.cpus, 0.0
        self._warnings.append(
            f"host worker {handle.place} shares the CPUs of its host: {cpus:g} were not free"
        )
        self._start(handle)

    def _trouble(self, handle: HostHandle, host: HostProcess) -> str | None:
        if handle.watch.failure is not None:
            return handle.watch.failure.summary
        if not host.alive:
            return host.failure or "died"
        cluster = self.config.cluster
        if host.address is None and host.silence_s > cluster.start_s:
            return f"not started after {host.silence_s:.0f} s; its host may have no free CPUs"
        limit_s = cluster.lost_s if handle.up else cluster.start_s
        if handle.silence_s > limit_s * (SLOWER if handle.slow else 1.0):
            return f"no answer for {handle.silence_s:.0f} s"
        return None

    def _lose(self, handle: HostHandle, host: HostProcess, trouble: str) -> None:
        """Kills a host worker that counts as lost, and prepares its restart.

        Reads its replay shard (its part of the replay buffer) from the newest checkpoint, and
        counts the rows (env steps) stored since then as lost. Raises LostError after too many
        losses in a row, and ConfigError if the worker never worked and a restart would fail in the
        same way.
        """
        failure, where, extent = handle.watch.failure, handle.where, handle.acknowledged
        placement = handle.placement
        placement.avoid = placement.node if host.alive else None  # its host may be cut off
        handle.empty(next(self._tags))
        host.stop(0.0)
        if failure is not None and failure.final and not handle.watch.proven:
            raise ConfigError(failure.summary)
        handle.watch.name = where
        handle.watch.count(trouble, failure.traceback if failure else "")
        placement.empty_since = time.monotonic()
        handle.recalled = self.recall(handle.place)
        kept = handle.recalled.committed if handle.recalled is not None else 0
        asked = handle.asked
        if asked is not None and isinstance(asked.order, messages.SaveShard):
            # the checkpoint files end there now
            asked.order = messages.SaveShard(min(asked.order.saved, kept))
        lost = max(0, extent.committed - max(extent.oldest, kept))
        if self.config.algo.on_policy:
            lost = 0  # rows of rollouts are copied to the learner
        self.lost_rows += lost
        self._warnings.append(
            f"{where} was lost ({trouble}); its {len(handle.actors)} actors are restarted, "
            f"{lost} rows of its replay shard are lost"
        )

    def _fill(self) -> None:
        """Restarts lost host workers (each runs the actors of one host) once a host is available.

        With `cluster.actors_per_node`, also starts workers on hosts that have joined the cluster.
        """
        now = time.monotonic()
        empty = [b for b in self.handles if b.host is None and b.watch.due]
        grows = self.config.cluster.actors_per_node is not None
        if not empty and now - self._looked < NODES_S:
            return
        self._looked, nodes = now, usable(self.cluster)
        self._miss_head()
        if self.cluster.silence_s > 0:
            nodes = []  # nothing can be started without a head
        for handle in empty:
            handle.watch.next_try = now + NODES_S
            if nodes:
                handle.incarnations = tuple(own + 1 for own in handle.incarnations)
                self._place(handle, nodes)
                self.restarts += 1
        taken = {b.placement.node for b in self.handles if b.host is not None}
        for node in nodes if grows else ():
            if node.id not in taken:
                self._welcome(node)
        self._refuse_solitude(now)

    def _miss_head(self) -> None:
        """Raises LostError if the head of the Ray cluster has not answered for `cluster.lost_s`."""
        silence_s = self.cluster.silence_s
        if silence_s > self.config.cluster.lost_s:
            raise LostError(
                f"the head of the Ray cluster has not answered for {silence_s:.0f} s; start one "
                "again, and its hosts, then `rookery train --resume RUN --address HOST:PORT` "
                "resumes from the last checkpoint"
            )

    def _refuse_solitude(self, now: float) -> None:
        """Raises LostError if no host of the run has had a host worker for `cluster.start_s`."""
        limit_s = self.config.cluster.start_s
        if all(b.host is None and now - b.placement.empty_since > limit_s for b in self.handles):
            raise LostError(
                f"no host of the Ray cluster has come back within {limit_s:.0f} s; start it again, "
                "then `rookery train --resume` resumes from the last checkpoint"
            )

    def _welcome(self, node: RayNode) -> None:
        first = max(number for handle in self.handles for number in handle.actors) + 1
        more = self.config.cluster.actors_per_node or 1
        self._add(tuple(range(first, first + more)))
        self._place(self.handles[-1], [node])
        self._warnings.append(f"{node.name} ({node.address}) joined with {more} actors")

    def close(self) -> None:
        """Ends all host workers and the connection to the Ray cluster.

        Host workers get 3 s to close their environments, and are killed then.
        """
        deadline = time.monotonic() + CLOSE_S
        there = [(handle.host, handle.up) for handle in self.handles if handle.host is not None]
        with contextlib.ExitStack() as stack:
            if self._setup.identity is not None:  # files that killed host workers left in the pool
                stack.callback(peers_builder(self.config).clear, self.config)
            stack.callback(self.cluster.close)
            for host, up in there:  # one that is still starting has nothing to close
                stack.callback(_stop, host, deadline if up else 0.0)
                if up:
                    host.send(CloseRole())  # all at once: no host waits for another


def _stop(host: HostProcess, deadline: float) -> None:
    host.stop(max(0.0, deadline - time.monotonic()))


def usable(cluster: Cluster) -> list[RayNode]:
    """Returns the live hosts of the cluster that have CPUs."""
    return [node for node in cluster.nodes() if node.resources.get("CPU", 0) > 0]


def _copied(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Returns copies of the weights, since gradient steps change the learner's arrays in place."""
    return {name: array.copy() for name, array in weights.items()}


def _of(handle: HostHandle, epsilons: Sequence[float]) -> tuple[float, ...]:
    """Returns the epsilons of the actors of one host.

    Actor number n gets `epsilons[n]`. Actors of hosts that joined later have numbers beyond the end
    of the list, and begin again at `epsilons[0]`.
    """
    return tuple(epsilons[number % len(epsilons)] for number in handle.actors)
