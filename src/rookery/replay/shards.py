"""Shards: one replay kept in several places, drawn from as if it were one.

    shards = Shards([...], SAMPLERS[draw], rng)      # the same methods as a `Pool`
    batch = shards.draw(64, beta=0.4)

Whoever learns makes all random numbers; shards only look up where they lead, so that the batches
are a function of the rows and the generator, wherever the shards are. Each shard gets the places
that fall into its part of the total spread, as it was last known. It may have grown since: it says
what its spread was when it looked, and a row's likelihood is P(shard) x share / spread, so that
importance weights are right for the whole replay, and normalised over the whole batch.

One shard gives what a `Pool` gives, bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery import seeding
from rookery.errors import EmptyReplayError
from rookery.replay.batches import joined, picked
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
from rookery.replay.pool import TRIES, Drained, Found, Pool
from rookery.replay.sampler import GUESSES, Sampler, unclosed
from rookery.types import Array, Batch, Floats, Rows

TAG_BITS = 40  # a row is known to the learner as tag << TAG_BITS | its number in its shard
_NUMBER = (1 << TAG_BITS) - 1


class Shard(Protocol):
    """A part of replay, here or on another host."""

    @property
    def tag(self) -> int:
        """No two shards of a run ever have the same: not even one and its replacement."""

    @property
    def spread(self) -> float:
        """As last known; 0 where it cannot be drawn from now."""

    def drain(self) -> Drained: ...

    def ask(self, places: Floats, spread: float) -> int:
        """Asks what is there; returns the number of the question."""

    def answer(self, question: int) -> Found | None:
        """Waits for the answer; None where it was lost with its shard."""

    def rerank(self, rows: Rows, td_error: Array) -> None: ...


class Here:
    """A shard in this process."""

    def __init__(self, pool: Pool, tag: int):
        self.pool, self.tag = pool, tag
        self._questions = 0
        self._answers: dict[int, Found] = {}

    @property
    def spread(self) -> float:
        return self.pool.sampler.spread

    def drain(self) -> Drained:
        return self.pool.drain()

    def ask(self, places: Floats, spread: float) -> int:
        self._questions += 1
        self._answers[self._questions] = self.pool.look_up(places, spread)
        return self._questions

    def answer(self, question: int) -> Found | None:
        return self._answers.pop(question)

    def rerank(self, rows: Rows, td_error: Array) -> None:
        self.pool.rerank(rows, td_error)


class Asked(NamedTuple):
    """One shard's part of a question."""

    shard: Shard
    question: int
    spread: float  # of the shard, when the places were made
    where: Rows  # its places are among those of all shards


@dataclass
class Wanted:
    """A batch on its way."""

    batch: int
    tries: int = 0
    asked: list[Asked] = field(default_factory=list)
    pieces: list["Piece"] = field(default_factory=list)  # of earlier tries
    filled: int = 0


class Piece(NamedTuple):
    """Rows of one shard in one try."""

    tag: int
    found: Found
    likelihood: Floats  # up to a factor that the whole batch shares
    kept: Rows  # which of the rows found


class Deck:
    """Draws batches from shards that may come and go."""

    def __init__(self, sampler: type[Sampler], rng: np.random.Generator):
        self.sampler, self.rng = sampler, rng

    def want(self, shards: Sequence[Shard], batch: int) -> Wanted:
        """Asks the shards for a batch."""
        wanted = Wanted(batch)
        self._ask(shards, wanted)
        return wanted

    def _ask(self, shards: Sequence[Shard], wanted: Wanted) -> None:
        spreads = np.array([shard.spread for shard in shards])
        total = float(spreads.sum())
        if not total > 0:
            raise EmptyReplayError("no shard has a row yet; draw after the limiter says ready()")
        noise = self.rng.random(self.sampler.noise(wanted.batch, wanted.tries))
        places = self.sampler.place(noise, total)
        starts = np.cumsum(spreads) - spreads
        last = int(np.flatnonzero(spreads)[-1])  # rounding must not reach an empty shard
        owner = np.minimum(np.searchsorted(starts, places, side="right") - 1, last)
        for i, shard in enumerate(shards):
            index = np.flatnonzero(owner == i)
            if index.size:
                question = shard.ask(places[index] - starts[i], float(spreads[i]))
                wanted.asked.append(Asked(shard, question, float(spreads[i]), index))
        wanted.tries += 1

    def take(self, shards: Sequence[Shard], wanted: Wanted, beta: float) -> Batch:
        """Returns a batch that was asked for; what was lost with a shard others make up for."""
        while not self._collect(wanted):
            if wanted.tries >= GUESSES:
                raise unclosed(0, int(sum(shard.spread for shard in shards)))
            self._ask(shards, wanted)
        return self._together(wanted.pieces, beta)

    def _collect(self, wanted: Wanted) -> bool:
        """Takes in the answers; returns whether there are rows enough."""
        answers = [(asked, asked.shard.answer(asked.question)) for asked in wanted.asked]
        wanted.asked = []
        found = [(asked, answer) for asked, answer in answers if answer is not None]
        places = [asked.where[answer.where] for asked, answer in found]
        if not places:
            return False
        # The first of the places that lead to a row, as if one shard had been asked.
        last = _nth(np.concatenate(places), wanted.batch - wanted.filled)
        for (asked, answer), place in zip(found, places, strict=True):
            kept = np.flatnonzero(place <= last)
            wanted.pieces.append(
                Piece(
                    asked.shard.tag,
                    answer,
                    answer.share * (asked.spread / answer.spread),
                    kept,
                )
            )
            wanted.filled += kept.size
        return wanted.filled >= wanted.batch

    def _together(self, pieces: Sequence[Piece], beta: float) -> Batch:
        parts = [_tagged(picked(piece.found.batch, piece.kept), piece.tag) for piece in pieces]
        likelihood = np.concatenate([piece.likelihood[piece.kept] for piece in pieces])
        batch = joined(parts)._replace(weight=self.sampler.weigh(likelihood, beta))
        whole = np.concatenate([piece.found.whole[piece.kept] for piece in pieces])
        return batch if whole.all() else self._only_whole(batch, whole)

    def _only_whole(self, batch: Batch, whole: Array) -> Batch:
        """As `Pool._whole`; None of them whole is a batch without rows."""
        index = np.arange(whole.size)
        if not whole.any():
            return picked(batch, index[:0])
        index[~whole] = self.rng.choice(index[whole], size=int((~whole).sum()))
        batch = picked(batch, index)
        return batch._replace(weight=batch.weight / batch.weight.max())


class Shards:
    """A run's replay in several shards of this process. The same methods as a `Pool`."""

    def __init__(self, pools: Sequence[Pool], rng: np.random.Generator):
        self.pools = pools
        self.shards = [Here(pool, tag) for tag, pool in enumerate(pools)]
        self.deck = Deck(type(pools[0].sampler), rng)

    def drain(self) -> Drained:
        return together([shard.drain() for shard in self.shards])

    def draw(self, batch: int, *, beta: float = 1.0) -> Batch:
        return drawn(self.deck, self.shards, batch, beta)

    def rerank(self, rows: Rows, td_error: Array) -> None:
        rerank(self.shards, rows, td_error)

    @property
    def version(self) -> int:
        return self.pools[0].version

    @version.setter
    def version(self, version: int) -> None:
        for pool in self.pools:
            pool.version = version

    @property
    def stale(self) -> int:
        return sum(pool.stale for pool in self.pools)

    @property
    def fill(self) -> float:
        return sum(pool.fill for pool in self.pools) / len(self.pools)

    def observed(self, drained: Drained) -> tuple[dict[str, Array], Array]:
        return seen([p.observed(d) for p, d in zip(self.pools, drained.parts, strict=True)])

    def newest_version(self, drained: Drained) -> int:
        parts = zip(self.pools, drained.parts, strict=True)
        return max(pool.newest_version(part) for pool, part in parts if part.count)

    @property
    def extents(self) -> list[Extent]:
        return [extent for pool in self.pools for extent in pool.extents]

    def unsaved(self, saved: Sequence[int]) -> list[Stretch]:
        return [pool.rows_since(row) for pool, row in zip(self.pools, saved, strict=True)]

    def save(self, saved: Sequence[int]) -> Kept:
        return combined(
            [pool.save([row]) for pool, row in zip(self.pools, saved, strict=True)], self.deck.rng
        )

    def resume(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, Array], segments: Sequence[Segments]
    ) -> None:
        """Goes on from what was saved; where that was other shards, the rows are dealt out anew."""
        self.deck.rng = seeding.with_state(numbers["rng"])
        states = apart(numbers, arrays)
        if len(states) == len(self.pools):
            for pool, state, own in zip(self.pools, states, segments, strict=True):
                pool.restore(*state, own)
            return
        for columns in remembered(states, segments):
            for place, pool in enumerate(self.pools):
                pool.adopt(of_place(columns, place, len(self.pools)))

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def drawn(deck: Deck, shards: Sequence[Shard], batch: int, beta: float) -> Batch:
    """Draws a batch at once."""
    for _ in range(TRIES):
        drawn = deck.take(shards, deck.want(shards, batch), beta)
        if drawn.rows.size:
            return drawn
    raise EmptyReplayError(
        "no row has all frames of its stack; raise replay.capacity or lower env.frame_stack"
    )


def rerank(shards: Sequence[Shard], rows: Rows, td_error: Array) -> None:
    """Hands TD errors to the shards that have the rows; those of lost shards are dropped."""
    tags = rows >> TAG_BITS
    for shard in shards:
        own = np.flatnonzero(tags == shard.tag)
        if own.size:
            shard.rerank(rows[own] & _NUMBER, td_error[own])


def together(parts: Sequence[Drained]) -> Drained:
    """Sums up what arrived in all shards."""
    return Drained(
        -1, sum(part.count for part in parts), sum(part.steps for part in parts), tuple(parts)
    )


def seen(
    parts: Sequence[tuple[dict[str, Array], Array]],
) -> tuple[dict[str, Array], Array]:
    """Puts what shards observed one after another."""
    leaves = {name: np.concatenate([obs[name] for obs, _ in parts]) for name in parts[0][0]}
    return leaves, np.concatenate([returns for _, returns in parts])


def _nth(places: Rows, count: int) -> int:
    """Returns the place up to which there are `count`, or all of them."""
    if places.size <= count:
        return int(places.max(initial=-1))
    return int(np.partition(places, count - 1)[count - 1])


def _tagged(batch: Batch, tag: int) -> Batch:
    return batch._replace(rows=batch.rows | (tag << TAG_BITS))
