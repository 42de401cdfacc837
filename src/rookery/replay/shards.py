"""Replay buffer in several shards (parts), which is sampled as if it were one buffer.

    replay = ShardedReplay([...], rng)
    batch = replay.sample(64, beta=0.4)

The learner draws all random numbers and turns them into sampling positions in [0, total mass),
where the mass ("spread") of a shard is its sum of priorities, or its number of rows (env steps) if
sampling is uniform. Each shard returns the rows at the positions in its part. So batches depend
only on the rows and the random generator, not on the hosts of the shards. A shard may have received
rows since the learner last knew its mass, so its answer holds its mass at the time of the lookup.
The probability of a row is P(shard) x priority / mass of the shard; importance weights are computed
from it and normalised over the whole batch.

With one shard, the batches equal those of a `LocalReplay` bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from rookery.errors import EmptyReplayError
from rookery.replay.batches import joined, picked
from rookery.replay.buffer import TRIES, FoundRows, LocalReplay
from rookery.replay.replay import Inserted, Observed
from rookery.replay.sampler import GUESSES, Sampler, unclosed
from rookery.replay.saved_rows import (
    ReplayState,
    RowBlock,
    RowRange,
    SavedReplay,
    apart,
    combined,
    of_place,
    remembered,
    rng_of,
)
from rookery.types import Array, ArrayBatch, Floats, Rows

if TYPE_CHECKING:
    from torch import Tensor

TAG_BITS = 40  # a row is known to the learner as tag << TAG_BITS | its number in its shard
_NUMBER = (1 << TAG_BITS) - 1


class Shard(Protocol):
    """Interface of a shard (part of a run's replay buffer), in this process or on another host."""

    @property
    def tag(self) -> int:
        """Unique number of this shard (part of a run's replay buffer) in the run.

        If a shard is lost and replaced, the new one gets a new number.
        """

    @property
    def spread(self) -> float:
        """Sampling mass of this replay shard as last reported; 0 if it cannot be sampled now.

        The mass is the sum of priorities, or the number of rows (env steps) if sampling is uniform.
        """

    def ask(self, request: "ShardRequest") -> None:
        """Requests the rows (env steps) at sampling positions from this replay shard."""

    def answer(self, request: "ShardRequest") -> FoundRows | None:
        """Waits for the rows (env steps) that were requested, and returns them.

        Returns None if the shard's host was lost.
        """

    def update_priorities(self, rows: Rows, td_error: Array) -> None: ...


class LocalShard:
    """A shard (part of a run's replay buffer) in the learner process."""

    def __init__(self, pool: LocalReplay, tag: int):
        self.pool, self.tag = pool, tag

    @property
    def spread(self) -> float:
        return self.pool.sampler.spread

    def ask(self, request: "ShardRequest") -> None:
        request.found = self.pool.look_up(request.places, request.spread)

    def answer(self, request: "ShardRequest") -> FoundRows | None:
        return request.found

    def update_priorities(self, rows: Rows, td_error: Array) -> None:
        self.pool.update_priorities(rows, td_error)


@dataclass(eq=False)
class ShardRequest:
    """A request of the learner to one replay shard for its rows (env steps) of a batch."""

    shard: Shard
    tag: int  # of the shard, when it was asked
    places: Floats  # sampling positions, in [0, spread)
    spread: float  # of the shard, when the places were drawn
    where: Rows  # its places are among those of all shards
    found: FoundRows | None = None  # the answer, once it has arrived


@dataclass
class PendingBatch:
    """A batch that was requested from the shards of a replay buffer and is not complete yet."""

    batch: int
    tries: int = 0
    asked: list[ShardRequest] = field(default_factory=list)
    pieces: list["ShardRows"] = field(default_factory=list)  # of earlier tries
    filled: int = 0


class ShardRows(NamedTuple):
    """Rows (env steps) that one replay shard returned for a batch, with sampling probabilities."""

    batch: ArrayBatch
    likelihood: Floats  # up to a factor that the whole batch shares
    whole: Array  # True where all frames of the row's stack are there


class ShardSampler:
    """Samples batches from the shards (parts) of a run's replay buffer, for the learner.

    It tolerates that a shard is lost with its host, or replaced, before it has sent its rows.
    """

    def __init__(self, sampler: type[Sampler], rng: np.random.Generator):
        self.sampler, self.rng = sampler, rng

    def want(self, shards: Sequence[Shard], batch: int) -> PendingBatch:
        """Requests a batch from the replay shards and returns at once; `take` waits for the rows.

        Raises `EmptyReplayError` if no shard has a row (env step) that can be sampled.
        """
        pending = PendingBatch(batch)
        self._ask(shards, pending)
        return pending

    def _ask(self, shards: Sequence[Shard], pending: PendingBatch) -> None:
        spreads = np.array([shard.spread for shard in shards])
        total = float(spreads.sum())
        if not total > 0:
            raise EmptyReplayError(
                "no shard has a row yet; sample after the limiter's ready() is true"
            )
        noise = self.rng.random(self.sampler.noise(pending.batch, pending.tries))
        places = self.sampler.place(noise, total)
        starts = np.cumsum(spreads) - spreads
        last = int(np.flatnonzero(spreads)[-1])  # rounding must not reach an empty shard
        owner = np.minimum(np.searchsorted(starts, places, side="right") - 1, last)
        for i, shard in enumerate(shards):
            index = np.flatnonzero(owner == i)
            if index.size:
                own, spread = places[index] - starts[i], float(spreads[i])
                pending.asked.append(ShardRequest(shard, shard.tag, own, spread, index))
                shard.ask(pending.asked[-1])
        pending.tries += 1

    def take(self, shards: Sequence[Shard], pending: PendingBatch, beta: float) -> ArrayBatch:
        """Waits for a batch that was requested from the replay shards, and returns it.

        Requests more rows (env steps) if too few were found or a shard was lost. Raises
        `EmptyReplayError` after `GUESSES` requests.
        """
        while not self._collect(pending):
            if pending.tries >= GUESSES:
                raise unclosed(0, int(sum(shard.spread for shard in shards)))
            self._ask(shards, pending)
        return self._together(pending.pieces, beta)

    def _collect(self, pending: PendingBatch) -> bool:
        """Waits for the rows requested from the replay shards and adds them to the pending batch.

        Returns whether the batch is complete.
        """
        answers = [(asked, asked.shard.answer(asked)) for asked in pending.asked]
        pending.asked = []
        found = [(asked, answer) for asked, answer in answers if answer is not None]
        places = [asked.where[answer.where] for asked, answer in found]
        if not places:
            return False
        # The first of the places that lead to a row, as if one shard had been asked.
        last = _nth(np.concatenate(places), pending.batch - pending.filled)
        for (asked, answer), place in zip(found, places, strict=True):
            kept = np.flatnonzero(place <= last)
            batch = picked(answer.batch, kept)
            batch = batch._replace(rows=batch.rows | (asked.tag << TAG_BITS))
            likelihood = answer.share[kept] * (asked.spread / answer.spread)
            pending.pieces.append(ShardRows(batch, likelihood, answer.whole[kept]))
            pending.filled += kept.size
        return pending.filled >= pending.batch

    def _together(self, pieces: Sequence[ShardRows], beta: float) -> ArrayBatch:
        likelihood = np.concatenate([piece.likelihood for piece in pieces])
        weight = self.sampler.weigh(likelihood, beta)
        batch = joined([piece.batch for piece in pieces])._replace(weight=weight)
        whole = np.concatenate([piece.whole for piece in pieces])
        return batch if whole.all() else self._only_whole(batch, whole)

    def _only_whole(self, batch: ArrayBatch, whole: Array) -> ArrayBatch:
        """Replaces env steps with an incomplete frame stack by copies of others in the batch.

        Returns an empty batch if no step has all its frames.
        """
        index = np.arange(whole.size)
        if not whole.any():
            return picked(batch, index[:0])
        index[~whole] = self.rng.choice(index[whole], size=int((~whole).sum()))
        batch = picked(batch, index)
        return batch._replace(weight=batch.weight / batch.weight.max())


class ShardedReplay:
    """A run's replay buffer as several shards (parts) in the learner process."""

    def __init__(self, pools: Sequence[LocalReplay], rng: np.random.Generator):
        self.pools = pools
        self.shards = [LocalShard(pool, tag) for tag, pool in enumerate(pools)]
        self.deck = ShardSampler(type(pools[0].sampler), rng)

    def insert(self) -> Inserted:
        return together([pool.insert() for pool in self.pools])

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrayBatch:
        return drawn(self.deck, self.shards, batch, beta)

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        update_priorities(self.shards, rows, np.asarray(td_error))

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

    def observed(self, inserted: Inserted) -> Observed:
        return seen([p.observed(d) for p, d in zip(self.pools, inserted.parts, strict=True)])

    def newest_version(self, inserted: Inserted) -> int:
        parts = zip(self.pools, inserted.parts, strict=True)
        return max(pool.newest_version(part) for pool, part in parts if part.count)

    @property
    def extents(self) -> list[RowRange]:
        return [extent for pool in self.pools for extent in pool.extents]

    def unsaved(self, saved: Sequence[int]) -> list[RowBlock]:
        return [pool.rows_since(row) for pool, row in zip(self.pools, saved, strict=True)]

    def save(self, saved: Sequence[int]) -> ReplayState:
        return combined(
            [pool.save([row]) for pool, row in zip(self.pools, saved, strict=True)], self.deck.rng
        )

    def resume(self, saved: SavedReplay) -> None:
        """Restores replay from a checkpoint.

        If the number of shards (parts of the replay buffer) has changed, the rows are distributed
        again over the shards.
        """
        self.deck.rng = rng_of(saved.numbers)
        states = apart(saved.numbers, saved.arrays)
        if len(states) == len(self.pools):
            for pool, state, own in zip(self.pools, states, saved.segments, strict=True):
                pool.restore(*state, own)
            return
        for columns in remembered(states, saved.segments):
            for place, pool in enumerate(self.pools):
                pool.adopt(of_place(columns, place, len(self.pools)))

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def drawn(deck: ShardSampler, shards: Sequence[Shard], batch: int, beta: float) -> ArrayBatch:
    """Samples a batch from all shards (parts of a run's replay buffer) and waits for their rows.

    If no row of the batch has all frames of its frame stack, samples again; raises
    `EmptyReplayError` after `TRIES` such batches.
    """
    for _ in range(TRIES):
        drawn = deck.take(shards, deck.want(shards, batch), beta)
        if drawn.rows.size:
            return drawn
    raise EmptyReplayError(
        "no row has all frames of its stack; raise replay.capacity or lower env.frame_stack"
    )


def update_priorities(shards: Sequence[Shard], rows: Rows, td_error: Array) -> None:
    """Sends each replay shard the TD errors of its rows (env steps) of a batch.

    TD errors of rows in lost shards are dropped.
    """
    tags = rows >> TAG_BITS
    for shard in shards:
        own = np.flatnonzero(tags == shard.tag)
        if own.size:
            shard.update_priorities(rows[own] & _NUMBER, td_error[own])


def together(parts: Sequence[Inserted]) -> Inserted:
    """Combines the insertions of several replay shards into one, with the total numbers of rows."""
    return Inserted(
        -1, sum(part.count for part in parts), sum(part.steps for part in parts), tuple(parts)
    )


def seen(parts: Sequence[Observed]) -> Observed:
    """Concatenates observations and returns of env steps that several replay shards received."""
    leaves = {name: np.concatenate([obs[name] for obs, _ in parts]) for name in parts[0].leaves}
    return Observed(leaves, np.concatenate([returns for _, returns in parts]))


def _nth(places: Rows, count: int) -> int:
    """Returns the `count`-th smallest number in `places`, or the largest if there are fewer."""
    if places.size <= count:
        return int(places.max(initial=-1))
    return int(np.partition(places, count - 1)[count - 1])
