"""Who takes part: registered workers, what each has pushed, and who is not believed any more."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.errors import RefusedError

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

    def join(self, name: str) -> None:
        self.workers.setdefault(name, WorkerRecord()).registered = True

    def leave(self, name: str) -> None:
        """Forgets nothing at once: a repeat may still be on its way, and quarantine stays."""
        if name in self.workers:
            self.workers[name] = worker = self.workers.pop(name)  # now the latest to depart
            worker.registered = False
        gone = [n for n, w in self.workers.items() if not (w.registered or w.quarantined)]
        for old in gone[:-DEPARTED]:
            del self.workers[old]

    def retire(self, name: str) -> None:
        """Lets one leave that is remembered for good, since it counts."""
        if name in self.workers:
            self.workers[name].registered = False

    def knows(self, name: str) -> bool:
        return name in self.workers and self.workers[name].registered

    def active(self) -> list[str]:
        """Returns those whose updates are awaited."""
        return [n for n, w in self.workers.items() if w.registered and not w.quarantined]

    def joined(self) -> list[str]:
        """Returns those who are here, in quarantine too."""
        return [n for n, w in self.workers.items() if w.registered]

    def involved(self) -> set[str]:
        """Returns all that ever joined and were not forgotten."""
        return set(self.workers)

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
        worker = self.workers.setdefault(name, WorkerRecord())
        worker.pushes += 1
        worker.strikes = 0
        if push_id is not None:
            worker.applied[push_id] = None
            while len(worker.applied) > REMEMBERED:
                worker.applied.popitem(last=False)

    def quarantine(self, name: str, strikes: int) -> None:
        worker = self.workers.setdefault(name, WorkerRecord())
        worker.quarantined, worker.strikes = True, strikes

    def pardon(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].quarantined, self.workers[name].strikes = False, 0

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
    """Refuses names that are empty, or long enough to be somebody's way to fill our memory."""
    if not 1 <= len(text) <= LONGEST:
        raise RefusedError(
            f"a {what} must have 1 to {LONGEST} characters, got {len(text)}; choose another",
            "schema",
        )
