"""The state of a parameter server, and all that can happen to it.

    machine.do(Record("push", {"worker": "a", "weight": 1.0, "id": None}, update))
    machine.do(Record("apply", {"lrs": [0.1]}))

What happens is a function of the state and the record: no clock, no chance, no setting but the
machine's own. A server that writes its records down and does them again comes to the same state.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import CheckpointError
from rookery.server import aggregate
from rookery.server.aggregate import ROBUST, Aggregation, Liars
from rookery.server.clients import Roster
from rookery.server.flat_layout import Layout, Named
from rookery.server.journal import Record
from rookery.server.optimizer_step import Maker, Stepper
from rookery.server.pending_update import Pending, SparseUpdate, packed
from rookery.server.store import SavedServer, StoredServer
from rookery.types import Array, Floats

BLOCK = 1 << 16  # entries that are aggregated at once, at least
PARAMETER, SLOT, PENDING = "parameter.", "optimizer.", "pending."  # arrays in a checkpoint


class Moving(NamedTuple):
    """How the parameters are moved."""

    optimizer: str | Maker
    lr: float
    kwargs: dict[str, Any]
    aggregation: Aggregation
    liars: Liars


class Machine:
    """Parameters, optimizer, workers and what is pending."""

    def __init__(self, initial: Named, moving: Moving):
        self.layout, self.moving = Layout.of(initial), moving
        self.stepper = self._stepper(self.layout.start(initial), self.layout)
        self.roster = Roster()
        self.pending: list[Pending] = []
        self.invited: list[str] | None = None  # who may push in this round; None: everybody
        self.terms: dict[str, Any] | None = None  # settings that the open round began with
        self.version = 0
        self.counts: Counter[str] = Counter()

    def _stepper(self, start: Floats, layout: Layout) -> Stepper:
        return Stepper(start, layout, self.moving.optimizer, self.moving.lr, self.moving.kwargs)

    def identity(self) -> dict[str, Any]:
        """What must be the same for the same records to lead to the same parameters."""
        return {
            "aggregation": self.moving.aggregation.value,
            "liars": list(self.moving.liars),
            "optimizer": self.stepper.name,
            "optimizer_kwargs": repr(sorted(self.moving.kwargs.items())),
        }

    def aggregate(self, pending: Sequence[Pending]) -> Floats:
        """Makes one [P] update of several, part by part: together they may be too large."""
        method, total = self.moving.aggregation, self.layout.total
        found = np.empty(total, np.float32)
        blocks = 1 if method is Aggregation.KRUM else max(1, total // BLOCK)  # it compares wholes
        bounds = [total * i // blocks for i in range(blocks + 1)]
        for start, stop in pairwise(bounds):
            votes = (_by_worker if method in ROBUST else _each)(pending, start, stop)
            weights = np.array([weight for weight, _ in votes])
            updates = np.stack([part for _, part in votes])
            found[start:stop] = aggregate.aggregate(method, updates, weights, self.moving.liars)
        return found

    @property
    def pending_bytes(self) -> int:
        """How much memory the updates of the open round take."""
        return sum(each.nbytes for each in self.pending)

    @property
    def round_is_open(self) -> bool:
        """Is something pending, or has a round drawn its clients?"""
        return bool(self.pending) or self.invited is not None

    def do(self, record: Record) -> None:
        """Lets something happen."""
        DEEDS[record.kind](self, record)

    def _push(self, record: Record) -> None:
        self.pending.append(pending_of(record))
        self.roster.pushed(record.about["worker"], record.about["id"])
        self.counts["ok"] += 1

    def _apply(self, record: Record) -> None:
        """Where the record does not have the update, it is that of what is pending.

        A step after which something would be infinite is not taken.
        """
        update = self.aggregate(self.pending) if record.floats is None else record.floats
        if self.stepper.step(update, record.about["lrs"]):
            self._end_round()
            self.version += 1
        else:
            self._skip(skip("overflow"))

    def _skip(self, record: Record) -> None:
        self._end_round()
        self.counts[f"skipped_{record.about['why']}"] += 1

    def _end_round(self) -> None:
        self.pending, self.invited, self.terms = [], None, None

    def _open(self, record: Record) -> None:
        self.terms = dict(record.about)

    def _invite(self, record: Record) -> None:
        self.invited = list(record.about["workers"])

    def _join(self, record: Record) -> None:
        self.roster.join(record.about["worker"])

    def _leave(self, record: Record) -> None:
        self.roster.leave(record.about["worker"])

    def _retire(self, record: Record) -> None:
        self.roster.retire(record.about["worker"])

    def _quarantine(self, record: Record) -> None:
        self.roster.quarantine(record.about["worker"], record.about["strikes"])

    def _pardon(self, record: Record) -> None:
        self.roster.pardon(record.about["worker"])

    # Saved, and back.

    def state(self) -> SavedServer:
        """Returns everything, to be saved before anything else happens."""
        numbers, slots = self.stepper.state()
        arrays = {SLOT + name: array for name, array in slots.items()}
        for name, array in self.layout.split(self.stepper.values).items():
            arrays[PARAMETER + name] = array
        for i, each in enumerate(self.pending):
            if isinstance(each.update, SparseUpdate):
                arrays[f"{PENDING}{i}.places"] = each.update.places
                arrays[f"{PENDING}{i}.values"] = each.update.values
            else:
                arrays[f"{PENDING}{i}"] = each.update
        about = {
            "version": self.version,
            "names": list(self.layout.names),
            "stepper": numbers,
            "workers": self.roster.state(),
            "counts": dict(self.counts),
            "pending": [[each.worker, each.weight, _zero(each.update)] for each in self.pending],
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
        layout = Layout.of(ordered)
        stepper = self._stepper(layout.start(ordered), layout)
        stepper.restore(numbers["stepper"], _below(arrays, SLOT))
        self.pending = [
            Pending(str(worker), float(weight), _update(arrays, i, *zero))
            for i, (worker, weight, *zero) in enumerate(numbers["pending"])
        ]
        self.invited = None if numbers["invited"] is None else list(numbers["invited"])
        terms = numbers.get("terms")  # an earlier release did not save them
        self.terms = None if terms is None else dict(terms)
        self.roster.restore(numbers["workers"])
        self.counts = Counter(numbers["counts"])
        self.version = int(numbers["version"])
        self.layout, self.stepper = layout, stepper


DEEDS: dict[str, Callable[[Machine, Record], None]] = {
    "open": Machine._open,
    "push": Machine._push,
    "apply": Machine._apply,
    "skip": Machine._skip,
    "invite": Machine._invite,
    "join": Machine._join,
    "leave": Machine._leave,
    "retire": Machine._retire,
    "quarantine": Machine._quarantine,
    "pardon": Machine._pardon,
}


def skip(why: str) -> Record:
    """Returns that a round comes to nothing."""
    return Record("skip", {"why": why})


def pending_of(push: Record) -> Pending:
    """Returns what a push leaves pending."""
    assert push.floats is not None, "a push has an update"
    return Pending(push.about["worker"], push.about["weight"], packed(push.floats))


def _zero(update: Floats | SparseUpdate) -> float | None:
    return update.zero if isinstance(update, SparseUpdate) else None


def _update(
    arrays: Mapping[str, Array], index: int, zero: float | None = None
) -> Floats | SparseUpdate:
    """Returns a saved update; None: it was saved whole."""
    if zero is None:
        return arrays[f"{PENDING}{index}"]
    places, values = arrays[f"{PENDING}{index}.places"], arrays[f"{PENDING}{index}.values"]
    return SparseUpdate(places, values, float(zero))


class Vote(NamedTuple):
    """A part of an update, and what it counts."""

    weight: float
    part: Floats  # [stop - start]


def _each(pending: Sequence[Pending], start: int, stop: int) -> list[Vote]:
    return [Vote(each.weight, each.part(start, stop)) for each in pending]


def _by_worker(pending: Sequence[Pending], start: int, stop: int) -> list[Vote]:
    """Gives each worker one vote, the mean of what it pushed: a liar must not outvote by haste."""
    pushed: dict[str, list[Floats]] = {}
    for each in pending:
        pushed.setdefault(each.worker, []).append(each.part(start, stop))
    return [Vote(1.0, _mean(own)) for own in pushed.values()]


def _mean(updates: Sequence[Floats]) -> Floats:
    return aggregate.aggregate(Aggregation.AVERAGE, np.stack(updates), np.ones(len(updates)))


def _below(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the arrays whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
