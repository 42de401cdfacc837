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
from rookery.replay import saved_rows
from rookery.replay.batches import joined, others_for, picked
from rookery.replay.buffer import TRIES, FoundRows, LocalReplay, ShardRequest, ShardStatus
from rookery.replay.replay import Inserted, Observed
from rookery.replay.sampler import GUESSES, Sampler, unclosed
from rookery.replay.saved_rows import ReplayState, RowBlock, RowRange, SavedReplay
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

    @property
    def status(self) -> ShardStatus:
        """State of this shard as last reported, also while it cannot be sampled."""

    def insert(self) -> Inserted: ...

    def observed(self, inserted: Inserted) -> Observed | None: ...

    def newest_version(self, inserted: Inserted) -> int: ...

    def ask(self, request: ShardRequest) -> None:
        """Requests the rows (env steps) at sampling positions from this replay shard."""

    def answer(self, request: ShardRequest) -> FoundRows | None:
        """Waits for the rows (env steps) that were requested, and returns them.

        Returns None if the shard's host was lost.
        """

    def update_priorities(self, rows: Rows, td_error: Array) -> None: ...


@dataclass
class PendingBatch:
    """A batch that was requested from the shards of a replay buffer and is not complete yet."""

    batch: int
    tries: int = 0
    asked: list[tuple[Shard, ShardRequest]] = field(default_factory=list)
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
                request = ShardRequest(shard.tag, own, spread, index)
                pending.asked.append((shard, request))
                shard.ask(request)
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
        answers = [(asked, shard.answer(asked)) for shard, asked in pending.asked]
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
        """Joins the rows of all shards; rows with an incomplete frame stack are replaced by others.

        Returns an empty batch if no row has all its frames.
        """
        likelihood = np.concatenate([piece.likelihood for piece in pieces])
        weight = self.sampler.weigh(likelihood, beta)
        batch = joined([piece.batch for piece in pieces])._replace(weight=weight)
        whole = np.concatenate([piece.whole for piece in pieces])
        if whole.all():
            return batch
        batch = picked(batch, others_for(~whole, self.rng))
        return batch._replace(weight=batch.weight / batch.weight.max(initial=0))


class ReplayShards:
    """A replay buffer in several shards (parts): all that is the same wherever the shards are."""

    def __init__(self, shards: Sequence[Shard], sampler: type[Sampler], rng: np.random.Generator):
        self.shards, self.deck = shards, ShardSampler(sampler, rng)

    def insert(self) -> Inserted:
        parts = tuple(shard.insert() for shard in self.shards)
        count, steps = sum(part.count for part in parts), sum(part.steps for part in parts)
        return Inserted(-1, count, steps, parts)

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrayBatch:
        """Samples a batch from all shards and waits for their rows (env steps).

        If no row of the batch has all frames of its frame stack, samples again; raises
        `EmptyReplayError` after `TRIES` such batches.
        """
        for _ in range(TRIES):
            drawn = self.deck.take(self.shards, self.deck.want(self.shards, batch), beta)
            if drawn.rows.size:
                return drawn
        raise EmptyReplayError(
            "no row has all frames of its stack; raise replay.capacity or lower env.frame_stack"
        )

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sends each shard the TD errors of its rows (env steps); drops those of lost shards."""
        tags, errors = rows >> TAG_BITS, np.asarray(td_error)
        for shard in self.shards:
            own = np.flatnonzero(tags == shard.tag)
            if own.size:
                shard.update_priorities(rows[own] & _NUMBER, errors[own])

    @property
    def stale(self) -> int:
        return sum(shard.status.stale for shard in self.shards)

    @property
    def fill(self) -> float:
        return sum(shard.status.fill for shard in self.shards) / len(self.shards)

    @property
    def extents(self) -> list[RowRange]:
        return [shard.status.extent for shard in self.shards]

    def observed(self, inserted: Inserted) -> Observed | None:
        parts = zip(self.shards, inserted.parts, strict=False)  # others may have joined since
        return seen([shard.observed(part) for shard, part in parts])

    def newest_version(self, inserted: Inserted) -> int:
        parts = zip(self.shards, inserted.parts, strict=False)
        return max((shard.newest_version(part) for shard, part in parts if part.count), default=0)


class ShardedReplay(ReplayShards):
    """A run's replay buffer as several shards (parts) in the learner process."""

    shards: Sequence[LocalReplay]

    def __init__(self, shards: Sequence[LocalReplay], rng: np.random.Generator):
        super().__init__(shards, type(shards[0].sampler), rng)
        for tag, shard in enumerate(shards):
            shard.tag = tag

    @property
    def version(self) -> int:
        return self.shards[0].version

    @version.setter
    def version(self, version: int) -> None:
        for shard in self.shards:
            shard.version = version

    def unsaved(self, saved: Sequence[int]) -> list[RowBlock]:
        return [own.rows_since(row) for own, row in zip(self.shards, saved, strict=True)]

    def save(self, saved: Sequence[int]) -> ReplayState:
        states = [own.save([row]) for own, row in zip(self.shards, saved, strict=True)]
        return saved_rows.combined(states, self.deck.rng)

    def resume(self, saved: SavedReplay) -> None:
        """Restores replay from a checkpoint.

        If the number of shards (parts of the replay buffer) has changed, the rows are distributed
        again over the shards.
        """
        self.deck.rng, states = saved.rng, saved.states
        if len(states) == len(self.shards):
            for shard, state, own in zip(self.shards, states, saved.segments, strict=True):
                shard.restore(*state, own)
            return
        for parts in saved.redistributed(len(self.shards)):
            for shard, columns in zip(self.shards, parts, strict=True):
                shard.adopt(columns)

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def seen(parts: Sequence[Observed | None]) -> Observed | None:
    """Concatenates observations and returns of env steps that several replay shards received.

    Returns None if there are none.
    """
    some = [part for part in parts if part is not None]
    if not some:
        return None
    leaves = {name: np.concatenate([obs[name] for obs, _ in some]) for name in some[0].leaves}
    return Observed(leaves, np.concatenate([returns for _, returns in some]))


def _nth(places: Rows, count: int) -> int:
    """Returns the `count`-th smallest number in `places`, or the largest if there are fewer."""
    if places.size <= count:
        return int(places.max(initial=-1))
    return int(np.partition(places, count - 1)[count - 1])
