"""The state of a parameter server with its workers, and all that can happen to it.

    machine.do(Record("push", {"worker": "a", "weight": 1.0, "id": None}, update))
    machine.do(Record("apply", {"lrs": [0.1]}))

What happens is a function of the state and the record: no clock, no chance, no setting but the
machine's own. A server that writes its records down and does them again comes to the same state.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import CheckpointError, RefusedError
from rookery.server.aggregate import SUM, RunningSum, gather
from rookery.server.flat_layout import Layout, Named
from rookery.server.journal import Record
from rookery.server.optimizer_step import Stepper
from rookery.server.server_rules import Rules
from rookery.server.store import SavedServer, StoredServer
from rookery.types import Array, Floats

PARAMETER, SLOT, PENDING = "parameter.", "optimizer.", "pending."  # arrays in a checkpoint
REMEMBERED = 256  # push ids of a worker: a client repeats its last ones, not those of last week
DEPARTED = 1024  # workers that left and are still known, so that a late repeat is recognised
LONGEST = 128  # characters of a name or push id


@dataclass
class WorkerRecord:
    """What is known of one worker."""

    registered: bool = True
    quarantined: bool = False
    strikes: int = 0  # in a row
    pushes: int = 0  # accepted
    applied: OrderedDict[str, None] = field(default_factory=OrderedDict)  # push ids, oldest first


class Roster:
    """The workers by name."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}

    def join(self, worker: str) -> None:
        self.workers.setdefault(worker, WorkerRecord()).registered = True

    def leave(self, worker: str) -> None:
        """Forgets nothing at once: a repeat may still be on its way, and quarantine stays."""
        self.workers[worker] = record = self.workers.pop(worker)  # now the latest to depart
        record.registered = False
        gone = [n for n, w in self.workers.items() if not (w.registered or w.quarantined)]
        for old in gone[:-DEPARTED]:
            del self.workers[old]

    def retire(self, worker: str) -> None:
        """Lets a worker leave that is remembered for good, since it counts."""
        self.workers[worker].registered = False

    def knows(self, name: str) -> bool:
        return name in self.workers and self.workers[name].registered

    def active(self) -> list[str]:
        """Returns the workers whose updates are awaited."""
        return [n for n, w in self.workers.items() if w.registered and not w.quarantined]

    def joined(self) -> list[str]:
        """Returns the registered workers, also those in quarantine."""
        return [n for n, w in self.workers.items() if w.registered]

    def quarantined(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.quarantined]

    def admitted(self, name: str) -> WorkerRecord:
        """Returns a worker that may push; any other one is refused."""
        if not self.knows(name):
            raise RefusedError(
                f"worker {name!r} is not registered; call register_worker({name!r}) first",
                "unknown_worker",
            )
        worker = self.workers[name]
        if worker.quarantined:
            raise RefusedError(
                f"worker {name!r} is in quarantine: {worker.strikes} updates in a row had NaN or "
                "Inf, or would have made the parameters infinite; mend it, then let the server "
                f"pardon_worker it, or start `rookery serve` again with --pardon {name}",
                "quarantined",
            )
        return worker

    def pushed(self, name: str, push_id: str | None) -> None:
        """Notes an accepted push."""
        worker = self.workers[name]
        worker.pushes += 1
        worker.strikes = 0
        if push_id is not None:
            worker.applied[push_id] = None
            while len(worker.applied) > REMEMBERED:
                worker.applied.popitem(last=False)

    def quarantine(self, worker: str, strikes: int) -> None:
        record = self.workers[worker]
        record.quarantined, record.strikes = True, strikes

    def pardon(self, worker: str) -> None:
        record = self.workers[worker]
        record.quarantined, record.strikes = False, 0

    def state(self) -> dict[str, Any]:
        return {
            name: [w.registered, w.quarantined, w.strikes, w.pushes, list(w.applied)]
            for name, w in self.workers.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.workers = {
            name: WorkerRecord(bool(r), bool(q), int(s), int(p), OrderedDict.fromkeys(ids))
            for name, (r, q, s, p, ids) in state.items()
        }


def check_name(text: str, what: str) -> None:
    """Refuses names that are empty, or long enough to fill the server's memory."""
    if not 1 <= len(text) <= LONGEST:
        raise RefusedError(
            f"a {what} must have 1 to {LONGEST} characters, got {len(text)}; choose another",
            "schema",
        )


class Pending(NamedTuple):
    """An accepted update that has not been applied yet; the machine has gathered its values."""

    worker: str
    weight: float


class Machine:
    """Parameters, optimizer, workers and what is pending."""

    def __init__(self, initial: Named, rules: Rules):
        self.layout, self.rules = Layout.of(initial), rules
        self.stepper = Stepper(self.layout.start(initial), self.layout, rules)
        self.roster = Roster()
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._end_round()

    def change_rules(self, rules: Rules) -> None:
        """Continues from the same parameters; an optimizer of the same kind keeps its state."""
        before, self.rules = self.stepper, rules
        self.stepper = Stepper(before.values, self.layout, rules)
        if self.stepper.name == before.name:
            self.stepper.restore(*before.state())

    def identity(self) -> dict[str, Any]:
        """What must be the same for the same records to lead to the same parameters."""
        return {
            "aggregation": self.rules.aggregation.value,
            "liars": list(self.rules.liars),
            "optimizer": self.stepper.name,
            "optimizer_kwargs": repr(sorted(self.rules.optimizer_kwargs.items())),
        }

    @property
    def round_is_open(self) -> bool:
        """Is something pending, or has a round drawn its clients?"""
        return bool(self.pending) or self.invited is not None

    def do(self, record: Record) -> None:
        """Lets something happen."""
        if record.kind in ROSTER_DEEDS:
            ROSTER_DEEDS[record.kind](self.roster, **record.about)
        else:
            DEEDS[record.kind](self, record)

    def _push(self, record: Record) -> None:
        assert record.floats is not None, "a push has an update"
        worker, weight = record.about["worker"], record.about["weight"]
        self._gather(worker, weight, record.floats)
        self.roster.pushed(worker, record.about["id"])
        self.counts["ok"] += 1

    def _gather(self, worker: str, weight: float, update: Floats) -> None:
        self.pending.append(Pending(worker, weight))
        self.gathered.add(worker, update, weight)

    def _apply(self, record: Record) -> None:
        """Where the record does not have the update, it is that of what is pending.

        A step after which something would be infinite is not taken.
        """
        update = self.gathered.combined() if record.floats is None else record.floats
        if np.isfinite(update).all() and self.stepper.step(update, record.about["lrs"]):
            self._end_round()
            self.version += 1
        else:
            self._skip(skip("overflow"))

    def _skip(self, record: Record) -> None:
        self._end_round()
        self.counts[f"skipped_{record.about['why']}"] += 1

    def _end_round(self) -> None:
        self.pending: list[Pending] = []
        self.gathered = gather(self.rules.aggregation, self.layout.total, self.rules.liars)
        self.invited: list[str] | None = None  # clients that may push in this round; None: all
        self.terms: dict[str, Any] | None = None  # settings that the open round began with

    def _open(self, record: Record) -> None:
        self.terms = dict(record.about)

    def _invite(self, record: Record) -> None:
        self.invited = list(record.about["workers"])

    # Saved, and back.

    def state(self) -> SavedServer:
        """Returns everything, to be saved before anything else happens."""
        numbers, slots = self.stepper.state()
        parameters = self.layout.split(self.stepper.values)
        arrays = {
            **{SLOT + name: array for name, array in slots.items()},
            **{PARAMETER + name: array for name, array in parameters.items()},
            **{PENDING + name: array for name, array in self.gathered.state().items()},
        }
        about = {
            "version": self.version,
            "names": list(self.layout.names),
            "stepper": numbers,
            "workers": self.roster.state(),
            "counts": dict(self.counts),
            "pending": self.pending,
            "invited": self.invited,
            "terms": self.terms,
        }
        return SavedServer(about, arrays)

    def restore(self, found: StoredServer) -> None:
        """Goes on from a checkpoint and from what happened after it. For a machine just made."""
        self._refuse_others(found)
        try:
            self._load(found.saved)
            for record in (record for frame in found.frames[1:] for record in frame):
                self.do(record)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint does not describe a parameter server ({type(error).__name__}: "
                f"{error}); put it back from a copy"
            ) from error

    def _refuse_others(self, found: StoredServer) -> None:
        """With other rules the same pushes would lead to other parameters, under one version."""
        if not any(record.kind == "apply" for frame in found.frames for record in frame):
            return
        written = found.frames[0][0].about
        if written != self.identity():
            raise CheckpointError(
                f"the journal was written with {written}, this server has {self.identity()}; "
                "start it once with the old settings and call save_checkpoint(), then change them"
            )

    def _load(self, saved: SavedServer) -> None:
        numbers, arrays = saved
        parameters = _below(arrays, PARAMETER)
        if wrong := self.layout.differences(parameters):
            raise CheckpointError(
                f"the checkpoint is of other parameters: {', '.join(wrong[:8])}; give the network "
                "it was saved with, or another checkpoint_path (--run-dir)"
            )
        ordered = {name: parameters[name] for name in numbers["names"]}  # as the optimizer's slots
        self.layout = Layout.of(ordered)
        self.stepper = Stepper(self.layout.start(ordered), self.layout, self.rules)
        self.stepper.restore(numbers["stepper"], _below(arrays, SLOT))
        self._load_round(numbers["pending"], _below(arrays, PENDING))
        self.invited = None if numbers["invited"] is None else list(numbers["invited"])
        terms = numbers.get("terms")  # an earlier release did not save them
        self.terms = None if terms is None else dict(terms)
        self.roster.restore(numbers["workers"])
        self.counts = Counter(numbers["counts"])
        self.version = int(numbers["version"])

    def _load_round(self, pending: list[list[Any]], arrays: Mapping[str, Array]) -> None:
        """Goes on with what is pending: a sum, or updates, which an earlier release saved too."""
        if SUM not in arrays:
            for index, (worker, weight, *_) in enumerate(pending):
                self._gather(str(worker), float(weight), arrays[str(index)])
            return
        self.pending = [Pending(str(worker), float(weight)) for worker, weight in pending]
        if isinstance(self.gathered, RunningSum):  # else the round is skipped: see `terms`
            self.gathered.restore(arrays[SUM], [each.weight for each in self.pending])


DEEDS: dict[str, Callable[[Machine, Record], None]] = {
    "open": Machine._open,
    "push": Machine._push,
    "apply": Machine._apply,
    "skip": Machine._skip,
    "invite": Machine._invite,
}
ROSTER_DEEDS: dict[str, Callable[..., None]] = {
    "join": Roster.join,
    "leave": Roster.leave,
    "retire": Roster.retire,
    "quarantine": Roster.quarantine,
    "pardon": Roster.pardon,
}


def skip(why: str) -> Record:
    """Returns that a round comes to nothing."""
    return Record("skip", {"why": why})


def _below(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the arrays whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
