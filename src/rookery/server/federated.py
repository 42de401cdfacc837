"""Federated learning: a parameter server whose clients train in rounds before they push.

What is pushed is what training changed (`pushes="deltas"`), or the trained weights themselves
(`pushes="weights"`). The server takes the negative mean of the changes for a gradient (Reddi et al.
2021) and gives it to its optimizer:

| server_rule | optimizer |
|---|---|
| fedavg | SGD with learning rate 1: the parameters become the mean of the clients' (McMahan 2017) |
| fedprox | the same; clients add mu (w - w_received) to their gradients (Li et al. 2020) |
| fedadam | Adam, betas 0.9 and 0.99, epsilon 1e-3 (Reddi et al. 2021, here with bias correction) |

A client learns the rule and `mu` from `get_server_stats()`.

With `differential_privacy` every update is clipped to `clip_norm`, counts once, and normal noise of
`noise_scale` x `clip_norm` is added to their sum before it is shown. Only with a `ledger` does
that promise something: it says how many clients there are and how many a round draws, adds up what
the rounds cost, and ends them before its target is passed. That a client has joined is no secret;
in which rounds it is drawn is one. Rounds begin when `quorum` clients have joined (None: half of
all). Each goes out at its deadline with what came, and its mean is over the expected number of
clients; only where all are drawn it goes out once all have come. See `privacy/noise.py`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from rookery.config.checks import Count, read
from rookery.errors import BudgetError, ConfigError, RefusedError
from rookery.server.aggregate import Aggregation, Doubles, Pending, RunningSum
from rookery.server.flat_layout import Named
from rookery.server.parameter_server import Parameters, ParameterServer
from rookery.server.privacy import noise, privacy_checks
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.server_rules import FiniteOr0, ServerOptions, checked_methods
from rookery.server.server_state import skip
from rookery.server.store import Record, Store
from rookery.types import Array, Floats

MU = 0.01  # of FedProx, unless it is said
# of the statistics, what tells nothing about who took part in which round
OPEN = (
    *("version", "over", "aggregation", "synchronous", "parameters", "server_rule", "mu"),
    *("update_kind", "min_workers_for_update", "quorum", "differential_privacy"),
    *("noise_multiplier", "clip_norm", "epsilon", "target_epsilon", "delta"),
)


class ServerRule(StrEnum):
    """The rule by which a federated server applies the aggregated change of the weights."""

    FEDAVG = "fedavg"
    FEDPROX = "fedprox"
    FEDADAM = "fedadam"


STEPPING: Mapping[ServerRule, ServerOptions] = {
    ServerRule.FEDAVG: {"optimizer": torch.optim.SGD, "lr": 1.0},
    ServerRule.FEDPROX: {"optimizer": torch.optim.SGD, "lr": 1.0},
    ServerRule.FEDADAM: {
        "optimizer": torch.optim.Adam,
        "lr": 0.01,
        "optimizer_kwargs": {"betas": (0.9, 0.99), "eps": 1e-3},
    },
}


class Pushes(StrEnum):
    """The kind of update that clients of a federated server push."""

    DELTAS = "deltas"
    WEIGHTS = "weights"


@checked_methods
class FederatedParameterServer(ParameterServer):
    """A parameter server with rounds, whose clients push the change of the weights in a round.

    server = FederatedParameterServer(arrays, min_workers_for_update=2)
    server.register_worker("a")
    version, arrays = server.get_parameters()          # a client, each round:
    ...                                                # trains from them on its own data
    server.push_gradients("a", deltas, weight=samples, version=version)
    server.federated_averaging()                       # ends the round before its deadline
    """

    def __init__(
        self,
        initial_parameters: Named,
        aggregation_method: str = "federated",
        update_frequency: int = 10,
        save_frequency: int = 100,
        checkpoint_path: str | Path | None = None,
        *,
        min_workers_for_update: Count = 2,
        differential_privacy: bool = False,
        noise_scale: float = 0.1,
        clip_norm: float = 1.0,
        ledger: Ledger | None = None,
        server_rule: str = "fedavg",
        mu: FiniteOr0 = MU,
        pushes: str = "deltas",
        **options: Unpack[ServerOptions],
    ):
        """Options are those of a `ParameterServer`; `lr`, `optimizer_kwargs` precede the rule's.

        A server is `synchronous` unless options say otherwise. A `ledger` brings its own noise.
        """
        self.server_rule = ServerRule(read(ServerRule, server_rule, "server_rule"))
        self.pushes = Pushes(read(Pushes, pushes, "pushes"))
        self.mu = mu if self.server_rule is ServerRule.FEDPROX else 0.0
        self.min_workers_for_update = min_workers_for_update
        self.private, self.clip_norm, self.ledger = differential_privacy, clip_norm, ledger
        self.noise_scale = noise_scale if ledger is None else ledger.noise_multiplier
        self._paid: dict[str, Any] | None = None  # the terms of the last round that was charged
        rule = STEPPING[self.server_rule]
        kwargs = {**rule.get("optimizer_kwargs", {}), **options.get("optimizer_kwargs", {})}
        merged: ServerOptions = {"synchronous": True, **rule, **options, "optimizer_kwargs": kwargs}
        _refuse(self, aggregation_method, merged)
        super().__init__(
            initial_parameters,
            aggregation_method,
            update_frequency,
            save_frequency,
            checkpoint_path,
            **merged,
        )
        if self.private and self._store is not None and self._saved < self.version:
            self._save_now()  # an earlier server was killed before it could forget updates

    def federated_averaging(self) -> Parameters | None:
        """Closes the round now; returns the new parameters, or None if too few have pushed."""
        before = self.version
        self.update_parameters()
        return self.get_parameters(newer_than=before)

    def aggregate_gradients(self) -> dict[str, Array] | None:
        """Returns the aggregate of the pending updates, without applying it; None if none are.

        As a gradient: what the optimizer will go against. Under privacy it is refused.
        """
        if self.private:
            raise RefusedError(
                "under differential privacy an aggregate is shown with noise and once, when it is "
                "applied; wait for the next version, or call federated_averaging()",
                "private",
            )
        return super().aggregate_gradients()

    def validate_worker_update(self, worker: str, update: Named) -> bool:
        """Returns whether a push would fit: its worker, names, shapes, dtypes, finite values."""
        try:
            with self._lock:
                self._machine.roster.admitted(worker)
            return bool(np.isfinite(self._machine.layout.join(update)).all())
        except RefusedError:
            return False

    def add_differential_privacy_noise(self, arrays: Named, clients: int = 1) -> dict[str, Array]:
        """Returns the mean of the updates of so many clients, with privacy's noise added."""
        layout, scale = self._machine.layout, self.noise_scale * self.clip_norm
        total = layout.join(arrays) * np.float64(clients)
        return layout.split(noise.noisy_mean(total, scale, clients))

    def get_server_stats(self) -> dict[str, Any]:
        """Returns numbers about the server, ready for JSON; `epsilon` is None without a ledger."""
        ledger = self.ledger
        return {
            **super().get_server_stats(),
            "server_rule": self.server_rule.value,
            "mu": self.mu,
            "update_kind": self.pushes.value,
            "min_workers_for_update": self.min_workers_for_update,
            "joined": len(self._machine.roster.joined()),
            "quorum": self.rules.quorum if ledger is None else self._quorum(ledger),
            "differential_privacy": self.private,
            "noise_multiplier": self.noise_scale if self.private else 0.0,
            "clip_norm": self.clip_norm if self.private else None,
            **{
                name: getattr(ledger, name, None) for name in ("epsilon", "target_epsilon", "delta")
            },
        }

    def get_client_stats(self) -> dict[str, Any]:
        """Returns what clients may know: under privacy not who took part, nor when or how many."""
        stats = self.get_server_stats()
        return {key: stats[key] for key in OPEN} if self.private else stats

    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Loads a checkpoint, from `checkpoint_path` or, without a ledger, from another path."""
        if self.ledger is not None and path is not None:
            raise RefusedError(
                f"a checkpoint was to be loaded from {path}, and the ledger knows of no version in "
                "it; make a new server of its parameters, with this ledger",
                "ledger",
            )
        return super().load_checkpoint(path)

    # What is other than in the server of gradients.

    def _refuse_newcomer(self, worker: str) -> None:
        super()._refuse_newcomer(worker)
        self._refuse_crowd(worker)

    def _refuse_crowd(self, *newcomers: str) -> None:
        if self.private:
            clients = float("inf") if self.ledger is None else self.ledger.clients
            privacy_checks.refuse_workers({*self._machine.roster.workers, *newcomers}, clients)

    def _refuse_past(self) -> None:
        """Raises ConfigError for more clients or versions than the ledger knows of."""
        try:
            self._refuse_crowd()
        except RefusedError as error:
            raise ConfigError(str(error)) from error
        version = self._machine.version
        if self.ledger is not None and self.ledger.rounds < version:
            raise ConfigError(
                f"this server has shown {version} versions, and its ledger knows of "
                f"{self.ledger.rounds} rounds; put the newest ledger back, or name another "
                "checkpoint_path (--run-dir)"
            )

    def _terms(self) -> dict[str, Any]:
        """Returns also the settings of privacy: an update is not released under other ones."""
        terms = {**super()._terms(), "pushes": self.pushes.value, "privacy": "none"}
        if self.private:
            terms |= {"privacy": "noise", "clip": self.clip_norm, "noise": self.noise_scale}
        if self.ledger is not None:
            terms |= {"privacy": "ledger", "sample_rate": self.ledger.sample_rate}
        return terms

    def _incoming(self, update: Floats) -> Floats:
        """Returns the change as a gradient, [P]: against the one the optimizer goes."""
        is_delta = self.pushes is Pushes.DELTAS
        with np.errstate(over="ignore"):  # an infinite change is refused
            gradient = -update if is_delta else self._machine.stepper.values - update
        return noise.clip(gradient, self.clip_norm) if self.private else gradient

    def _weight(self, weight: float) -> float:
        if self.private:
            privacy_checks.refuse_weight(weight)
        return super()._weight(weight)

    def _unwelcome(self, worker: str) -> str:
        """Draws the clients of a round with its first push, once enough have joined."""
        if self.ledger is None:
            return ""
        if self._machine.invited is None:
            if len(self._machine.roster.joined()) < self._quorum(self.ledger):
                return "early"
            # a round without clients goes out too: at its deadline, as noise, charged
            drawn = noise.subsample(self._machine.roster.active(), self.ledger.sample_rate)
            self._commit([self._opening(drawn)])
        return "" if worker in (self._machine.invited or ()) else "uninvited"

    def _quorum(self, ledger: Ledger) -> int:
        """Returns how many clients must have joined: rounds of few cost all of them as much."""
        return self.rules.quorum or (ledger.clients + 1) // 2

    @property
    def over(self) -> str | None:
        ledger = self.ledger
        spent = ledger is not None and ledger.would_be() > ledger.target_epsilon
        return super().over or ("budget" if spent else None)

    def _refuse_over(self) -> None:
        super()._refuse_over()
        ledger, begun = self.ledger, self._machine.invited is not None
        if ledger is not None and not begun and self.over == "budget":
            raise BudgetError(
                f"epsilon is {ledger.epsilon:.4g}, and one more round would pass the "
                f"{ledger.target_epsilon:g} that were promised; training ends here"
            )

    def _least(self) -> int:
        """With a ledger a round goes out in any case: that few came would tell something too."""
        return 0 if self.ledger else max(self.rules.least, self.min_workers_for_update)

    def _bearable(self) -> int:
        return 0 if self.ledger else max(self._least(), self.rules.quorum or 0)

    def _complete(self, pending: Sequence[Pending]) -> bool:
        invited = self._machine.invited
        if self.ledger is None or invited is None:
            return super()._complete(pending)
        if self.ledger.sample_rate < 1:
            return False  # how soon a round is over would tell whom it drew
        awaited = set(invited) & set(self._machine.roster.active())
        return awaited <= {each.worker for each in pending}

    def _closing(
        self, pending: Sequence[Pending], lr: float | None = None, last: Floats | None = None
    ) -> Record:
        """Under privacy the update is written down: its noise cannot be computed again."""
        ledger = self.ledger
        unpaid = ledger is not None and self._paid is not self._machine.terms
        if ledger is not None and unpaid and ledger.would_be() > ledger.target_epsilon:
            return skip("budget")
        record = super()._closing(pending, lr, last)
        if not self.private or record.kind != "apply":
            return record
        gathered = self._machine.gathered
        assert isinstance(gathered, RunningSum), "no other rule is private"
        total = np.zeros(self._machine.layout.total)
        for part in (gathered.total, last):
            total += 0.0 if part is None else part
        return record._replace(floats=self._released(total, len(pending)))

    def _released(self, total: Doubles, count: int) -> Floats:
        """Returns what may be shown of the updates, [P]; with a ledger it is paid for first.

        A round is charged once, also where its release could not be written down before: nothing
        was shown then, so that the charge is still good for one release.
        """
        clients: float = count
        if self.ledger is not None:
            if self._paid is not self._machine.terms:
                self.ledger.charge()
                self._paid = self._machine.terms
            clients = self.ledger.sample_rate * self.ledger.clients
        if self.rules.aggregation is Aggregation.SUM:
            clients = 1
        return noise.noisy_mean(total, self.noise_scale * self.clip_norm, clients)

    def _worth_saving(self, kept: Store, records: Sequence[Record]) -> bool:
        """Under privacy a round that is over leaves no single update in the journal."""
        over = any(record.kind in ("apply", "skip") for record in records)
        return (self.private and over) or super()._worth_saving(kept, records)

    def _leaving(self, worker: str) -> Record:
        """With a ledger all that ever joined count, so none of them is forgotten."""
        return Record("leave", {"worker": worker, "counts": self.ledger is not None})


def _refuse(server: FederatedParameterServer, aggregation: str, options: ServerOptions) -> None:
    ledger, quorum = server.ledger, options.get("quorum") or 0
    clients = quorum if ledger is None else ledger.clients
    clashes = {
        "a ledger was given without differential_privacy; say differential_privacy=True, or leave "
        "the ledger out": ledger is not None and not server.private,
        f"rounds begin when {quorum} clients have joined (--quorum), and privacy is promised to "
        f"{clients} (--clients): none would ever begin; lower the quorum": quorum > clients,
        "differential_privacy was asked for without rounds, where one client could count many "
        "times; say synchronous=True": server.private and not options["synchronous"],
    }
    for message, clash in clashes.items():
        if clash:
            raise ConfigError(message)
    if server.private:
        privacy_checks.refuse_aggregation(aggregation)
        privacy_checks.refuse_numbers(
            noise_multiplier=server.noise_scale, clip_norm=server.clip_norm
        )
