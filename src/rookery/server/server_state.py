"""The state of a parameter server, changed only by records that can be replayed.

    machine.do(Record("push", {"worker": "a", "weight": 1.0, "id": None}, update))
    machine.do(Record("apply", {"lrs": [0.1]}))

What happens is a function of the state and the record: no clock, no chance, no setting but the
machine's own. A server that writes its records down and does them again comes to the same state.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from rookery.errors import CheckpointError, RefusedError
from rookery.server.aggregate import SUM, Pending, RunningSum, gather
from rookery.server.flat_layout import Layout, Named
from rookery.server.optimizer_step import Stepper
from rookery.server.server_rules import Rules
from rookery.server.store import Record, SavedServer
from rookery.types import Array, Floats

PARAMETER, SLOT, PENDING = "parameter.", "optimizer.", "pending."  # arrays in a checkpoint
REMEMBERED = 256  # push ids of a worker: a client repeats its last ones, not those of last week
DEPARTED = 1024  # workers that left and are still known, so that a late repeat is recognised
LONGEST = 128  # characters of a name or push id


@dataclass
class WorkerRecord:
    """The state of one worker: registered, quarantined, its strikes and pushes."""

    registered: bool = True
    quarantined: bool = False
    strikes: int = 0  # in a row
    pushes: int = 0  # accepted
    applied: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # push ids


class Roster:
    """The workers of a parameter server, by name."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}

    def join(self, worker: str) -> None:
        self.workers.setdefault(worker, WorkerRecord()).registered = True

    def leave(self, worker: str, *, counts: bool = False) -> None:
        """Unregisters a worker; one that `counts` is never forgotten.

        Others are not forgotten at once: a repeat may still be on its way, and quarantine stays.
        """
        self.workers[worker] = record = self.workers.pop(worker)  # now the latest to depart
        record.registered = False
        gone = [n for n, w in self.workers.items() if not (w.registered or w.quarantined)]
        for old in () if counts else gone[:-DEPARTED]:
            del self.workers[old]

    def knows(self, name: str) -> bool:
        return name in self.workers and self.workers[name].registered

    def active(self) -> list[str]:
        """Returns the registered workers that are not in quarantine."""
        return [name for name in self.joined() if not self.workers[name].quarantined]

    def joined(self) -> list[str]:
        """Returns the registered workers, also those in quarantine."""
        return [name for name, worker in self.workers.items() if worker.registered]

    def quarantined(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.quarantined]

    def admitted(self, name: str) -> WorkerRecord:
        """Returns the record of a worker; raises RefusedError if it may not push."""
        if not self.knows(name):
            raise RefusedError(
                f"worker {name!r} is not registered; call register_worker({name!r}) first",
                "unknown_worker",
            )
        worker = self.workers[name]
        if worker.quarantined:
            raise RefusedError(
                f"worker {name!r} is in quarantine: {worker.strikes} updates in a row had NaN or "
                "Inf, or would have made the parameters infinite; mend it, then call "
                f"pardon_worker, or start `rookery serve` again with --pardon {name}",
                "quarantined",
            )
        return worker

    def pushed(self, name: str, push_id: str | None) -> None:
        """Counts an accepted push, and remembers its id."""
        worker = self.workers[name]
        worker.pushes += 1
        worker.strikes = 0
        if push_id is not None:
            worker.applied.append(push_id)

    def quarantine(self, worker: str, strikes: int, *, on: bool = True) -> None:
        """Refuses what a worker pushes from now on; with `on` False it may push again."""
        record = self.workers[worker]
        record.quarantined, record.strikes = on, strikes

    def state(self) -> dict[str, Any]:
        """Returns the workers as JSON values."""
        return {
            name: [w.registered, w.quarantined, w.strikes, w.pushes, list(w.applied)]
            for name, w in self.workers.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.workers = {
            name: WorkerRecord(r, q, strikes, pushes, deque(push_ids, REMEMBERED))
            for name, (r, q, strikes, pushes, push_ids) in state.items()
        }


def check_name(text: str, what: str) -> None:
    """Raises RefusedError for a name or id that is empty or too long."""
    if not 1 <= len(text) <= LONGEST:
        raise RefusedError(
            f"a {what} must have 1 to {LONGEST} characters, got {len(text)}; choose another",
            "schema",
        )


class Machine:
    """The state machine of a parameter server: parameters, optimizer, workers, updates."""

    def __init__(self, initial: Named, rules: Rules):
        self.layout, self.rules = Layout.of(initial), rules
        self.stepper = Stepper(self.layout.start(initial), self.layout, rules)
        self.roster = Roster()
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._end_round()

    def _end_round(self) -> None:
        self.pending: list[Pending] = []
        self.gathered = gather(self.rules.aggregation, self.rules.liars)
        self.invited: list[str] | None = None  # clients that may push in this round; None: all
        self.terms: dict[str, Any] | None = None  # settings that the open round began with

    def change_rules(self, rules: Rules) -> None:
        """Continues from the same parameters; an optimizer of the same kind keeps its state."""
        before, self.rules = self.stepper, rules
        self.stepper = Stepper(before.values, self.layout, rules)
        if self.stepper.name == before.name:
            self.stepper.restore(before.name, before.state())

    def identity(self) -> dict[str, Any]:
        """Returns the settings with which replayed records lead to the same parameters."""
        return {
            "aggregation": self.rules.aggregation.value,
            "liars": list(self.rules.liars),
            "optimizer": self.stepper.name,
            "optimizer_kwargs": repr(sorted(self.rules.optimizer_kwargs.items())),
        }

    @property
    def round_is_open(self) -> bool:
        """Whether updates are pending, or a round has drawn its clients."""
        return bool(self.pending) or self.invited is not None

    def combined(self) -> Floats:
        """Returns the aggregate of the pending updates, [P]."""
        return self.gathered.combined(self.pending)

    def do(self, record: Record) -> None:
        """Applies a record to the state."""
        CHANGES[record.kind](self, record)

    def _open(self, record: Record) -> None:
        self.terms, self.invited = record.about["terms"], record.about["invited"]

    def _push(self, record: Record) -> None:
        assert record.floats is not None, "a push has an update"
        worker, weight = record.about["worker"], record.about["weight"]
        self.pending.append(Pending(worker, weight))
        self.gathered.add(record.floats, weight)
        self.roster.pushed(worker, record.about["id"])
        self.counts["ok"] += 1

    def _apply(self, record: Record) -> None:
        """Takes an optimizer step with the record's update, or else with what is pending.

        A step after which something would be infinite is not taken.
        """
        update = self.combined() if record.floats is None else record.floats
        if np.isfinite(update).all() and self.stepper.step(update, record.about["lrs"]):
            self._end_round()
            self.version += 1
        else:
            self._skip(skip("overflow"))

    def _skip(self, record: Record) -> None:
        self._end_round()
        self.counts[f"skipped_{record.about['why']}"] += 1

    # Saved, and back.

    def state(self) -> SavedServer:
        """Returns the whole state, which must be saved before it changes again."""
        groups = {
            SLOT: self.stepper.state(),
            PARAMETER: self.layout.split(self.stepper.values),
            PENDING: self.gathered.state(),
        }
        about = {
            "version": self.version,
            "names": list(self.layout.shapes),
            "stepper": {"optimizer": self.stepper.name},
            "workers": self.roster.state(),
            "counts": dict(self.counts),
            "pending": self.pending,
            "invited": self.invited,
            "terms": self.terms,
        }
        arrays = {prefix + n: array for prefix in groups for n, array in groups[prefix].items()}
        return SavedServer(about, arrays)

    def restore(self, saved: SavedServer) -> None:
        """Restores a checkpoint and replays its journal, on a new object."""
        self._refuse_others(saved.journal)
        try:
            self._load(saved.numbers, saved.arrays)
            for record in chain(*saved.journal[1:]):
                self.do(record)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint does not describe a parameter server ({type(error).__name__}: "
                f"{error}); put it back from a copy"
            ) from error

    def _refuse_others(self, journal: Sequence[Sequence[Record]]) -> None:
        """Raises CheckpointError if other rules would lead to other parameters."""
        steps = any(record.kind == "apply" for record in chain(*journal))
        if steps and journal[0][0].about != self.identity():
            raise CheckpointError(
                f"the journal is of {journal[0][0].about}, this server has {self.identity()}; "
                "start it once with the old settings and call save_checkpoint(), then change them"
            )

    def _load(self, numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        parameters = _below(arrays, PARAMETER)
        if wrong := self.layout.differences(parameters):
            raise CheckpointError(
                f"the checkpoint is of other parameters: {', '.join(wrong[:8])}; give the network "
                "it was saved with, or another checkpoint_path (--run-dir)"
            )
        ordered = {name: parameters[name] for name in numbers["names"]}  # as the optimizer's slots
        self.layout = Layout.of(ordered)
        self.stepper = Stepper(self.layout.start(ordered), self.layout, self.rules)
        self.stepper.restore(numbers["stepper"]["optimizer"], _below(arrays, SLOT))
        self._load_round(_below(arrays, PENDING), numbers["pending"])
        self.invited = numbers["invited"]
        self.terms = numbers.get("terms")  # an earlier release did not save them
        self.roster.restore(numbers["workers"])
        self.counts = Counter(numbers["counts"])
        self.version = int(numbers["version"])

    def _load_round(self, arrays: Mapping[str, Array], pending: Iterable[Sequence[Any]]) -> None:
        """Restores pending updates: a sum, or single ones, which an earlier release saved too."""
        self.pending = [Pending(worker, weight) for worker, weight, *_ in pending]
        if SUM not in arrays:
            for index, each in enumerate(self.pending):
                self.gathered.add(arrays[str(index)], each.weight)
        elif isinstance(self.gathered, RunningSum):  # else the round is skipped: see `terms`
            self.gathered.total = arrays[SUM]


CHANGES: Mapping[str, Callable[[Machine, Record], None]] = {  # by the kind of their records
    "join": lambda machine, record: machine.roster.join(**record.about),
    "leave": lambda machine, record: machine.roster.leave(**record.about),
    "quarantine": lambda machine, record: machine.roster.quarantine(**record.about),
    "open": Machine._open,
    "push": Machine._push,
    "apply": Machine._apply,
    "skip": Machine._skip,
}


def skip(why: str) -> Record:
    """Returns the record of a round that comes to nothing."""
    return Record("skip", {"why": why})


def _below(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the arrays whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
