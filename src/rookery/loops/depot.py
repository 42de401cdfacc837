"""The depot: a run's replay on the hosts of a cluster. To a loop it is a `Pool`.

In sync mode a batch is asked for when it is needed, so that a run is a function of its seed. In
async some are always on their way, several in one message, so that the learner does not wait for
the network; priorities are then a few batches old. Of a batch that was asked for ahead fewer rows
may be taken: where runs share, the rest of a batch is borrowed (`envoy.py`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rookery import seeding
from rookery.board import Board
from rookery.config.schema import Mode
from rookery.errors import EmptyReplayError
from rookery.loops.fleet import Fleet
from rookery.loops.station import Adopt, Restore, Save, Unsaved
from rookery.replay.batches import picked
from rookery.replay.kept import (
    Extent,
    Kept,
    Segments,
    Stretch,
    apart,
    combined,
    of_place,
    remembered,
)
from rookery.replay.pool import Drained
from rookery.replay.sampler import SAMPLERS
from rookery.replay.shards import Deck, Wanted, drawn, rerank, seen, together
from rookery.types import Array, Batch, Rows

PACK = 8  # batches asked for in one message
AHEAD = 2  # such messages on their way, at least


class Depot:
    """Draws from the shards of a fleet."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator):
        self.fleet = fleet
        self.version = 0  # the stations are told with the weights
        self.deck = Deck(SAMPLERS[fleet.config.replay.draw], rng)
        self._ahead: deque[Wanted] = deque()
        self._errors: list[tuple[Rows, Array]] = []  # not sent yet

    def drain(self) -> Drained:
        """Returns what stations have told of since the last call."""
        return together([berth.drain() for berth in self.fleet.berths])

    def fetch(self) -> list[Stretch]:
        """Copies the rows that were drained last, but for those of a station lost since then."""
        counts = {b.place: sum(d.drained.count for d in b.drained) for b in self.fleet.berths}
        orders = {
            place: Unsaved(max(0, self.fleet.berths[place].facts.extent.committed - count))
            for place, count in counts.items()
            if count
        }
        stretches = self.fleet.ask(orders)
        return [stretches[place] for place in sorted(stretches)]

    def draw(self, batch: int, *, beta: float = 1.0) -> Batch:
        self._wait_for_rows()
        try:
            taken = self._draw(batch, beta)
        except EmptyReplayError:
            if self._drawable:
                raise
            taken = None  # everybody was lost, or fell silent, meanwhile
        return taken if taken is not None else self.draw(batch, beta=beta)

    def _draw(self, batch: int, beta: float) -> Batch | None:
        """Returns a batch; None where no row of it is whole."""
        if self.fleet.config.run.mode is not Mode.ASYNC:
            self.fleet.settle()  # what a shard's spread is must be known exactly
            return drawn(self.deck, self.fleet.berths, batch, beta)
        self._ask_ahead(max(batch, self.fleet.config.replay.batch))
        taken = self.deck.take(self.fleet.berths, self._ahead.popleft(), beta)
        return self._some(taken, batch) if taken.rows.size else None

    def _some(self, taken: Batch, batch: int) -> Batch:
        """Leaves rows out at random where fewer are wanted than were asked for.

        Not the last ones: prioritised rows come in the order of their strata.
        """
        if taken.rows.size <= batch:
            return taken
        some = picked(taken, self.deck.rng.permutation(taken.rows.size)[:batch])
        return some._replace(weight=some.weight / some.weight.max())

    @property
    def _drawable(self) -> bool:
        return any(berth.spread > 0 for berth in self.fleet.berths)

    def _wait_for_rows(self) -> None:
        """Where no shard can be drawn from, everybody may play until one can."""
        while not self._drawable:
            self.fleet.hold_open()

    def _ask_ahead(self, batch: int) -> None:
        if len(self._ahead) > PACK * (AHEAD - 1):
            return
        self._send_errors()
        while len(self._ahead) < PACK * AHEAD:
            self._ahead += [self.deck.want(self.fleet.berths, batch) for _ in range(PACK)]
            for berth in self.fleet.berths:
                berth.post()

    def rerank(self, rows: Rows, td_error: Array) -> None:
        """In async the shards are told with the next questions."""
        self._errors.append((rows, td_error))
        if self.fleet.config.run.mode is not Mode.ASYNC:
            self._send_errors()

    def _send_errors(self) -> None:
        if self._errors:
            rows, errors = zip(*self._errors, strict=True)
            self._errors = []
            rerank(self.fleet.berths, np.concatenate(rows), np.concatenate(errors))

    @property
    def stale(self) -> int:
        return sum(berth.facts.stale for berth in self.fleet.berths)

    @property
    def fill(self) -> float:
        berths = self.fleet.berths
        return sum(berth.facts.fill for berth in berths) / len(berths)

    def observed(self, drained: Drained) -> tuple[dict[str, Array], Array]:
        """Of what was drained last."""
        parts = [part for berth in self.fleet.berths for part in berth.observed]
        return seen(parts) if parts else ({}, np.empty(0, dtype=np.float32))

    def newest_version(self, drained: Drained) -> int:
        return max(
            (brought.version for berth in self.fleet.berths for brought in berth.drained), default=0
        )

    @property
    def extents(self) -> list[Extent]:
        return [berth.facts.extent for berth in self.fleet.berths]

    def unsaved(self, saved: Sequence[int]) -> list[Stretch]:
        stretches = self.fleet.ask({place: Unsaved(row) for place, row in enumerate(saved)})
        return [stretches[place] for place in range(len(saved))]

    def save(self, saved: Sequence[int]) -> Kept:
        kept = self.fleet.ask({place: Save(row) for place, row in enumerate(saved)})
        return combined([kept[place] for place in range(len(saved))], self.deck.rng)

    def resume(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, Array], segments: Sequence[Segments]
    ) -> None:
        """Goes on from what was saved; where that was other shards, the rows are dealt out anew."""
        self.deck.rng = seeding.with_state(numbers["rng"])
        states, places = apart(numbers, arrays), len(self.fleet.berths)
        if len(states) == places:
            orders = {
                place: Restore(*state, tuple(own))
                for place, (state, own) in enumerate(zip(states, segments, strict=True))
            }
            self.fleet.ask(orders)
            return
        for columns in remembered(states, segments):
            parts = {place: of_place(columns, place, places) for place in range(places)}
            self.fleet.ask({place: Adopt(part) for place, part in parts.items()})

    def close(self) -> None:
        """The stations close their shards."""


class Bulletin(Board):
    """A board whose versions also go to the stations of a fleet."""

    fleet: Fleet | None = None  # once there is one

    def publish(self, arrays: Mapping[str, Array], *, version: int | None = None) -> int:
        version = super().publish(arrays, version=version)
        if self.fleet is not None:
            self.fleet.spread(version, {name: array.copy() for name, array in arrays.items()})
        return version
