"""The federated server that never sees an update: clients send masked ones, it sees their sum.

    server = SecureParameterServer(arrays, stay=2 / 3, deadline_s=30.0)
    server.take_stage("alice", Kind.ADVERTISE, letter, version=0)      # the letters: `letters`
    server.show_stage("alice")                                         # what alice does next
    Participant(server, "alice")                                       # does all of it

A round has four stages, each with a deadline (`rounds`). It begins with the first client that
advertises, and lives in memory alone: whoever ends this server, the round is begun anew with keys
that are new. A sum goes to the disk together with whose it is, in one piece, before anybody hears
of the next version; hence a client can ask whether its update is in it, and none counts twice.

All count alike: the update is the mean (`average`) or the sum of the clients' changes. Weights, and
rules that compare updates, need to see single ones, and are refused. So is differential privacy:
its noise hides one client in a sum, and not whether that client was the one too few for a sum.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.errors import ConfigError, RefusedError
from rookery.server import protocol, tensors
from rookery.server.aggregate import Aggregation
from rookery.server.federated import MU, FederatedParameterServer
from rookery.server.journal import Record
from rookery.server.layout import Layout, Named
from rookery.server.letters import ENTRY, Letter
from rookery.server.parameters import Receipt, checked, skip
from rookery.server.protocol import Kind
from rookery.server.rounds import ABSENT, BOUND, ROOM, STAY, TAKEN, Conduct, Ended, Round, View
from rookery.types import Floats

SUMMED = (Aggregation.AVERAGE.value, Aggregation.SUM.value)
APPLIED = View("applied", {})


class SecureParameterServer(FederatedParameterServer):
    """A federated server whose rounds are secure sums."""

    @checked
    def __init__(
        self,
        initial_parameters: Named,
        aggregation_method: str = "average",
        save_frequency: int = 100,
        checkpoint_path: str | Path | None = None,
        *,
        stay: float = STAY,
        min_workers_for_update: int = 2,
        server_rule: str = "fedavg",
        mu: float = MU,
        lr: float | None = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        quorum: int | None = None,
        deadline_s: float = 30.0,
        bound: float = BOUND,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`stay` is the share of a round's clients that must stay; `deadline_s` of each stage."""
        refuse_aggregation(aggregation_method)
        layout = Layout.of(initial_parameters)
        self.conduct = Conduct(
            size=layout.total,
            stay=stay,
            least=min_workers_for_update,
            quorum=quorum,
            deadline_s=deadline_s,
            bound=bound,
        )
        self._round: Round | None = None
        super().__init__(
            initial_parameters,
            aggregation_method,
            save_frequency=save_frequency,
            checkpoint_path=checkpoint_path,
            min_workers_for_update=min_workers_for_update,
            server_rule=server_rule,
            mu=mu,
            lr=lr,
            optimizer_kwargs=optimizer_kwargs,
            quorum=quorum,
            deadline_s=deadline_s,
            clock=clock,
        )

    @property
    def letter_bytes(self) -> int:
        """How long a letter can be."""
        return max(8 * self.conduct.size, ENTRY * ROOM)

    @checked
    def take_stage(
        self,
        worker: str,
        stage: Kind,
        letter: Letter,
        *,
        session: str = "",
        version: int | None = None,
        digest: str = "",
    ) -> Receipt:
        """Takes a letter of a round; to send one twice is to send it once.

        `version` is the one that the update was computed with, said with the keys. `digest` is
        that of the letter, where it is known already.
        """
        digest = digest or protocol.digest(tensors.pack(letter))
        try:
            with self._turn():
                self._machine.roster.admitted(worker)
                if stage is Kind.ADVERTISE:
                    _refuse_part(worker)
                    self._refuse_over()
                    if self._stale(version):
                        return self._answer("stale")
                code = self._come(stage, worker, letter, session, digest)
                return Receipt(code in TAKEN, code, self._machine.version)
        except RefusedError as error:
            self._count(f"refused_{error.code}")
            raise

    @checked
    def show_stage(self, worker: str, session: str = "") -> View:
        """Says what a client is to send next: a stage and what it needs for it, or a code.

        | code | means |
        |---|---|
        | wait | nothing for now |
        | applied | the sum of this session is applied, and the client's update is in it |
        | absent | there is no such round any more, or it goes without the client |
        """
        with self._turn():
            known = self._machine.roster.workers.get(worker)
            if session and known is not None and session in known.applied:
                return APPLIED
            return ABSENT if self._round is None else self._round.view(worker, session)

    def push_gradients(self, *given: Any, **more: Any) -> Receipt:
        """Refuses: an update that can be read is not for this server."""
        self._count("refused_masked")
        raise RefusedError(
            "this server takes masked updates only, and was sent one that can be read; take part "
            "in its secure sums, as `rookery join` does by itself",
            "masked",
        )

    @checked
    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server, ready for JSON; `stage` is "" between two rounds."""
        stats, now = super().get_server_stats(), self._round
        return {
            **stats,
            "secure_sums": True,
            "stay": self.conduct.stay,
            "stage": "" if now is None else now.stage.value,
            "stage_clients": [] if now is None else now.clients,
            "threshold": 0 if now is None else now.threshold,
        }

    def _stale(self, version: int | None) -> bool:
        return version is not None and self.rules.scale(self._machine.version - version) is None

    def _come(self, stage: Kind, worker: str, letter: Letter, session: str, digest: str) -> str:
        if self._round is None:
            if stage is not Kind.ADVERTISE:
                return "absent"
            self._round = Round(self.conduct, version=self._machine.version, clock=self._clock)
        return self._round.come(stage, worker, letter, session=session, digest=digest)

    # Rounds.

    def _overdue(self) -> bool:
        now = self._round
        return now is not None and now.overdue

    def _look(self) -> None:
        """Goes on with the round, and applies its sum. One of another checkpoint is forgotten."""
        if self._round is not None and self._round.version != self._machine.version:
            self._round = None
        if self._round is None:
            return
        ended = self._round.tend(self._machine.roster.active())
        if ended is not None:
            self._commit(self._records(ended))
            self._round = None

    def _records(self, ended: Ended) -> Sequence[Record]:
        if ended.total is None:
            return [skip(ended.why)]
        summed = self.rules.aggregation is Aggregation.SUM
        change = ended.total if summed else ended.total / len(ended.clients)
        about = {"workers": list(ended.clients), "id": ended.session}
        lrs = {"lrs": self._machine.stepper.lrs}
        return [Record("sum", about), Record("apply", lrs, -self._ordered(change))]

    def _ordered(self, change: Floats) -> Floats:
        """Returns a change [P], which clients send by name in their order, in ours."""
        own = self._machine.layout
        shapes = dict(zip(own.names, own.shapes, strict=True))
        theirs = Layout(tuple(sorted(shapes)), tuple(shapes[name] for name in sorted(shapes)))
        return own.join(theirs.split(change.astype(np.float32)))

    def _noted(self, record: Record) -> Record:
        """There is nothing to compute a sum from again."""
        return record


def _refuse_part(worker: str) -> None:
    """Whoever had many seats would reach the threshold alone."""
    if "/" in worker:
        raise RefusedError(
            f"in a secure sum a client counts once, and {worker!r} is a part of one; take part as "
            f"{worker.partition('/')[0]!r}",
            "clients",
        )


def refuse_aggregation(method: str) -> None:
    """Raises a ConfigError for a rule that a sum alone does not allow."""
    if method not in SUMMED:
        raise ConfigError(
            f"secure sums were asked for with aggregation {method!r}, and the server sees no "
            f"single update or weight; choose {' or '.join(SUMMED)}, or leave secure sums out"
        )
