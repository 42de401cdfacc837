"""Replay buffer in one ring buffer on the learner's host. Only the learner process writes to it.

    inserted = replay.insert()                      # rows that actors wrote → replay
    batch = replay.sample(64, beta=0.4)             # rows → n-step batch
    replay.update_priorities(batch.rows, td_error)  # TD errors → priorities

A row is one stored env step, or the final observation of an episode. Sampling depends only on the
rows, the TD errors and the random generator, so after `restore` of a saved state it continues bit
for bit.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rookery import seeding
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import Config, FirstPriority, ReplayConfig, Storage
from rookery.envs.goals import Goals
from rookery.envs.make import Factory
from rookery.errors import CheckpointError, EmptyReplayError
from rookery.replay import fold, saved_rows
from rookery.replay.batches import others_for
from rookery.replay.fold import Chains, Horizon
from rookery.replay.hindsight import Hindsight
from rookery.replay.replay import Inserted, LentRings, Observed
from rookery.replay.ring import Ring, obs_column, row_bytes, schema_of
from rookery.replay.sampler import SAMPLERS, UNKNOWN, SampledRows, Sampler
from rookery.replay.saved_rows import ReplayState, RowBlock, RowRange, SavedReplay, Segments
from rookery.types import Array, ArrayBatch, EnvSpec, Floats, Json, Rows, SavedState

if TYPE_CHECKING:
    from torch import Tensor

R = TypeVar("R", bound="LocalReplay")

TRIES = 100  # batches sampled before a run fails that finds no row with all its frames


class FoundRows(NamedTuple):
    """Rows (env steps) that one shard (part of a run's replay buffer) returns for a batch.

    The learner draws sampling positions: numbers in [0, sum of priorities), as in a sum tree, or in
    [0, number of rows) if sampling is uniform. The shard returns the rows at its positions, except
    rows that cannot be sampled.
    """

    where: Rows  # indices of the positions that have a row
    share: Floats  # each row's priority ** alpha; 1 if sampling is uniform
    whole: Array  # True where all frames of the row's stack are there
    batch: ArrayBatch  # with weights of 1
    spread: float  # the shard's sum of priorities (number of rows if uniform) at the lookup


@dataclass(eq=False)
class ShardRequest:
    """A request of the learner to one replay shard for its rows (env steps) of a batch."""

    tag: int  # of the shard, when it was asked
    places: Floats  # sampling positions, in [0, spread)
    spread: float  # of the shard, when the places were drawn
    where: Rows  # its places are among those of all shards
    found: FoundRows | None = None  # the answer, once it has arrived


class ShardStatus(NamedTuple):
    """State of a replay shard (part of a run's replay buffer) that the learner needs to sample.

    `spread` is the shard's sampling mass: its number of rows (stored env steps), or the sum of
    their priorities.
    """

    spread: float
    extent: RowRange
    fill: float
    stale: int  # rows that were too old to be sampled when they arrived


class LocalReplay:
    """A run's replay buffer, or one shard (part) of it: ring buffer of env steps and sampler."""

    tag = 0  # of this shard, among those of the run

    def __init__(
        self,
        spec: EnvSpec,
        config: ReplayConfig,
        algo: AlgoConfig,
        *,
        rng: np.random.Generator,
        transports: Iterable[Ring],
        envs: int,
        actors: int | None = None,
        directory: Path | None = None,
        ring: Ring | None = None,
        hindsight: Hindsight | None = None,
    ):
        """Creates an empty replay buffer.

        `transports` are ring buffers in shared memory, one for each actor, to which the actors
        write their env steps; `insert` moves these steps into replay. Replay stores them in `ring`,
        or, if that is None, in a new ring file in `directory`. Each actor has `envs` environments.
        """
        self.spec, self.config, self.algo, self.rng = spec, config, algo, rng
        self.horizon = Horizon(algo.n_step, algo.gamma, algo.sequence)
        self.hindsight = hindsight
        self.transports = transports  # by actor; a replaced actor has a new ring
        # of the run: rows have their number
        actors = len(list(transports)) if actors is None else actors
        self.ring = ring or Ring.create(schema_of(spec), config.capacity, directory=directory)
        window, capacity = self.horizon.window, config.capacity
        lanes, stride, burn_in = actors * envs, algo.stride, algo.burn_in
        self.chains = Chains(
            lanes, envs, window=window, stride=stride, capacity=capacity, burn_in=burn_in
        )
        self.running = np.zeros(actors * envs)  # discounted return so far, by lane
        self.version = 0  # of the newest published weights
        self.stale = 0  # rows that were too old to be sampled when they arrived
        lagging = config.max_policy_lag is not None
        self._late = np.zeros(config.capacity if lagging else 0, dtype=np.uint8)  # those, by slot
        self.sampler: Sampler = SAMPLERS[config.sampling](self.ring, self.chains, config.alpha)

    def insert(self) -> Inserted:
        """Moves all rows (env steps) that actors have written to shared memory into replay.

        Returns the number of the first inserted row, how many rows were inserted, and how many of
        them are steps (the others are final observations of episodes).
        """
        begin, rows, steps = self.ring.committed, 0, 0
        for transport in self.transports:
            count = self.ring.capacity if transport.waiting else 0
            while count == self.ring.capacity:  # a full ring's worth: there may be more
                first, count = self.ring.drain_from(transport)
                steps += self._settle(first, count)
                rows += count
        return Inserted(begin, rows, steps)

    def _settle(self, first: int, count: int) -> int:
        """Links new rows (env steps) to earlier rows of their environments; updates the sampler.

        The new rows are `count` rows from row `first` on. The sampler may from now on sample every
        row whose n-step return or sequence has become complete. Returns how many of the new rows
        are steps, not final observations.
        """
        self.sampler.clear(first, count)
        closed, steps = self.chains.link(self.ring, first, count)
        closed = self._fresh(closed)
        self.sampler.admit(closed, self._first_errors(closed))
        return steps

    def _fresh(self, rows: Rows) -> Rows:
        """Returns `rows` without those collected with weights older than `max_policy_lag` versions.

        The removed rows (env steps) stay stored, but are never sampled. If `max_policy_lag` is
        None, returns all rows.
        """
        if self.config.max_policy_lag is None:
            return rows
        slots = rows % self.ring.capacity
        late = self.ring.columns["version"][slots] < self.version - self.config.max_policy_lag
        self._late[slots] = late
        self.chains.closed[slots[late]] = 0
        self.stale += int(late.sum())
        return rows[~late]

    def _first_errors(self, rows: Rows) -> Floats:
        """Returns n-step TD errors for the initial priorities of new rows (env steps).

        They are computed from the value estimates that the actors stored. For sequences, and if
        `replay.initial_priority` is `largest`, returns the empty array `UNKNOWN` instead: the
        sampler then gives new rows the largest priority so far.
        """
        if self.config.initial_priority is FirstPriority.LARGEST or self.horizon.sequence:
            return UNKNOWN
        return fold.errors(self.ring, rows, n_step=self.algo.n_step, gamma=self.algo.gamma)

    def sample(self, batch: int, *, beta: float = 1.0) -> ArrayBatch:
        """Samples a batch of n-step transitions or sequences, as numpy arrays.

        `beta` is the exponent of the importance weights. Raises `EmptyReplayError` if too few
        stored steps can be sampled.
        """
        for _ in range(TRIES):
            drawn = self.sampler.sample(batch, beta, self.rng)
            if self.spec.frame_stack > 1:
                drawn = self._whole(drawn)
            if drawn.rows.size:
                return self._gather(drawn.rows, drawn.weight, self.rng)
        raise EmptyReplayError(
            f"no row of {self.ring.capacity} has all {self.spec.frame_stack} frames of its stack; "
            "raise replay.capacity or lower env.frame_stack"
        )

    def _gather(self, rows: Rows, weight: Floats, rng: np.random.Generator) -> ArrayBatch:
        batch = fold.gather(self.ring, self.spec, rows, weight, self.horizon, self.ring.oldest)
        if self.hindsight is not None:
            self.hindsight.relabel(self.ring, batch, rng)
        return batch

    @property
    def spread(self) -> float:
        return self.sampler.spread

    @property
    def status(self) -> ShardStatus:
        return ShardStatus(self.spread, self.extents[0], self.fill, self.stale)

    def ask(self, request: ShardRequest) -> None:
        """Answers the learner's request for rows (env steps) of this replay shard at once."""
        request.found = self.look_up(request.places, request.spread)

    def answer(self, request: ShardRequest) -> FoundRows | None:
        return request.found

    def look_up(self, places: Floats, spread: float) -> FoundRows:
        """Returns the rows (env steps) of this replay shard at positions drawn by the learner.

        The positions `places` are numbers in [0, spread). `spread` is the shard's sum of priorities
        (number of rows if sampling is uniform) that the learner knew when it drew them. Hindsight
        goals (HER) are chosen by a generator seeded with the positions, so that they do not depend
        on the host.
        """
        hits = self.sampler.find(places, spread)
        rng = self.rng if self.hindsight is None else seeding.following(places)
        return FoundRows(
            where=hits.where,
            share=hits.share,
            whole=fold.is_whole(self.ring, hits.rows, self.spec.frame_stack, self.ring.oldest),
            batch=self._gather(hits.rows, np.ones(hits.rows.size, dtype=np.float32), rng),
            spread=self.sampler.spread,
        )

    def _whole(self, drawn: SampledRows) -> SampledRows:
        """Replaces rows with an incomplete frame stack by copies of other rows of the batch.

        Only a few rows (env steps) at the old end of the ring buffer have lost frames. A copy has
        the importance weight of the copied row. If all rows are incomplete, returns none.
        """
        whole = fold.is_whole(self.ring, drawn.rows, self.spec.frame_stack, self.ring.oldest)
        if whole.all():
            return drawn
        index = others_for(~whole, self.rng)
        weight = drawn.weight[index]
        return SampledRows(drawn.rows[index], weight / weight.max(initial=0))

    def update_priorities(self, rows: Rows, td_error: "Array | Tensor") -> None:
        """Sets the priorities of rows (env steps) from new TD errors; skips overwritten rows."""
        self.sampler.update_priorities(rows, np.asarray(td_error))

    @property
    def fill(self) -> float:
        """Share of the replay capacity that is filled with env steps, 0 to 1."""
        return min(1.0, self.ring.committed / self.ring.capacity)

    def _left(self, first: int, count: int) -> tuple[int, int]:
        """Returns first number and count of those inserted rows (env steps) that are still stored.

        Of `count` rows inserted from row `first` on, only the last `capacity` are still stored.
        """
        lost = max(0, count - self.ring.capacity)
        return first + lost, count - lost

    def observed(self, inserted: Inserted) -> Observed:
        """Returns observations and discounted returns so far of newly inserted rows (env steps).

        It continues running sums, so it must be called exactly once for each insertion. Rows that
        are already overwritten are left out.
        """
        first, count = self._left(inserted.first, inserted.count)
        if count < inserted.count:
            self.running[:] = 0.0  # rows are missing, and of which lanes is unknown
        columns, slots = self.ring.columns, self.ring.slots(first, count)
        leaves = {leaf.name: columns[obs_column(leaf.name)][slots] for leaf in self.spec.obs}
        envs, gamma, running = self.chains.envs, self.algo.gamma, self.running
        return Observed(
            leaves, fold.returns(self.ring, first, count, envs=envs, gamma=gamma, running=running)
        )

    def newest_version(self, inserted: Inserted) -> int:
        """Returns the newest version of the weights with which inserted steps were collected."""
        slots = self.ring.slots(*self._left(inserted.first, inserted.count))
        return int(self.ring.columns["version"][slots].max())

    def rows_between(self, first: int, last: int) -> dict[str, Array]:
        """Returns copies of rows (env steps) [first, last), by column name, for a checkpoint."""
        start, end = first % self.ring.capacity, first % self.ring.capacity + last - first
        wrapped = max(0, end - self.ring.capacity)
        # two slices: training waits for this, and indices would take twice as long
        return {
            name: np.concatenate([column[start:end], column[:wrapped]])
            for name, column in self.ring.columns.items()
        }

    def rows_since(self, row: int, most: int | None = None) -> RowBlock:
        """Returns copies of the stored rows (env steps) whose number is at least `row`.

        With `most` it returns at most so many rows, the oldest ones.
        """
        first, last = min(max(row, self.ring.oldest), self.ring.committed), self.ring.committed
        return RowBlock(
            first, self.rows_between(first, last if most is None else min(last, first + most))
        )

    @property
    def extents(self) -> list[RowRange]:
        """Range of stored row (env step) numbers of each shard (part of a run's replay buffer).

        A `LocalReplay` has one shard.
        """
        return [RowRange(self.ring.oldest, self.ring.committed)]

    def unsaved(self, saved: Sequence[int]) -> list[RowBlock]:
        """Returns copies of the rows (env steps) that no checkpoint file holds yet, by shard.

        A `LocalReplay` has one shard (part of a replay buffer), so these are the rows from number
        `saved[0]` on.
        """
        return [self.rows_since(saved[0])]

    def save(self, saved: Sequence[int]) -> ReplayState:
        """Returns the replay state for a checkpoint, with the env steps from number `saved[0]` on.

        Earlier steps are in the files of earlier checkpoints.
        """
        return ReplayState(*self.state(), self.unsaved(saved))

    def state(self) -> tuple[dict[str, Json], dict[str, Array]]:
        """Returns the replay state without the stored env steps, for a checkpoint.

        It is a pair: JSON data, and arrays by name.
        """
        numbers: dict[str, Json] = {
            "shape": self._shape(),
            "first": self.ring.oldest,
            "committed": self.ring.committed,
            "rng": seeding.state_of(self.rng),
        }
        own: dict[str, Array] = {"running": self.running.copy(), "late": self._late.copy()}
        return numbers, self.sampler.state() | own

    def resume(self, saved: SavedReplay) -> None:
        """Restores replay from a checkpoint.

        If replay was saved as several shards (parts), the rows of all of them go into this one ring
        buffer.
        """
        if len(saved.states) == 1:
            self.restore(*saved.states[0], saved.segments[0])
        for columns in saved.rows() if len(saved.states) > 1 else ():
            self.adopt(columns)
        self.rng = saved.rng

    def restore(self, numbers: SavedState, arrays: Mapping[str, Array], segments: Segments) -> None:
        """Restores rows (env steps) and priorities of one saved shard (part of a replay buffer).

        This replay's ring buffer must be new. Rows of a damaged file (`lost_rows`) are never
        sampled, nor are rows whose n-step return or sequence reaches into them. Raises
        `CheckpointError` if rows are missing or the settings differ from the saved ones.
        """
        if numbers["shape"] != self._shape():
            raise CheckpointError(
                f"replay was saved with {numbers['shape']}, this run has {self._shape()}; "
                "resume with the settings it was saved with"
            )
        self.rng = seeding.with_state(numbers["rng"])
        position, lost = int(numbers["first"]), False
        self.ring.restart_at(position)
        for first, columns in segments:
            lost = lost or saved_rows.are_lost(columns)
            position = self._put_back(position, first, columns, int(numbers["committed"]))
        if position != numbers["committed"]:
            raise CheckpointError(
                f"replay segments end at row {position}, expected {numbers['committed']}; "
                "resume from an older checkpoint"
            )
        self._make_room(len(arrays["running"]))
        if (count := position - int(numbers["first"])) > 0:
            self.chains.link(self.ring, int(numbers["first"]), count)
        if self._late.size == len(arrays["late"]):
            self._late[:] = arrays["late"]
            self.chains.closed[: self._late.size][self._late == 1] = 0
        self.sampler.restore(arrays)
        if lost:
            self.sampler.forget(np.flatnonzero(self.chains.closed == 0))
        self.running[: len(arrays["running"])] = arrays["running"]

    def _shape(self) -> dict[str, int]:
        """Returns the settings that must be the same when a checkpoint is saved and restored.

        They are the capacity, the environments per actor, the larger of n-step and sequence length
        (`window`), the stride of sequences, and the burn-in.
        """
        chains = self.chains
        shape = {"envs": chains.envs, "window": chains.window, "stride": chains.stride}
        burn_in = {"burn_in": chains.burn_in} if chains.burn_in else {}
        return {"capacity": self.ring.capacity, **shape, **burn_in}

    def _put_back(self, position: int, first: int, columns: Mapping[str, Array], last: int) -> int:
        skip = position - first  # rows of an old segment that have been overwritten since
        if skip < 0:
            raise CheckpointError(
                f"replay rows {position} to {first} are missing from the checkpoint's segments; "
                "resume from an older one"
            )
        rest = {name: column[skip : last - first] for name, column in columns.items()}
        if rest["end"].size:
            self.ring.append(rest)
        return self.ring.committed

    def _make_room(self, lanes: int) -> None:
        """Enlarges the per-environment arrays to `lanes` environments, for restored env steps.

        A checkpoint may hold steps of more actors than the run has now.
        """
        self.chains.grow(lanes)
        self.running = np.pad(self.running, (0, max(0, lanes - len(self.running))))

    def adopt(self, columns: Mapping[str, Array]) -> None:
        """Inserts rows (env steps), oldest first, that come from a checkpoint or another host."""
        count = len(columns["end"])
        self._make_room((int(columns["actor"].max(initial=-1)) + 1) * self.chains.envs)
        for at in range(0, count, self.ring.capacity):
            some = {name: c[at : at + self.ring.capacity] for name, c in columns.items()}
            first = self.ring.reserved
            self.ring.append(some)
            self._settle(first, len(some["end"]))

    def close(self) -> None:
        try:
            if self.hindsight is not None:
                self.hindsight.close()
        finally:
            self.ring.close()


def build_shard(  # type: ignore[explicit-any]  # `build` is a constructor of many arguments
    config: Config,
    spec: EnvSpec,
    rings: Iterable[Ring],
    rng: np.random.Generator,
    shards: int,
    build: Callable[..., R],
    run_dir: Path | None = None,
    lent: LentRings | None = None,
    place: int = 0,
    factory: Factory | None = None,
    actors: int = 0,
) -> R:
    """Builds one of the `shards` shards (parts) of a run's replay buffer, number `place`.

    `build` is the constructor of the shard. The shard takes new rows (env steps) from `rings`, one
    ring buffer in shared memory for each actor that writes to this shard. If `lent` is given, it
    creates the shard's own ring buffer, from which other runs can sample too. Actor numbers in the
    rows must be below the larger of `actors` and `actor.num`.
    """
    capacity = config.capacity // shards
    with contextlib.ExitStack() as stack:
        hindsight = None
        if config.replay.hindsight > 0:
            hindsight = Hindsight(config.replay.hindsight, Goals(config.env, factory))
            stack.callback(hindsight.close)
        shard = build(
            spec,
            replace(config.replay, capacity=capacity),
            config.algo,
            rng=rng,
            transports=rings,
            envs=config.actor.envs,
            actors=max(config.actor.num, actors),
            directory=run_dir if config.replay.storage is Storage.DISK else None,
            ring=lent.ring(place, schema_of(spec), capacity) if lent else None,
            hindsight=hindsight,
        )
        stack.pop_all()  # the shard closes it
    return shard


def bytes_needed(spec: EnvSpec, config: ReplayConfig) -> int:
    """Returns the bytes of memory that a replay ring buffer and its priorities need."""
    return config.capacity * (row_bytes(schema_of(spec)) + 1 + 10)
