"""A client's side of secure rounds, whichever way its letters travel.

    participant = Participant(remote, "alice")
    participant.begin(update, version=7)          # [P], in the order of the parameters' names
    while (fate := participant.step()) is None:   # one exchange with the server
        ...                                       # sleep a little

A round that is given up, or lost with its server, is begun anew with new keys. But an update that
was sent masked is sent once (Fate.LOST): its round may have come to a sum before it was lost, and
the difference of two sums that differ in one client is that client's update.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

import numpy as np

from rookery.errors import ProtocolError, RefusedError
from rookery.server import letters
from rookery.server.letters import Letter
from rookery.server.parameters import Receipt
from rookery.server.protocol import STAGES, Kind
from rookery.server.secrets import Contributor, KeyPair
from rookery.types import Floats

PASSING = frozenset({"share", "quorum"})  # another client's fault: the next round may do


class Fate(StrEnum):
    """What became of an update."""

    APPLIED = "ok"
    STALE = "stale"  # the server has another version
    LOST = "lost"  # it was sent, masked, and its round came to nothing: it must not be sent again


class View(Protocol):
    """What a client is to do next."""

    @property
    def code(self) -> str: ...
    @property
    def letter(self) -> Letter: ...


class Summing(Protocol):
    """A server of secure sums, here or elsewhere."""

    def register_worker(self, worker: str) -> int: ...
    def take_stage(
        self,
        worker: str,
        stage: Kind,
        letter: Letter,
        *,
        session: str = "",
        version: int | None = None,
    ) -> Receipt: ...
    def show_stage(self, worker: str, session: str = "") -> View: ...


class Participant:
    """Takes part for one worker, one update after the other."""

    def __init__(self, server: Summing, worker: str, *, at_least: int = 2):
        """Sums of fewer than `at_least` clients go without this one."""
        self._server, self._worker, self._at_least = server, worker, at_least
        self._update: Floats = np.zeros(0, np.float32)
        self._version = -1
        self.server_version = -1  # as it was last told
        self._forget()

    def begin(self, update: Floats, version: int) -> None:
        """Takes over an update [P] that was computed with a version."""
        self._update, self._version = update, version
        self._forget()

    def step(self) -> Fate | None:
        """Sends or asks one thing; returns what became of the update, once that is known."""
        if not len(self._update):
            raise ProtocolError("there is no update to take part with; begin() comes first")
        if not self._advertised:
            return self._advertise()
        seen = self._server.show_stage(self._worker, self._session)
        if seen.code not in ANSWERS:
            raise RefusedError(
                f"the server says {seen.code!r:.50} of a secure sum, which is none of "
                f"{', '.join(ANSWERS)}; use a client of the same release",
                "malformed",
            )
        return ANSWERS[seen.code](self, seen.letter)

    def _forget(self) -> None:
        """Keys are for one round."""
        self._keys = KeyPair.fresh()
        self._advertised, self._session, self._out = False, "", False
        self._contributor: Contributor | None = None
        self._written: dict[Kind, Letter] = {}

    def _advertise(self) -> Fate | None:
        letter = letters.of_advert(self._keys.advert(self._worker))
        receipt = self._send(Kind.ADVERTISE, letter)
        self._advertised = receipt.accepted
        return Fate.STALE if receipt.code == "stale" else None

    def _go_on(self, stage: Kind, letter: Letter) -> Fate | None:
        """Writes what is wanted, once, and sends it; who cannot waits for the round's end."""
        if self._out:
            return None
        if stage not in self._written:
            try:
                self._written[stage] = WRITE[stage](self, letter)
            except RefusedError as refusal:
                if refusal.code not in PASSING:
                    raise
                self._out = True
                return None
        self._send(stage, self._written[stage])
        return None

    def _send(self, stage: Kind, letter: Letter) -> Receipt:
        """Sends a letter. A server that was put back to before we came is told that we are here."""
        try:
            receipt = self._server.take_stage(
                self._worker, stage, letter, session=self._session, version=self._version
            )
        except RefusedError as refusal:
            if refusal.code != "unknown_worker":
                raise
            known = self._server.register_worker(self._worker)
            receipt = Receipt(False, refusal.code, known)
        self.server_version = receipt.version
        return receipt

    def _wait(self, letter: Letter) -> Fate | None:
        return None

    def _applied(self, letter: Letter) -> Fate | None:
        return Fate.APPLIED

    def _absent(self, letter: Letter) -> Fate | None:
        sent = Kind.MASK in self._written
        self._forget()
        return Fate.LOST if sent else None

    # Letters.

    def _share(self, letter: Letter) -> Letter:
        terms, roster = letters.invitation(letter)
        self._session = terms.session.hex()
        self._refuse_update(terms.size, terms.bound)
        if len(roster) != terms.clients or terms.threshold < self._at_least:
            raise RefusedError(
                f"a sum of {terms.threshold} clients or more was offered, of {len(roster)}, and "
                f"this client takes part in sums of {self._at_least} or more; wait for others",
                "quorum",
            )
        self._contributor = Contributor(terms, self._worker, self._keys)
        return letters.of_posted(self._contributor.share(roster))

    def _mask(self, letter: Letter) -> Letter:
        parcels = letters.delivered(self._worker, letter)
        return letters.of_masked(self._own.mask(parcels, self._update))

    def _unmask(self, letter: Letter) -> Letter:
        return letters.of_answer(self._own.unmask(letters.question(letter)))

    @property
    def _own(self) -> Contributor:
        if self._contributor is None:
            raise RefusedError("the server asks for a stage before its first one", "early")
        return self._contributor

    def _refuse_update(self, size: int, bound: float) -> None:
        """Before secrets are shared: who leaves now is missed by nobody."""
        if len(self._update) != size:
            raise RefusedError(
                f"the server sums updates of {size} numbers and this one has "
                f"{len(self._update)}; use its scenario",
                "schema",
            )
        if not np.all(np.abs(self._update) <= bound):
            raise RefusedError(
                f"a number of an update must be within {bound:g} to be summed, got up to "
                f"{np.abs(self._update).max():g}; lower learner.lr or the steps of a round",
                "range",
            )


WRITE: Mapping[Kind, Callable[[Participant, Letter], Letter]] = {
    Kind.SHARE: Participant._share,
    Kind.MASK: Participant._mask,
    Kind.UNMASK: Participant._unmask,
}


def _stage(stage: Kind) -> Callable[[Participant, Letter], Fate | None]:
    return lambda participant, letter: participant._go_on(stage, letter)


ANSWERS: Mapping[str, Callable[[Participant, Letter], Fate | None]] = {
    "wait": Participant._wait,
    "applied": Participant._applied,
    "absent": Participant._absent,
    **{stage.value: _stage(stage) for stage in STAGES[1:]},
}
