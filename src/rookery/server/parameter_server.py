"""The parameter server: one set of parameters, many workers that push gradients.

*Asynchronous* (the default): every `update_frequency` accepted pushes are aggregated and applied;
1 applies each at once (A3C, Mnih et al. 2016). Updates of older versions are dropped or discounted.

*Synchronous*: workers push once a round. A round closes when the quorum has pushed (None: all
registered workers), or `deadline_s` after its first push: then with what is there, if that is the
quorum (None: more than half of the registered), and else it is skipped. No call waits
for a deadline: the next call notices it, by a clock that only goes forward.

With a `checkpoint_path` all of it survives a `kill -9`: what was acknowledged is on the disk, and
the next server with that path goes on where this one was, with the same version.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, Unpack

import numpy as np

from rookery.config.checks import read
from rookery.errors import CheckpointError, ConfigError, ProtocolError, RefusedError
from rookery.server import store
from rookery.server.aggregate import WEIGHTED, Aggregation, Pending
from rookery.server.flat_layout import Named
from rookery.server.server_rules import Rules, ServerOptions, checked_methods, refuse_weight
from rookery.server.server_state import Machine, check_name, skip
from rookery.server.store import Record, SavedServer, Store
from rookery.types import Array, Floats, Weights

Parameters: TypeAlias = Weights  # (version, arrays), the arrays read-only
Listener: TypeAlias = Callable[[Parameters], None]
JOURNAL_BYTES = 256 << 20  # a longer journal is replaced by a checkpoint
JOURNAL_PUSHES = 8  # or one of so many pushes, where those are large
LOOK_S = 0.05  # between two looks at the deadline, of a call that waits
LOUD = 1e12  # entries up to here overflow no optimizer by themselves; larger ones are tried first
PARTS = 256  # of one client, as in "client/part"


class Receipt(NamedTuple):
    """The answer of a parameter server to a push.

    | code | accepted | means |
    |---|---|---|
    | ok | yes | it counts |
    | duplicate | yes | it was taken before, and counts once |
    | finite | no | NaN or Inf in it; several in a row end in quarantine |
    | overflow | no | it would make parameters or optimizer infinite; quarantine as above |
    | norm | no | its L2 norm is above `max_norm` |
    | stale | no | computed with a version that is too old, or not of this server |
    | round | no | the worker has pushed in this round already, or a whole batch alone |
    | uninvited | no | this round goes without the worker (under differential privacy) |
    | early | no | rounds begin when more workers have joined (under differential privacy) |
    """

    accepted: bool
    code: str
    version: int  # of the server, afterwards


@checked_methods
class ParameterServer:
    """A parameter server: versioned parameters, stepped by the updates of workers; thread-safe.

    server = ParameterServer(arrays, "average", update_frequency=1, optimizer="adam", lr=3e-4)
    server.register_worker("a")
    version, arrays = server.get_parameters()
    receipt = server.push_gradients("a", gradients, version=version, push_id="a-17")
    newer = server.get_parameters(newer_than=version)      # None: nothing newer yet

    An update that does not fit (names, shapes, dtypes, weight, an unknown or quarantined worker)
    is a RefusedError with a `code`; one that fits and does not count is a Receipt that says so.
    """

    def __init__(
        self,
        initial_parameters: Named,
        aggregation_method: str = "average",
        update_frequency: int = 10,
        save_frequency: int = 100,
        checkpoint_path: str | Path | None = None,
        **options: Unpack[ServerOptions],
    ):
        """`checkpoint_path` is a folder; where an earlier server left one, this one goes on.

        Options are the other settings of `Rules`. Without an `optimizer` it takes plain SGD steps,
        or those of the agent of a loop that it is given to.
        """
        self.rules = Rules(
            aggregation=read(Aggregation, aggregation_method, "aggregation_method"),
            update_frequency=update_frequency,
            save_frequency=save_frequency,
            **options,
        )
        self._given = frozenset(options)
        self._adopted = False  # has it taken over an agent's optimizer?
        self._machine = Machine(initial_parameters, self.rules)
        self._began = self._opened = self.rules.clock()  # the server; its open round
        self._listeners: list[Listener] = []
        self._told = 0  # the version that subscribers know
        self.last_version: int | None = None  # nothing is taken after it; None: no end
        self._service: Any = None
        self._saved = 0  # the version in the checkpoint
        self._trouble = ""  # why the last checkpoint could not be saved
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._store = None if checkpoint_path is None else Store(Path(checkpoint_path))
        try:
            self._begin()
        except BaseException:  # raised again; the folder must not stay locked
            self.close()
            raise

    @property
    def version(self) -> int:
        """The number of updates applied so far; it never falls, over restarts neither."""
        if self._overdue():
            with self._turn():
                pass
        return self.newest.version

    @property
    def pending_bytes(self) -> int:
        """Bytes of memory that the updates of the open round take."""
        return self._machine.gathered.nbytes

    @property
    def round_bytes(self) -> int:
        """Bytes of memory that an open round needs before it can be closed."""
        rules, size = self.rules, self._machine.layout.total
        needed = (rules.quorum or rules.least) if rules.synchronous else rules.update_frequency
        return 4 * size * needed if rules.robust else 8 * size  # each update, or one sum

    @property
    def one_voice(self) -> bool:
        """Whether workers are counted, so that parts of one client would count several times."""
        return self.rules.synchronous or self.rules.robust

    # Workers.

    def register_worker(self, worker: str) -> int:
        """Registers a worker, which may then push; returns the version."""
        check_name(worker, "worker's name")
        with self._turn():
            if not self._machine.roster.knows(worker):
                self._refuse_newcomer(worker)
                self._commit([Record("join", {"worker": worker})])
            return self._machine.version

    def _refuse_newcomer(self, worker: str) -> None:
        """Raises RefusedError for one part of a client too many: each takes memory."""
        client, roster = worker.partition("/")[0], self._machine.roster
        others = {*roster.active(), *roster.quarantined()} - {worker}
        if sum(each.partition("/")[0] == client for each in others) >= PARTS:
            raise RefusedError(
                f"{client!r} has {PARTS} parts registered, and {worker!r} would be one more; push "
                "as one of those",
                "clients",
            )

    def unregister_worker(self, worker: str) -> None:
        """Unregisters a worker: rounds no longer wait for it. Its pushes and quarantine stay."""
        with self._turn():
            if self._machine.roster.knows(worker):
                self._commit([self._leaving(worker)])

    def _leaving(self, worker: str) -> Record:
        return Record("leave", {"worker": worker})

    def pardon_worker(self, worker: str) -> None:
        """Ends a worker's quarantine."""
        with self._turn():
            if worker in self._machine.roster.quarantined():
                self._commit([Record("quarantine", {"worker": worker, "strikes": 0, "on": False})])

    # Parameters.

    def get_parameters(self, newer_than: int = -1, *, wait_s: float = 0.0) -> Parameters | None:
        """Returns the parameters if there are newer ones, at the latest after `wait_s`.

        A round may be skipped: a worker that waits for the next version waits no longer than the
        deadline, and then pushes again.
        """
        until = time.monotonic() + wait_s  # in real time, whatever clock decides on deadlines
        while self.version <= newer_than and (left := until - time.monotonic()) > 0:
            with self._news:
                if self.newest.version <= newer_than:
                    self._news.wait(min(left, LOOK_S) if self.rules.synchronous else left)
        shown = self.newest
        return shown if shown.version > newer_than else None

    def subscribe(self, listener: Listener) -> None:
        """Registers a function that is called with every version, by the thread that made it."""
        with self._lock:
            self._listeners.append(listener)

    def broadcast_parameters(self) -> Parameters:
        """Calls all subscribers with the present parameters; returns them."""
        shown = self.newest
        for listener in list(self._listeners):
            try:
                listener(shown)
            except Exception:  # a user's function: its failure is not the pushing worker's
                self._count("listener_failed")
        return shown

    def adopt_optimizer(self, optimizer: str, lr: float, kwargs: Mapping[str, Any]) -> None:
        """Takes over the optimizer of an agent, unless this server was given one.

        The first caller decides; a learning rate that the server was given stays. An update then
        averages no more gradients than there are workers: one worker's are applied one by one.
        """
        with self._turn():
            if self._adopted or "optimizer" in self._given:
                return
            self._adopted = True
            rate = self.rules.lr if "lr" in self._given else lr
            self.rules = replace(
                self.rules, optimizer=optimizer, lr=rate, optimizer_kwargs=dict(kwargs)
            )
            self._machine.change_rules(self.rules)
            if self._store is not None:
                self.save_checkpoint()

    # Updates.

    def push_gradients(
        self,
        worker: str,
        grads: Named,
        weight: float = 1.0,
        *,
        version: int | None = None,
        push_id: str | None = None,
    ) -> Receipt:
        """Accepts or refuses a worker's update; once accepted, it is not lost.

        `version` is the one it was computed with (None: the newest). An update with a `push_id`
        can be pushed again after a lost answer: it counts once.
        """
        try:
            if push_id is not None:
                check_name(push_id, "push_id")
            layout = self._machine.layout
            update = layout.join(grads)  # and the look for NaN: before others wait for the lock
            finite = bool(np.isfinite(update).all())
            with self._turn():
                if layout is not self._machine.layout:  # another checkpoint was loaded meanwhile
                    update = self._machine.layout.join(grads)
                about = {"worker": worker, "weight": self._weight(weight), "id": push_id}
                return self._take(Record("push", about, update), finite, version)
        except RefusedError as error:
            self._count(f"refused_{error.code}")
            raise

    def aggregate_gradients(self) -> dict[str, Array] | None:
        """Returns the aggregate of the pending updates, without applying it; None if none are."""
        with self._turn():
            machine = self._machine
            if not machine.pending:
                return None
            return machine.layout.split(machine.combined())

    def update_parameters(self, learning_rate: float | None = None) -> int:
        """Applies the pending updates now, with this learning rate or the optimizer's own.

        Nothing happens where nothing is pending, or too few have pushed for the aggregation.
        Returns the version.
        """
        with self._turn():
            pending = self._machine.pending
            if pending and _workers(pending) >= self._least():
                self._commit([self._closing(pending, learning_rate)])
            return self._machine.version

    def _weight(self, weight: float) -> float:
        refuse_weight(weight)
        if weight > self.rules.max_weight:
            self._count("weight_clamped")
        return min(weight, self.rules.max_weight)

    def _take(self, push: Record, finite: bool, version: int | None) -> Receipt:
        worker, update = push.about["worker"], push.floats
        assert update is not None, "a push has an update"
        if push.about["id"] in self._machine.roster.admitted(worker).applied:
            return self._answer("duplicate", accepted=True)
        self._refuse_over()
        if not finite:
            return self._strike(worker, "finite")
        scale = self.rules.scale(0 if version is None else self.newest.version - version)
        if scale is None:
            return self._answer("stale")
        if why := self._unwelcome(worker):
            return self._answer(why)
        pushed = sum(each.worker == worker for each in self._machine.pending)
        if pushed >= (1 if self.rules.synchronous else self.rules.update_frequency):
            return self._answer("round")
        update = self._incoming(update)
        if self.rules.too_long(update):
            return self._answer("norm")
        if not self._survives(update):
            return self._strike(worker, "overflow")
        if scale != 1.0:
            self._count("discounted")
            update = update * np.float32(scale)
        self._accept(push._replace(floats=update))
        return Receipt(True, "ok", self._machine.version)

    def _survives(self, update: Floats) -> bool:
        """Returns whether parameters and optimizer stay finite if this update alone is applied."""
        stepper = self._machine.stepper
        peak = max(update.max(initial=0.0), -update.min(initial=0.0))
        return bool(
            peak <= LOUD or (np.isfinite(peak) and stepper.step(update, stepper.lrs, keep=False))
        )

    def _accept(self, push: Record) -> None:
        """Commits an update, together with the step that it completes."""
        opening = [] if self._machine.round_is_open else [self._opening(None)]
        pending = [*self._machine.pending, Pending(push.about["worker"], push.about["weight"])]
        closing = [self._closing(pending, last=push.floats)] if self._complete(pending) else []
        self._commit([*opening, push, *closing])

    def _opening(self, invited: Sequence[str] | None) -> Record:
        """Returns the record of a round that begins now, for these clients or for all."""
        self._opened = self.rules.clock()
        return Record("open", {"terms": self._terms(), "invited": invited})

    @property
    def over(self) -> str | None:
        """Returns why there will be no other version, or None."""
        last = self.last_version
        return "limit" if last is not None and self._machine.version >= last else None

    def _refuse_over(self) -> None:
        """Raises RefusedError if the last version is reached; called with the lock held."""
        if self.over == "limit":
            raise RefusedError(
                f"training is over at version {self._machine.version}; pull it, and leave", "over"
            )

    def _unwelcome(self, worker: str) -> str:
        """Returns why this worker may not push in this round, as a receipt's code; "": it may."""
        return ""

    def _incoming(self, update: Floats) -> Floats:
        """Returns the gradient [P] that is aggregated, of a pushed vector."""
        return update

    def _answer(self, code: str, *, accepted: bool = False) -> Receipt:
        self._count(code)
        return Receipt(accepted, code, self._machine.version)

    def _strike(self, worker: str, code: str) -> Receipt:
        known = self._machine.roster.workers[worker]
        known.strikes += 1
        if known.strikes >= self.rules.quarantine_after:
            self._commit([Record("quarantine", {"worker": worker, "strikes": known.strikes})])
        return self._answer(code)

    # Rounds.

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Context manager that holds the lock, and closes rounds that are due before and after.

        Subscribers are told without the lock.
        """
        try:
            with self._lock:
                self._look()
                yield
                self._look()
        finally:
            with self._lock:
                news, self._told = self._told < self.newest.version, self.newest.version
            if news:
                self.broadcast_parameters()

    def _look(self) -> None:
        """Closes a round that is due, unless it began before an earlier end was set."""
        pending = self._machine.pending
        if self.over == "limit":
            return
        if pending and self._complete(pending):
            self._commit([self._closing(pending)])
        elif self._overdue():
            enough = len(pending) >= self._bearable()
            self._commit([self._closing(pending) if enough else skip("quorum")])

    def _overdue(self) -> bool:
        late = self.rules.synchronous and self._machine.round_is_open
        return late and self.rules.clock() - self._opened >= self.rules.deadline_s

    def _terms(self) -> dict[str, Any]:
        """Returns the settings that a restart must not change in a round that is open."""
        return {"aggregation": self.rules.aggregation.value}

    def _is_foreign_round(self, machine: Machine) -> bool:
        """Returns whether an open round began with settings that forbid to close it."""
        return machine.round_is_open and machine.terms != self._terms()

    def _complete(self, pending: Sequence[Pending]) -> bool:
        """Returns whether these updates are applied without waiting for the deadline."""
        active = len(self._machine.roster.active())
        if not self.rules.synchronous:  # a hasty worker waits for others, which lose nothing
            most = self.rules.update_frequency
            pushes = max(1, min(most, active)) if self._adopted else most
            return _workers(pending) >= self._least() and len(pending) >= pushes
        return len(pending) >= max(self._least(), self.rules.quorum or active)

    def _bearable(self) -> int:
        """Returns how many updates are enough at the deadline: the quorum, or more than half."""
        return max(self._least(), self.rules.quorum or len(self._machine.roster.active()) // 2 + 1)

    def _least(self) -> int:
        """Returns the least number of workers of an update."""
        return self.rules.least

    def _closing(
        self, pending: Sequence[Pending], lr: float | None = None, last: Floats | None = None
    ) -> Record:
        """Returns the record that closes a round: a step, or a skip with its reason.

        `last` is the one update of `pending` that has not been gathered yet.
        """
        if _workers(pending) < self._least():
            return skip("workers")
        weighted = self.rules.aggregation in WEIGHTED
        if weighted and pending and not any(each.weight for each in pending):
            return skip("weight")
        own = self._machine.stepper.lrs
        return Record("apply", {"lrs": own if lr is None else [lr] * len(own)})

    # What happens: written down, then done.

    def _commit(self, records: Sequence[Record]) -> None:
        if self._store is not None:
            self._store.append(records)
        before = self._machine.version
        for record in records:
            self._machine.do(record)
        if self._machine.version > before:
            self._publish()
        if self._store is not None and self._worth_saving(self._store, records):
            self._save_now()

    def _worth_saving(self, kept: Store, records: Sequence[Record]) -> bool:
        long = max(JOURNAL_BYTES, JOURNAL_PUSHES * 4 * self._machine.layout.total)
        due = self._machine.version - self._saved >= self.rules.save_frequency
        return due or kept.journal_bytes > long

    def _save_now(self) -> None:
        """Saves a checkpoint; if that fails, the journal has everything until the next try."""
        try:
            self.save_checkpoint()
        except CheckpointError as error:
            self._count("save_failed")
            self._trouble = str(error)

    def _publish(self) -> None:
        values = self._machine.stepper.values.copy()
        values.flags.writeable = False  # many readers share it
        # the parameters as of the last update
        self.newest = Parameters(self._machine.version, self._machine.layout.split(values))
        with self._lock:
            self._news.notify_all()

    def _count(self, what: str) -> None:
        with self._lock:
            self._machine.counts[what] += 1

    # Looking.

    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server, ready for JSON.

        `counts` has every answer by its code, refusals as `refused_<code>`, rounds that came to
        nothing as `skipped_<why>`, and `discounted`, `weight_clamped`, `save_failed`.
        """
        with self._turn():
            machine = self._machine
            workers = machine.roster.workers
            return {
                "version": machine.version,
                "aggregation": self.rules.aggregation.value,
                "synchronous": self.rules.synchronous,
                "parameters": machine.layout.total,
                "workers": machine.roster.active(),
                "quarantined": machine.roster.quarantined(),
                "strikes": {name: w.strikes for name, w in workers.items() if w.strikes},
                "pending": len(machine.pending),
                "pending_bytes": self.pending_bytes,
                "pushes": {name: w.pushes for name, w in workers.items() if w.registered},
                "counts": dict(machine.counts),
                "saved_version": self._saved,
                "trouble": self._trouble,
                "uptime_s": self.rules.clock() - self._began,
                "over": self.over or "",
            }

    def get_client_stats(self) -> dict[str, Any]:
        """Returns the statistics that every client may read over the network."""
        return self.get_server_stats()

    # The disk.

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Saves the whole state to a file, by default in `checkpoint_path`; returns the file."""
        with self._lock:
            if path is not None:
                file = Path(path)
                file = file if file.suffix else file.with_suffix(store.SUFFIX)
                store.write_checkpoint(file, self._machine.state())
                return file
            kept, machine = self._own_store(), self._machine
            file = kept.save(machine.state(), machine.identity())
            kept.settle()
            self._saved, self._trouble = machine.version, ""
            return file

    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Loads the state from a file or a server's folder, by default from `checkpoint_path`.

        Returns the version: that of the checkpoint, or a new one where this server has had it or a
        later one already, since a version must not stand for two sets of parameters.
        """
        with self._turn():
            folder = self._own_store().folder if path is None else Path(path)
            present, machine = self._machine, self._restored(store.look_into(folder))
            if self._is_foreign_round(machine):
                machine.do(skip("settings"))
            known = machine.version == present.version and np.array_equal(
                machine.stepper.values, present.stepper.values
            )
            if machine.version <= present.version and not known:
                machine.version = present.version + 1
            if self._store is not None:  # first: where this fails, the present state stays
                self._store.save(machine.state(), machine.identity())
                self._saved, self._trouble = machine.version, ""
            self._machine, self._opened = machine, self.rules.clock()
            self._publish()
            if self._store is not None:
                self._store.settle()
            return machine.version

    def close(self) -> None:
        """Stops the network service, and unlocks `checkpoint_path` for another server."""
        self.stop_server()
        with self._lock:
            if self._store is not None:
                self._store.close()

    def _begin(self) -> None:
        """Continues from an earlier server's files, or saves the initial parameters."""
        found = None if self._store is None else self._store.load()
        if found is not None:
            self._machine = self._restored(found)
            self._saved = int(found.numbers["version"])
        self._publish()
        self._refuse_past()
        if self._is_foreign_round(self._machine):
            self._commit([skip("settings")])
        if self._store is not None and found is None:
            self.save_checkpoint()  # initial parameters may be others the next time

    def _refuse_past(self) -> None:
        """Raises ConfigError for a saved state from which this server may not continue."""

    def _restored(self, found: SavedServer) -> Machine:
        start = self._machine.layout.split(self._machine.stepper.values)
        rules = self.rules
        if not self._adopted and "optimizer" not in self._given:  # an earlier server had adopted it
            rules = replace(rules, optimizer=found.numbers["stepper"]["optimizer"])
        machine = Machine(start, rules)  # where this fails, the present one stays
        machine.restore(found)
        return machine

    def _own_store(self) -> Store:
        if self._store is None:
            raise ConfigError(
                "this server has no checkpoint_path; give it one, or name the file to use"
            )
        return self._store

    # The network.

    def start_server(self, host: str = "localhost", port: int = 8888, **options: Any) -> str:
        """Serves this parameter server over HTTP, in a thread of its own; returns the URL.

        Options are those of `rookery.server.http.service.Service`. Needs the extra `server`.
        """
        if self._service is not None:
            raise ProtocolError("this server is being served already; call stop_server() first")
        from rookery.server.http.service import Service  # needs the extra `server`

        service = Service(self, host, port, **options)
        url = str(service.start())
        self._service = service
        return url

    def stop_server(self) -> None:
        """Stops the network service, if there is one; the parameters stay."""
        service, self._service = self._service, None
        if service is not None:
            service.stop()


def _workers(pending: Sequence[Pending]) -> int:
    return len({each.worker for each in pending})
