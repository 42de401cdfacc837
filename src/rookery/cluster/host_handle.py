"""The learner's handle of one host worker: the process with a cluster host's actors and replay.

The handle stays the same when the host worker is restarted. The learner sends control messages;
answers arrive in the same order, and `hear` processes them without blocking. A host that has not
answered for `cluster.absent_s` counts as absent: the learner does not sample from it, and completes
batches without its rows (stored env steps), until it answers again. In sync mode the learner waits
for every host instead.

A `HostHandle` holds: the host that the worker was started on (`Placement`), the sampling requests
to its replay shard (`ShardRequests`), the copy of the shard's unsaved rows that was requested
(`ShardCopy`), the env steps its actors may play in async mode (`Pacing`), and its failures
(`Supervision`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rookery.actors.messages import ActorReport
from rookery.cluster.messages import (
    AdoptRows,
    AskPeers,
    CopyRows,
    CutHostEpisodes,
    HostAnswer,
    HostDone,
    HostOrder,
    HostReport,
    LookUpRows,
    PeersAnswer,
    PlayOnHost,
    PublishWeights,
    RestoreActors,
    RestoreShard,
    RowsFound,
    SaveActors,
    SaveShard,
    SetTerms,
    ShardStatus,
    UpdatePriorities,
)
from rookery.engines.engine import RoleFailed
from rookery.engines.rpc import RemoteHandle, SharedObject
from rookery.event import Traced
from rookery.replay.buffer import FoundRows
from rookery.replay.replay import Inserted, Observed
from rookery.replay.saved_rows import RowBlock, RowRange
from rookery.runtime.supervision import Supervision
from rookery.types import Array, Floats, Rows

EMPTY = ShardStatus(0.0, RowRange(0, 0), 0.0, 0)
SLOW = (  # orders that may take any time
    PlayOnHost,
    CutHostEpisodes,
    SaveActors,
    SaveShard,
    CopyRows,
    RestoreShard,
    AdoptRows,
    RestoreActors,
)


@dataclass
class Placement:
    """Where a host worker was started: the host, and the CPUs that Ray reserves for the worker."""

    node: str | None = None
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

    def answered(self, terms: SetTerms, steps: int) -> None:
        """Records that the host has answered the `SetTerms` message `terms`.

        `steps` are the env steps in its answer: those played since its previous report.
        """
        self.open = False
        self.full = 2 * steps > self._allowance > 0
        self._allowance = terms.allowance - steps


class ShardRequests:
    """The learner's sampling requests to one host's replay shard, and the answers received.

    A replay shard is the part of the run's replay buffer that one host holds.
    """

    def __init__(self) -> None:
        self.unsent: list[tuple[Floats, float]] = []
        self.asked = 0  # requests so far
        self.open: deque[int] = deque()  # without an answer, in order
        self.answers: dict[int, FoundRows] = {}
        self.waived: set[int] = set()  # whose answers are not needed any more

    def ask(self, places: Floats, spread: float) -> int:
        """Queues a request to sample rows at random positions; returns the request's number.

        The positions `places` are in [0, spread). `spread` is the number of rows (stored env steps)
        in the host's replay shard, or the sum of their priorities.
        """
        self.unsent.append((places, spread))
        self.asked += 1
        self.open.append(self.asked)
        return self.asked

    def take(self, found: RowsFound) -> None:
        """Stores the sampled rows that the host returned, in the order of the requests."""
        for rows in found.answers:
            number = self.open.popleft()
            if number in self.waived:
                self.waived.discard(number)
            else:
                self.answers[number] = rows

    def clear(self) -> None:
        """Drops all sampling requests and answers, since the host worker was lost.

        New requests get the following numbers.
        """
        self.unsent = []
        for waited in (self.open, self.waived, self.answers):
            waited.clear()


@dataclass
class ShardCopy:
    """The learner's request in async mode for copies of a replay shard's unsaved rows."""

    order: CopyRows | None = None  # None: nothing is requested
    block: RowBlock | None = None  # the answer, once it has arrived


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
    wait: Callable[[], None]  # waits until a message may have arrived
    absent_s: float
    patient: bool  # whether the learner waits for this host until it is lost
    watch: Supervision
    host: RemoteHandle[HostOrder, HostAnswer] | None = None
    up: bool = False  # whether the present worker has answered
    placement: Placement = field(default_factory=Placement)
    pacing: Pacing = field(default_factory=Pacing)
    requests: ShardRequests = field(default_factory=ShardRequests)
    copy: ShardCopy = field(default_factory=ShardCopy)
    status: ShardStatus = EMPTY
    acknowledged: RowRange = EMPTY.extent  # rows that the learner knows of
    order: HostOrder | None = None  # whose answer the learner waits for
    reply: HostAnswer | None = None  # to it
    version: int = 0  # of the weights sent last
    recalled: RestoreShard | None = None  # saved part of the shard, for the next worker
    unread: list[HostReport] = field(default_factory=list)  # for actor reports and warnings
    arrived: list[HostReport] = field(default_factory=list)  # not inserted yet
    inserted: list[HostReport] = field(default_factory=list)  # by the last `insert`
    of_peers: list[object] = field(default_factory=list)  # answers, not taken yet
    _expected: deque[HostOrder] = field(default_factory=deque)  # orders, oldest first

    # As a shard of replay.

    @property
    def spread(self) -> float:
        return 0.0 if self._passed_over else self.status.spread

    @property
    def absent(self) -> bool:
        """Whether the host worker is lost, still starting, or silent for `cluster.absent_s`."""
        return self.host is None or not self.up or self.host.silence_s > self.absent_s

    @property
    def _passed_over(self) -> bool:
        """Whether the learner leaves this host's replay shard out of sampling.

        In async mode: while the host is `absent`. In sync mode: only while the host has no worker,
        or a new one that has not answered yet; otherwise the learner waits until the worker
        answers.
        """
        return (self.host is None or not self.up) if self.patient else self.absent

    def insert(self) -> Inserted:
        """Returns how many rows the host worker has inserted into replay since the last call.

        A row is one stored env step. The host worker inserts rows into its part of replay by itself
        and reports their number, so this method inserts none.
        """
        self.inserted, self.arrived = self.arrived, []
        parts = [report.inserted for report in self.inserted]
        return Inserted(-1, sum(part.count for part in parts), sum(part.steps for part in parts))

    @property
    def observed(self) -> list[Observed]:
        """Observations and returns of the rows that the last `insert` counted.

        They update the statistics that normalize observations and rewards.
        """
        return [report.observed for report in self.inserted if report.observed is not None]

    def ask(self, places: Floats, spread: float) -> int:
        return self.requests.ask(places, spread)

    def post(self) -> None:
        """Sends all queued sampling requests to the host worker in one control message."""
        if self.requests.unsent:
            self.send(LookUpRows(tuple(self.requests.unsent)))
            self.requests.unsent = []

    def answer(self, question: int) -> FoundRows | None:
        """Waits for the answer to a sampling request; None if the host is absent or was lost."""
        self.post()
        requests = self.requests
        while question not in requests.answers:
            if self._passed_over or question not in requests.open:
                requests.waived.add(question)
                return None
            self.wait()
        return requests.answers.pop(question)

    def update_priorities(self, rows: Rows, td_error: Array) -> None:
        if not self._passed_over:
            self.send(UpdatePriorities(rows, td_error))

    def request_copy(self, order: CopyRows) -> None:
        """Requests copies of rows, unless the host is absent or a copy is requested already."""
        if self.copy.order is None and not self._passed_over:
            self.copy.order = order
            self.send(order)

    @property
    def copying(self) -> bool:
        """Whether a requested copy of rows has not arrived, and the host is not absent."""
        return self.copy.order is not None and self.copy.block is None and not self._passed_over

    def take_copy(self, saved: int) -> RowBlock | None:
        """Returns the requested copies of the rows from number `saved` on.

        Returns None if they have not arrived, or if they were requested from another number on:
        a checkpoint has saved a part of them meanwhile.
        """
        order, block = self.copy.order, self.copy.block
        if order is None or block is None:
            return None
        self.copy = ShardCopy()
        return block if order.saved == saved else None

    # As a worker on another host.

    def send(self, order: HostOrder, shared: SharedObject | None = None) -> None:
        if self.host is not None:
            self._expected.append(order)
            self.host.send(order, shared)

    @property
    def where(self) -> str:
        address = self.host.address if self.host is not None else None
        return f"host worker {self.place}" + (f" on {address}" if address else "")

    @property
    def owes(self) -> bool:
        """Whether the host has not answered all control messages yet."""
        return bool(self._expected)

    @property
    def pulling(self) -> bool:
        return any(isinstance(order, PublishWeights) for order in self._expected)

    @property
    def lending(self) -> int | None:
        """Number of other runs' replay rows that the learner has requested and the host still owes.

        None if the host worker has answered all such requests (`AskPeers`).
        """
        asked = [order.rows for order in self._expected if isinstance(order, AskPeers)]
        return sum(asked) if asked else None

    @property
    def slow(self) -> bool:
        """Whether an unanswered control message is one that may take long, such as a restore.

        A copy of rows between two checkpoints is not: its size is limited.
        """
        return any(
            isinstance(order, SLOW) and order is not self.copy.order for order in self._expected
        )

    @property
    def silence_s(self) -> float:
        """Seconds that the host's oldest unanswered control message has been waiting.

        It is 0 if there is none, and while the host's actors play in sync mode.
        """
        plays = any(isinstance(order, PlayOnHost) for order in self._expected)
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

    def _take(self, order: HostOrder, answer: HostAnswer) -> None:
        self.up = True
        if isinstance(answer, HostReport | RowsFound | PeersAnswer | HostDone):
            self.status = answer.status
        if isinstance(answer, RowsFound):
            self.requests.take(answer)
        elif isinstance(answer, PeersAnswer):
            self.of_peers.append(answer.answer)
        elif isinstance(answer, HostReport):
            self._take_report(order, answer)
        elif isinstance(answer, RowBlock) and order is self.copy.order:
            self.copy.block = answer
        if order is self.recalled:
            self.recalled = None  # it may be large
        if order is self.order:
            self.order, self.reply = None, answer

    def _take_report(self, order: HostOrder, report: HostReport) -> None:
        self.incarnations, self.acknowledged = report.incarnations, report.status.extent
        self.pacing.env_steps += report.inserted.steps
        self.arrived.append(report)
        self.unread.append(report)
        if report.inserted.steps:  # its actors can play
            self.watch.recovered()
            self.watch.proven = True
        if isinstance(order, SetTerms):
            self.pacing.answered(order, report.inserted.steps)

    def empty(self, tag: int) -> None:
        """Resets the handle after its host worker was lost; drops unanswered control messages."""
        self.requests.clear()
        self._expected.clear()
        self.of_peers.clear()
        self.copy = ShardCopy()
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
    spans = tuple(
        span._replace(began=span.began + by_s, ended=span.ended + by_s) for span in traced.spans
    )
    moved: Traced = replace(
        traced, began=traced.began + by_s, ended=traced.ended + by_s, spans=spans
    )
    return report._replace(traced=moved)
