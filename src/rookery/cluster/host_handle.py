"""The learner's handle of one host worker: the process with a cluster host's actors and replay.

The handle stays the same when the host worker is restarted. The learner sends control messages;
answers arrive in the same order, and `hear` processes them without blocking. A host that has not
answered for `cluster.absent_s` counts as absent: the learner does not sample from it, and completes
batches without its rows (stored env steps), until it answers again. In sync mode the learner waits
for every host instead.

A `HostHandle` holds: the host that the worker was started on (`Placement`), the control messages
that it has not answered (`SentOrder`), the env steps its actors may play in async mode (`Pacing`),
and its failures (`Supervision`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rookery.actors.messages import ActorReport
from rookery.cluster import messages
from rookery.config.schema import Config, Mode
from rookery.engines.rpc import RemoteHandle, SharedObject
from rookery.errors import RoleFailed
from rookery.event import Span
from rookery.replay.buffer import FoundRows, ShardRequest, ShardStatus
from rookery.replay.replay import Inserted, Observed
from rookery.replay.saved_rows import RowBlock, RowRange
from rookery.replay.shards import seen
from rookery.runtime.supervision import Supervision
from rookery.types import Array, Rows

EMPTY = ShardStatus(0.0, RowRange(0, 0), 0.0, 0)


@dataclass
class Placement:
    """Where a host worker was started: the host, and the CPUs that Ray reserves for the worker."""

    node: str = ""  # id; none before the first start
    cpus: float = 0.0  # that Ray counts for it
    avoid: str | None = None  # the host on which the last worker fell silent
    placed_at: float = 0.0
    empty_since: float = 0.0  # when the last worker was lost


@dataclass
class Pacing:
    """Record of how many env steps a host's actors may still play, in async mode.

    The learner limits them with `SetTerms` messages, so that actors do not run far ahead of it.
    """

    open: bool = False  # terms were sent and not answered yet
    sent_at: float = 0.0
    full: bool = False  # whether the last answer brought more than half of the allowed rows
    env_steps: int = 0  # that the host has reported, ever
    _made: int | None = None  # rows that the limiter had allowed in total, at the last SetTerms
    _allowance: int = 0  # rows left of the last allowance

    def new_room(self, made: int) -> int:
        """Returns how many env steps the rate limiter has newly accepted since the last call.

        `made` is the total that the limiter (samples per insert) has accepted: the steps that all
        hosts have reported since the run began, plus those that it accepts now. The first call
        returns 0.
        """
        before, self._made = self._made, made
        return 0 if before is None else max(0, made - before)

    def answered(self, terms: messages.SetTerms, steps: int) -> None:
        """Records that the host has answered the `SetTerms` message `terms`.

        `steps` are the env steps in its answer: those played since its previous report.
        """
        self.open = False
        self.full = 2 * steps > self._allowance > 0
        self._allowance = terms.allowance - steps


@dataclass(eq=False)
class SentOrder:
    """A control message to a host worker, and its answer once that has arrived."""

    order: messages.HostOrder
    answer: messages.HostAnswer | None = None


@dataclass
class HostHandle:
    """The learner's handle of one host worker: the process with a host's actors and replay shard.

    It implements `Shard`, the interface for sampling from a part of the replay buffer. The numbers
    of its actors stay the same when the host worker is restarted.
    """

    place: int
    actors: tuple[int, ...]
    incarnations: tuple[int, ...]  # of the actors
    tag: int
    config: Config
    wait: Callable[[], None]  # waits until a message may have arrived
    watch: Supervision = field(init=False)
    host: RemoteHandle[messages.HostOrder, messages.HostAnswer] | None = None
    up: bool = False  # whether the present worker has answered
    placement: Placement = field(default_factory=Placement)
    pacing: Pacing = field(default_factory=Pacing)
    status: ShardStatus = EMPTY
    acknowledged: RowRange = EMPTY.extent  # rows that the learner knows of
    asked: SentOrder | None = None  # the last one whose answer the learner waited for
    copy: SentOrder | None = None  # of rows, in async mode; None: nothing is requested
    version: int = 0  # of the weights sent last
    recalled: messages.RestoreShard | None = None  # saved part of the shard, for the next worker
    unread: list[messages.HostReport] = field(default_factory=list)  # reports, warnings
    arrived: list[messages.HostReport] = field(default_factory=list)  # not inserted yet
    inserted: list[messages.HostReport] = field(default_factory=list)  # by the last `insert`
    of_peers: list[object] = field(default_factory=list)  # answers, not taken yet
    _requests: list[ShardRequest] = field(default_factory=list)  # for rows, not sent yet
    _asked_rows: deque[ShardRequest] = field(default_factory=deque)  # not answered yet
    _expected: deque[SentOrder] = field(default_factory=deque)  # not answered yet

    def __post_init__(self) -> None:
        most = self.config.actor.max_restarts
        self.watch = Supervision(self.where, max_restarts=most, remedy="see to that host")

    # As a shard of replay.

    @property
    def spread(self) -> float:
        return 0.0 if self._passed_over else self.status.spread

    @property
    def absent(self) -> bool:
        """Whether the host worker is lost, still starting, or silent for `cluster.absent_s`."""
        limit_s = self.config.cluster.absent_s
        return self.host is None or not self.up or self.host.silence_s > limit_s

    @property
    def _passed_over(self) -> bool:
        """Whether the learner leaves this host's replay shard out of sampling.

        In async mode: while the host is `absent`. In sync mode: only while the host has no worker,
        or a new one that has not answered yet; otherwise the learner waits until the worker
        answers.
        """
        missing = self.host is None or not self.up
        return self.absent if self.config.run.mode is Mode.ASYNC else missing

    def insert(self) -> Inserted:
        """Returns how many rows the host worker has inserted into replay since the last call.

        A row is one stored env step. The host worker inserts rows into its part of replay by itself
        and reports their number, so this method inserts none.
        """
        self.inserted, self.arrived = self.arrived, []
        parts = [report.inserted for report in self.inserted]
        return Inserted(-1, sum(part.count for part in parts), sum(part.steps for part in parts))

    def observed(self, inserted: Inserted) -> Observed | None:
        """Returns observations and returns of the rows that the last `insert` counted.

        They update the statistics that normalize observations and rewards.
        """
        return seen([report.observed for report in self.inserted])

    def newest_version(self, inserted: Inserted) -> int:
        return max(report.version for report in self.inserted)

    def ask(self, request: ShardRequest) -> None:
        self._requests.append(request)

    def post(self) -> None:
        """Sends all new requests for rows to the host worker in one control message."""
        if self._requests:
            questions = tuple((request.places, request.spread) for request in self._requests)
            self.send(messages.LookUpRows(questions))
            self._asked_rows += self._requests
            self._requests = []

    def answer(self, request: ShardRequest) -> FoundRows | None:
        """Waits for the requested rows; None if the host is absent, or was lost meanwhile."""
        self.post()
        while request.tag == self.tag and request.found is None and not self._passed_over:
            self.wait()
        return request.found if request.tag == self.tag else None

    def update_priorities(self, rows: Rows, td_error: Array) -> None:
        if not self._passed_over:
            self.send(messages.UpdatePriorities(rows, td_error))

    def request_copy(self, order: messages.CopyRows) -> None:
        """Requests copies of rows, unless the host is absent or a copy is requested already."""
        if self.copy is None and not self._passed_over:
            self.copy = self.send(order)

    @property
    def copying(self) -> bool:
        """Whether a requested copy of rows has not arrived, and the host is not absent."""
        return self.copy is not None and self.copy.answer is None and not self._passed_over

    def take_copy(self, saved: int) -> RowBlock | None:
        """Returns the requested copies of the rows from number `saved` on.

        Returns None if they have not arrived, or if they were requested from another number on:
        a checkpoint has saved a part of them meanwhile.
        """
        copy = self.copy
        if copy is None or not isinstance(copy.answer, RowBlock):
            return None
        self.copy = None
        same = isinstance(copy.order, messages.CopyRows) and copy.order.saved == saved
        return copy.answer if same else None

    # As a worker on another host.

    def send(self, order: messages.HostOrder, shared: SharedObject | None = None) -> SentOrder:
        """Sends a control message; does nothing where there is no host worker."""
        sent = SentOrder(order)
        self.resend(sent, shared)
        return sent

    def resend(self, sent: SentOrder, shared: SharedObject | None = None) -> None:
        if self.host is not None:
            self._expected.append(sent)
            self.host.send(sent.order, shared)

    @property
    def where(self) -> str:
        address = self.host.address if self.host is not None else None
        return f"host worker {self.place}" + (f" on {address}" if address else "")

    @property
    def owes(self) -> bool:
        """Whether the host has not answered all control messages yet."""
        return bool(self._expected)

    def owes_any(self, *kinds: type[messages.HostOrder]) -> bool:
        """Whether the host has not answered all control messages of these kinds yet."""
        return any(isinstance(sent.order, kinds) for sent in self._expected)

    @property
    def lending(self) -> int | None:
        """Number of other runs' replay rows that the learner has requested and the host still owes.

        None if the host worker has answered all such requests (`AskPeers`).
        """
        orders = [sent.order for sent in self._expected]
        asked = [order.rows for order in orders if isinstance(order, messages.AskPeers)]
        return sum(asked) if asked else None

    @property
    def slow(self) -> bool:
        """Whether an unanswered control message is one that may take long, such as a restore.

        A copy of rows between two checkpoints is not: its size is limited.
        """
        waiting = [own for own in self._expected if isinstance(own.order, messages.SlowOrder)]
        return any(own is not self.copy for own in waiting)

    @property
    def silence_s(self) -> float:
        """Seconds that the host's oldest unanswered control message has been waiting.

        It is 0 if there is none, and while the host's actors play in sync mode.
        """
        plays = self.owes_any(messages.PlayOnHost)
        return 0.0 if plays or self.host is None else self.host.silence_s

    @property
    def uncounted(self) -> int:
        """Env steps that the host worker has reported and `insert` has not counted yet."""
        return sum(report.inserted.steps for report in self.arrived)

    def hear(self) -> None:
        """Processes all messages received from the host; does not block."""
        while self.host is not None and self.watch.failure is None:
            message = self.host.receive(0.0)
            if message is None:
                return
            if isinstance(message, RoleFailed):
                self.watch.failed(message)
                return
            self._take(self._expected.popleft(), message)

    def _take(self, sent: SentOrder, answer: messages.HostAnswer) -> None:
        self.up, sent.answer, order = True, answer, sent.order
        if isinstance(answer, messages.HostReport | messages.HostDone):
            self.status = answer.status
        if isinstance(answer, messages.HostReport):
            self._take_report(order, answer)
        elif isinstance(answer, messages.HostDone) and isinstance(order, messages.AskPeers):
            self.of_peers.append(answer.of_peers)
        elif isinstance(answer, messages.HostDone):
            for found in answer.found:
                self._asked_rows.popleft().found = found
        if order is self.recalled:
            self.recalled = None  # it may be large

    def _take_report(self, order: messages.HostOrder, report: messages.HostReport) -> None:
        self.incarnations, self.acknowledged = report.incarnations, report.status.extent
        self.pacing.env_steps += report.inserted.steps
        self.arrived.append(report)
        self.unread.append(report)
        if report.inserted.steps:  # its actors can play
            self.watch.recovered()
            self.watch.proven = True
        if isinstance(order, messages.SetTerms):
            self.pacing.answered(order, report.inserted.steps)

    def empty(self, tag: int) -> None:
        """Resets the handle after its host worker was lost; drops unanswered control messages."""
        for waited in (self._requests, self._asked_rows, self._expected, self.of_peers):
            waited.clear()
        self.copy = None
        self.watch.started()
        self.host, self.up, self.pacing.open, self.version = None, False, False, 0
        self.status, self.acknowledged, self.tag = EMPTY, EMPTY.extent, tag


def shifted(report: ActorReport, by_s: float) -> ActorReport:
    """Returns an actor's report with the times of its trace (timed spans) moved by `by_s` seconds.

    It converts the clock of a host to that of the learner.
    """
    traced = report.traced
    if traced is None:
        return report
    spans = tuple(Span(a, began + by_s, ended + by_s) for a, began, ended in traced.spans)
    began, ended = traced.began + by_s, traced.ended + by_s
    return report._replace(traced=replace(traced, began=began, ended=ended, spans=spans))
