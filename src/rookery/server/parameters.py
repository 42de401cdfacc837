"""The parameter server: one set of parameters, many workers that push gradients.

    server = ParameterServer(arrays, "average", update_frequency=1, optimizer="adam", lr=3e-4)
    server.register_worker("a")
    version, arrays = server.get_parameters()
    receipt = server.push_gradients("a", gradients, version=version, push_id="a-17")
    newer = server.get_parameters(newer_than=version)      # None: nothing newer yet

*Asynchronous* (the default): every `update_frequency` accepted pushes are aggregated and applied;
1 applies each at once (A3C, Mnih et al. 2016). Updates of older versions are dropped or discounted.

*Synchronous*: workers push once a round. A round closes when the quorum has pushed (None: all
registered workers), or `deadline_s` after its first push: then with what is there, if that is the
quorum (None: more than half of the registered), and else it is skipped. Nobody waits here: a
deadline is noticed by whoever calls next, and by the clock that only goes forward.

With a `checkpoint_path` all of it survives a `kill -9`: what was acknowledged is on the disk, and
the next server with that path goes on where this one was, with the same version.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from beartype import BeartypeConf, beartype

from rookery.errors import ConfigError, ProtocolError, RefusedError
from rookery.server import aggregate
from rookery.server.aggregate import WEIGHTED, Aggregation, Liars
from rookery.server.journal import Record
from rookery.server.layout import Layout, Named
from rookery.server.roster import Roster, check_name
from rookery.server.rules import Rules, Staleness, choose
from rookery.server.stepper import Maker, Stepper
from rookery.types import Array, Floats, Weights

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # 1 will do for a float
Parameters: TypeAlias = Weights  # (version, arrays), the arrays read-only
Listener: TypeAlias = Callable[[Parameters], None]


class Receipt(NamedTuple):
    """What became of a push.

    | code | accepted | means |
    |---|---|---|
    | ok | yes | it counts |
    | duplicate | yes | it was taken before, and counts once |
    | finite | no | NaN or Inf in it; several in a row end in quarantine |
    | stale | no | computed with a version that is too old, or not of this server |
    | round | no | the worker has pushed in this round already |
    """

    accepted: bool
    code: str
    version: int  # of the server, afterwards


class Pending(NamedTuple):
    """An accepted update that has not been applied yet."""

    worker: str
    weight: float
    update: Floats  # [P], discounted already


class ParameterServer:
    """Parameters with a version, moved by what workers push. All methods may be called at once.

    An update that does not fit (names, shapes, dtypes, weight, an unknown or quarantined worker)
    is a RefusedError with a `code`; one that fits and does not count is a Receipt that says so.
    """

    @checked
    def __init__(
        self,
        initial_parameters: Named,
        aggregation_method: str = "average",
        update_frequency: int = 10,
        save_frequency: int = 100,
        checkpoint_path: str | Path | None = None,
        *,
        optimizer: str | Maker = "sgd",
        lr: float = 0.001,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        synchronous: bool = False,
        quorum: int | None = None,
        deadline_s: float = 30.0,
        staleness: str = "discount",
        max_staleness: int = 16,
        max_weight: float = 1e6,
        quarantine_after: int = 3,
        trim: float = 0.1,
        byzantine: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.rules = Rules(
            aggregation=Aggregation(choose(Aggregation, aggregation_method, "aggregation_method")),
            update_frequency=update_frequency,
            save_frequency=save_frequency,
            synchronous=synchronous,
            quorum=quorum,
            deadline_s=deadline_s,
            staleness=Staleness(choose(Staleness, staleness, "staleness")),
            max_staleness=max_staleness,
            max_weight=max_weight,
            quarantine_after=quarantine_after,
            liars=Liars(trim, byzantine),
        )
        self._layout = Layout.of(initial_parameters)
        start = self._layout.start(initial_parameters)
        if not np.isfinite(start).all():
            raise ConfigError("initial_parameters have NaN or Inf in them; start from finite ones")
        self._stepper = Stepper(start, self._layout, optimizer, lr, optimizer_kwargs or {})
        self._roster = Roster()
        self._pending: list[Pending] = []
        self._opened = 0.0  # when the round got its first push
        self._version = 0
        self._counts: Counter[str] = Counter()
        self._listeners: list[Listener] = []
        self._service: Any = None
        self._clock, self._began = clock, clock()
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._publish()

    @property
    def version(self) -> int:
        """The number of updates applied so far; it never falls, over restarts neither."""
        return self._shown.version

    # Workers.

    @checked
    def register_worker(self, worker: str) -> int:
        """Lets a worker push; returns the version. To register twice is to register once."""
        check_name(worker, "worker's name")
        with self._turn():
            if not self._roster.knows(worker):
                self._commit([Record("join", {"worker": worker})])
            return self._version

    @checked
    def unregister_worker(self, worker: str) -> None:
        """Waits for a worker no longer. What it pushed counts; quarantine outlasts it."""
        with self._turn():
            if self._roster.knows(worker):
                self._commit([Record("leave", {"worker": worker})])

    @checked
    def pardon_worker(self, worker: str) -> None:
        """Ends a worker's quarantine."""
        with self._turn():
            self._commit([Record("pardon", {"worker": worker})])

    # Parameters.

    @checked
    def get_parameters(self, newer_than: int = -1, *, wait_s: float = 0.0) -> Parameters | None:
        """Returns the parameters if there are newer ones, at the latest after `wait_s`."""
        if self._shown.version <= newer_than and (wait_s > 0 or self.rules.synchronous):
            self._wait(newer_than, wait_s)
        shown = self._shown
        return shown if shown.version > newer_than else None

    def _wait(self, newer_than: int, wait_s: float) -> None:
        """In real time, whatever clock decides on deadlines."""
        until = time.monotonic() + wait_s
        with self._turn():
            while self._version <= newer_than and (left := until - time.monotonic()) > 0:
                self._news.wait(min(left, 0.05 if self._pending else left))
                self._look()

    @checked
    def subscribe(self, listener: Listener) -> None:
        """Has a function called with every new version, by the thread that made it."""
        with self._lock:
            self._listeners.append(listener)

    @checked
    def broadcast_parameters(self) -> Parameters:
        """Tells all subscribers the present parameters, and returns them."""
        shown = self._shown
        for listener in list(self._listeners):
            try:
                listener(shown)
            except Exception:  # a user's function: its failure is not the pushing worker's
                with self._lock:
                    self._counts["listener_failed"] += 1
        return shown

    # Updates.

    @checked
    def push_gradients(
        self,
        worker: str,
        grads: Named,
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt:
        """Takes a worker's update; when this returns, it will not be lost.

        `version` is the one it was computed with (None: the newest). An update with a `push_id`
        can be pushed again after a lost answer: it counts once.
        """
        try:
            if push_id is not None:
                check_name(push_id, "push_id")
            update = self._layout.join(grads)
            weight = self._weight(weight)
            finite = bool(np.isfinite(update).all())
            with self._turn():
                return self._take(worker, update if finite else None, weight, version, push_id)
        except RefusedError as error:
            with self._lock:
                self._counts[f"refused_{error.code}"] += 1
            raise

    @checked
    def aggregate_gradients(self) -> dict[str, Array] | None:
        """Returns what is pending as one update, which stays pending; None: nothing is."""
        with self._lock:
            if not self._pending:
                return None
            return self._layout.split(self._aggregate(self._pending))

    @checked
    def update_parameters(self, learning_rate: float | None = None) -> int:
        """Applies what is pending now, with this learning rate or the optimizer's own.

        Nothing happens where nothing is pending, or too few have pushed for the aggregation.
        Returns the version.
        """
        with self._turn():
            if self._pending and self._voters(self._pending) >= self._least():
                self._commit([self._closing(self._pending, learning_rate)])
            return self._version

    def _weight(self, weight: float) -> float:
        if not math.isfinite(weight) or weight < 0:
            raise RefusedError(
                f"a weight must be finite and 0 or more, got {weight}; give the number of samples "
                "or steps that the update is made of",
                "weight",
            )
        if weight > self.rules.max_weight:
            with self._lock:
                self._counts["weight_clamped"] += 1
        return min(weight, self.rules.max_weight)

    def _take(
        self,
        worker: str,
        update: Floats | None,
        weight: float,
        version: int | None,
        push_id: str | None,
    ) -> Receipt:
        if push_id in self._roster.admitted(worker).applied:
            return self._answer("duplicate", accepted=True)
        if update is None:
            return self._strike(worker)
        scale = self.rules.scale(0 if version is None else self._version - version)
        if scale is None:
            return self._answer("stale")
        if self.rules.synchronous and worker in {each.worker for each in self._pending}:
            return self._answer("round")
        about = {"worker": worker, "weight": weight, "id": push_id}
        if scale != 1.0:
            self._counts["discounted"] += 1
        self._push(Record("push", about, self._incoming(update) * np.float32(scale)))
        return self._answer("ok", accepted=True)

    def _push(self, push: Record) -> None:
        """Writes down an update, and in the same breath what it sets off."""
        records = [push]
        pending = [*self._pending, _pending(push)]
        if self._complete(pending):
            records.append(self._closing(pending, None))
        self._commit(records)

    def _incoming(self, update: Floats) -> Floats:
        """What of a pushed [P] vector is aggregated."""
        return update

    def _answer(self, code: str, *, accepted: bool = False) -> Receipt:
        self._counts[code] += 1
        return Receipt(accepted, code, self._version)

    def _strike(self, worker: str) -> Receipt:
        known = self._roster.workers[worker]
        known.strikes += 1
        if known.strikes >= self.rules.quarantine_after:
            self._commit([Record("quarantine", {"worker": worker, "strikes": known.strikes})])
        return self._answer("finite")

    # Rounds.

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Lets one caller in at a time; rounds that are due close before and after it.

        Subscribers are told when nobody is kept waiting by it.
        """
        with self._lock:
            before = self._version
            self._look()
            yield
            self._look()
            after = self._version
        if after > before:
            self.broadcast_parameters()

    def _complete(self, pending: Sequence[Pending]) -> bool:
        """Is this enough to be applied without waiting for the deadline?"""
        if not self.rules.synchronous:
            return len(pending) >= self.rules.update_frequency
        return len(pending) >= max(self._least(), self.rules.enough(len(self._roster.active())))

    def _least(self) -> int:
        """How many workers an update needs, whatever else holds."""
        return self.rules.least

    def _look(self) -> None:
        """Closes a round that is due."""
        if not self._pending:
            return
        if self._complete(self._pending):
            self._commit([self._closing(self._pending, None)])
        elif self.rules.synchronous and self._overdue():
            bearable = max(self._least(), self.rules.bearable(len(self._roster.active())))
            enough = len(self._pending) >= bearable
            late = self._closing(self._pending, None) if enough else _skip("quorum")
            self._commit([late])

    def _overdue(self) -> bool:
        return self._clock() - self._opened >= self.rules.deadline_s

    def _closing(self, pending: Sequence[Pending], lr: float | None) -> Record:
        """Returns what becomes of a round: an update, or nothing and why."""
        if self._voters(pending) < self._least():
            return _skip("workers")
        if self.rules.aggregation in WEIGHTED and not any(each.weight for each in pending):
            return _skip("weight")
        update = self._aggregate(pending)
        if not np.isfinite(update).all():
            return _skip("overflow")
        lrs = self._stepper.lrs if lr is None else [lr] * len(self._stepper.lrs)
        return Record("apply", {"lrs": lrs}, update)

    def _voters(self, pending: Sequence[Pending]) -> int:
        return len({each.worker for each in pending})

    def _aggregate(self, pending: Sequence[Pending]) -> Floats:
        votes = _by_worker(pending) if self.rules.robust else pending
        updates = np.stack([each.update for each in votes])
        weights = np.array([each.weight for each in votes])
        return aggregate.aggregate(self.rules.aggregation, updates, weights, self.rules.liars)

    # What happens, written down first.

    def _commit(self, records: Sequence[Record]) -> None:
        """Makes things happen, in order: on the disk, then here."""
        for record in records:
            DEEDS[record.kind](self, record)

    def _did_push(self, record: Record) -> None:
        if not self._pending:
            self._opened = self._clock()
        self._pending.append(_pending(record))
        self._roster.pushed(record.about["worker"], record.about["id"])

    def _did_apply(self, record: Record) -> None:
        update = self._aggregate(self._pending) if record.floats is None else record.floats
        self._stepper.step(self._gradient(update), record.about["lrs"])
        self._pending.clear()
        self._version += 1
        self._publish()

    def _gradient(self, update: Floats) -> Floats:
        """What the optimizer goes against, of an aggregated update."""
        return update

    def _did_skip(self, record: Record) -> None:
        self._pending.clear()
        self._counts[f"skipped_{record.about['why']}"] += 1

    def _did_join(self, record: Record) -> None:
        self._roster.join(record.about["worker"])

    def _did_leave(self, record: Record) -> None:
        self._roster.leave(record.about["worker"])

    def _did_quarantine(self, record: Record) -> None:
        self._roster.quarantine(record.about["worker"], record.about["strikes"])

    def _did_pardon(self, record: Record) -> None:
        self._roster.pardon(record.about["worker"])

    def _publish(self) -> None:
        values = self._stepper.values.copy()
        values.flags.writeable = False  # many readers share it
        with self._lock:
            self._shown = Parameters(self._version, self._layout.split(values))
            self._news.notify_all()

    # Looking.

    @checked
    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server, ready for JSON."""
        with self._turn():
            return {
                "version": self._version,
                "aggregation": self.rules.aggregation.value,
                "synchronous": self.rules.synchronous,
                "parameters": self._layout.total,
                "workers": self._roster.active(),
                "quarantined": self._roster.quarantined(),
                "pending": len(self._pending),
                "pushes": {n: w.pushes for n, w in self._roster.workers.items() if w.registered},
                "counts": dict(self._counts),
                "uptime_s": self._clock() - self._began,
            }

    # The network.

    @checked
    def start_server(self, host: str = "localhost", port: int = 8888, **options: Any) -> str:
        """Serves this object over HTTP, in a thread of its own; returns the URL.

        Options are those of `rookery.server.service.Service`. Needs the extra `server`.
        """
        if self._service is not None:
            raise ProtocolError("the server is being served already; call stop_server() first")
        service = import_module("rookery.server.service")  # an extra
        self._service = service.Service(self, host, port, **options)
        return str(self._service.start())

    @checked
    def stop_server(self) -> None:
        """Ends the service; the parameters stay. Without a service nothing happens."""
        service, self._service = self._service, None
        if service is not None:
            service.stop()


DEEDS: dict[str, Callable[[Any, Record], None]] = {
    "push": ParameterServer._did_push,
    "apply": ParameterServer._did_apply,
    "skip": ParameterServer._did_skip,
    "join": ParameterServer._did_join,
    "leave": ParameterServer._did_leave,
    "quarantine": ParameterServer._did_quarantine,
    "pardon": ParameterServer._did_pardon,
}


def _skip(why: str) -> Record:
    return Record("skip", {"why": why})


def _pending(push: Record) -> Pending:
    assert push.floats is not None
    return Pending(push.about["worker"], push.about["weight"], push.floats)


def _by_worker(pending: Sequence[Pending]) -> list[Pending]:
    """Gives each worker one vote, the mean of what it pushed: a liar must not outvote by haste."""
    pushed: dict[str, list[Pending]] = {}
    for each in pending:
        pushed.setdefault(each.worker, []).append(each)
    return [
        Pending(worker, 1.0, own[0].update if len(own) == 1 else _mean(own))
        for worker, own in pushed.items()
    ]


def _mean(pending: Sequence[Pending]) -> Floats:
    updates = np.stack([each.update for each in pending])
    return aggregate.aggregate(Aggregation.AVERAGE, updates, np.ones(len(updates)))
