"""The pool: replay put together. The learner's process is its only writer.

    drained = pool.drain()                       # transport rings → replay ring
    batch = pool.draw(64, beta=0.4)              # rows → n-step batch
    pool.rerank(batch.rows, td_error)            # TD errors → priorities

Everything it holds is a function of the rows, the TD errors and its generator: `restore` goes on
bit for bit where `state` looked.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery import seeding
from rookery.config.algorithms import AlgoConfig
from rookery.config.schema import FirstPriority, ReplayConfig
from rookery.errors import CheckpointError, EmptyReplayError
from rookery.replay import fold
from rookery.replay.fold import Chains
from rookery.replay.hindsight import Hindsight
from rookery.replay.kept import Extent, Kept, Segments, Stretch, apart, remembered
from rookery.replay.ring import Ring, Schema, obs_column, row_bytes, schema_of
from rookery.replay.sampler import SAMPLERS, UNKNOWN, Drawn, Sampler
from rookery.types import Array, Batch, EnvSpec, Floats, Rows

TRIES = 100  # batches drawn in the hope of one row whose frames are all there


class Drained(NamedTuple):
    """What arrived: rows [first, first + count), of which `steps` have an action."""

    first: int
    count: int  # type: ignore[assignment]  # tuple.count is not missed
    steps: int
    parts: tuple["Drained", ...] = ()  # by shard, where there are several


class Found(NamedTuple):
    """What a shard has at some places; those that lead to no row are left out."""

    where: Rows  # which of the places lead to one
    share: Floats  # of the spread, of each row
    whole: Array  # are all frames of its stack there?
    batch: Batch  # with weights of 1
    spread: float  # of the shard, at that moment


class Pool:
    """One run's replay: its ring, the chains in it, and who is drawn from it."""

    def __init__(
        self,
        spec: EnvSpec,
        config: ReplayConfig,
        algo: AlgoConfig,
        *,
        rng: np.random.Generator,
        transports: Sequence[Ring],
        envs: int,
        actors: int | None = None,
        directory: Path | None = None,
        ring: Ring | None = None,
        sequence: int = 0,
        stride: int = 1,
        hindsight: Hindsight | None = None,
    ):
        """Makes its ring in `directory`, unless it is given one that others may read."""
        self.spec, self.config, self.algo, self.rng = spec, config, algo, rng
        self.n_step, self.gamma, self.sequence = algo.n_step, algo.gamma, sequence
        self.hindsight = hindsight
        self.transports = transports  # by actor; whoever replaces an actor replaces its ring
        actors = len(transports) if actors is None else actors  # of the run: rows have their number
        self.ring = ring or Ring.create(schema_of(spec), config.capacity, directory=directory)
        self.chains = Chains(
            actors * envs,
            envs,
            window=max(self.n_step, sequence),
            stride=stride,
            burn_in=algo.burn_in,
            capacity=config.capacity,
        )
        self.running = np.zeros(actors * envs)  # discounted return so far, by lane
        self.version = 0  # of the newest weights, as far as we have been told
        self.stale = 0  # rows that came too late to be drawn
        lagging = config.max_policy_lag is not None
        self._late = np.zeros(config.capacity if lagging else 0, dtype=np.uint8)  # those, by slot
        self.sampler: Sampler = SAMPLERS[config.draw](self.ring, self.chains, config.alpha)

    def drain(self) -> Drained:
        """Moves every finished row of the transport rings into replay, in the actors' order."""
        begin, rows, steps = self.ring.committed, 0, 0
        for transport in self.transports:
            count = self.ring.capacity if transport.waiting else 0
            while count == self.ring.capacity:  # a full ring's worth: there may be more
                first, count = self.ring.drain_from(transport)
                steps += self._settle(first, count)
                rows += count
        return Drained(begin, rows, steps)

    def _settle(self, first: int, count: int) -> int:
        """Links new rows, admits those whose window they closed; returns how many are steps."""
        self.sampler.clear(first, count)
        closed, steps = self.chains.link(self.ring, first, count)
        closed = self._fresh(closed)
        self.sampler.admit(closed, self._first_errors(closed))
        return steps

    def _fresh(self, rows: Rows) -> Rows:
        """Leaves out rows of a policy that is too old by now: they stay, but nobody draws them."""
        if self.config.max_policy_lag is None:
            return rows
        slots = rows % self.ring.capacity
        late = self.ring.columns["version"][slots] < self.version - self.config.max_policy_lag
        self._late[slots] = late
        self.chains.closed[slots[late]] = 0
        self.stale += int(late.sum())
        return rows[~late]

    def _first_errors(self, rows: Rows) -> Floats:
        """Returns what is known of rows nobody learned from; a sequence has no single error."""
        if self.config.first_priority is FirstPriority.LARGEST or self.sequence:
            return UNKNOWN
        return fold.errors(self.ring, rows, n_step=self.n_step, gamma=self.gamma)

    def draw(self, batch: int, *, beta: float = 1.0) -> Batch:
        """Draws B closed rows and folds them into transitions, as numpy arrays."""
        drawn = self.sampler.draw(batch, beta, self.rng)
        if self.spec.frame_stack > 1:
            drawn = self._whole(drawn, beta, self.ring.oldest)
        return self._gather(drawn.rows, drawn.weight, self.rng)

    def _gather(self, rows: Rows, weight: Floats, rng: np.random.Generator) -> Batch:
        batch = fold.gather(
            self.ring,
            self.spec,
            rows,
            weight,
            n_step=self.n_step,
            gamma=self.gamma,
            sequence=self.sequence,
            oldest=self.ring.oldest,
        )
        if self.hindsight is not None:
            self.hindsight.relabel(self.ring, batch, rng)
        return batch

    def look_up(self, places: Floats, spread: float) -> Found:
        """Returns the rows at places that whoever draws from several shards has made.

        Goals in hindsight follow from the places, so that they too are the same wherever this is.
        """
        hits = self.sampler.find(places, spread)
        rng = self.rng if self.hindsight is None else seeding.following(places)
        return Found(
            where=hits.where,
            share=hits.share,
            whole=fold.is_whole(self.ring, hits.rows, self.spec.frame_stack, self.ring.oldest),
            batch=self._gather(hits.rows, np.ones(hits.rows.size, dtype=np.float32), rng),
            spread=self.sampler.spread,
        )

    def _whole(self, drawn: Drawn, beta: float, oldest: int) -> Drawn:
        """Puts other rows of the batch in the place of those whose first frames were overwritten.

        There are few of them, at the ring's old end, and copying a row leaves the odds as they are.
        """
        depth, batch = self.spec.frame_stack, drawn.rows.size
        for _ in range(TRIES):
            whole = fold.is_whole(self.ring, drawn.rows, depth, oldest)
            if whole.all():
                return drawn
            if whole.any():
                index = np.arange(batch)
                index[~whole] = self.rng.choice(index[whole], size=int((~whole).sum()))
                weight = drawn.weight[index]
                return Drawn(drawn.rows[index], weight / weight.max())
            drawn = self.sampler.draw(batch, beta, self.rng)
        raise EmptyReplayError(
            f"no row of {self.ring.capacity} has all {depth} frames of its stack; "
            "raise replay.capacity or lower env.frame_stack"
        )

    def rerank(self, rows: Rows, td_error: Array) -> None:
        """Gives rows the priority of their new TD error; overwritten ones are skipped."""
        self.sampler.rerank(rows, td_error)

    @property
    def fill(self) -> float:
        """The share of the capacity that holds rows."""
        return min(1.0, self.ring.committed / self.ring.capacity)

    def observations_between(self, first: int, count: int) -> dict[str, Array]:
        """Returns the raw observation leaves of rows just drained, for running statistics."""
        slots = self.ring.slots(*self._left(first, count))
        return {
            leaf.name: self.ring.columns[obs_column(leaf.name)][slots] for leaf in self.spec.obs
        }

    def returns_between(self, first: int, count: int) -> Array:
        """Returns the discounted return so far at rows just drained; call once for each row."""
        start, left = self._left(first, count)
        if left < count:
            self.running[:] = 0.0  # of whom rows are missing is not known any more
        return fold.returns(
            self.ring, start, left, envs=self.chains.envs, gamma=self.gamma, running=self.running
        )

    def _left(self, first: int, count: int) -> tuple[int, int]:
        """Leaves out rows that one drain brought and overwrote: many actors may bring that many."""
        lost = max(0, count - self.ring.capacity)
        return first + lost, count - lost

    def observed(self, drained: Drained) -> tuple[dict[str, Array], Array]:
        """Returns observations and returns so far of rows just drained; call once for each."""
        at = drained.first, drained.count
        return self.observations_between(*at), self.returns_between(*at)

    def newest_version(self, drained: Drained) -> int:
        """Returns the newest weights that rows just drained were played with."""
        slots = self.ring.slots(*self._left(drained.first, drained.count))
        return int(self.ring.columns["version"][slots].max())

    def rows_between(self, first: int, last: int) -> dict[str, Array]:
        """Copies rows [first, last) column by column, for a checkpoint's segment."""
        start, end = first % self.ring.capacity, first % self.ring.capacity + last - first
        wrapped = max(0, end - self.ring.capacity)
        # two slices: training waits for this, and indices would take twice as long
        return {
            name: np.concatenate([column[start:end], column[:wrapped]])
            for name, column in self.ring.columns.items()
        }

    def rows_since(self, row: int) -> Stretch:
        """Copies the rows from `row` on that are still there."""
        first = min(max(row, self.ring.oldest), self.ring.committed)
        return Stretch(first, self.rows_between(first, self.ring.committed))

    @property
    def extents(self) -> list[Extent]:
        """Which rows each shard has; a pool is one shard."""
        return [Extent(self.ring.oldest, self.ring.committed)]

    def unsaved(self, saved: Sequence[int]) -> list[Stretch]:
        """Copies the rows of each shard that a saver has not got."""
        return [self.rows_since(saved[0])]

    def save(self, saved: Sequence[int]) -> Kept:
        """Returns what a checkpoint needs, together with the rows that no segment has yet."""
        numbers, arrays = self.state()
        return Kept(numbers, arrays, self.unsaved(saved), self.extents)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Returns what a checkpoint needs besides the rows: JSON-ready data, and arrays."""
        numbers = {
            "shape": self._shape(),
            "first": self.ring.oldest,
            "committed": self.ring.committed,
            "rng": seeding.state_of(self.rng),
        }
        own: dict[str, Array] = {"running": self.running.copy(), "late": self._late.copy()}
        return numbers, self.sampler.state() | own

    def resume(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, Array], segments: Sequence[Segments]
    ) -> None:
        """Goes on from what was saved; where that was several shards, with the rows of all."""
        states = apart(numbers, arrays)
        if len(states) == 1:
            self.restore(*states[0], segments[0])
        for columns in remembered(states, segments) if len(states) > 1 else ():
            self.adopt(columns)
        self.rng = seeding.with_state(numbers["rng"])

    def restore(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, Array], segments: Segments
    ) -> None:
        """Puts one shard's rows back and finds their chains again. The ring must be new."""
        if numbers["shape"] != self._shape():
            raise CheckpointError(
                f"replay was saved with {numbers['shape']}, this run has {self._shape()}; "
                "resume with the settings it was saved with"
            )
        self.rng = seeding.with_state(numbers["rng"])
        position = int(numbers["first"])
        self.ring.restart_at(position)
        for first, columns in segments:
            position = self._put_back(position, first, columns, int(numbers["committed"]))
        if position != numbers["committed"]:
            raise CheckpointError(
                f"replay segments end at row {position}, expected {numbers['committed']}; "
                "resume from an older checkpoint"
            )
        self._make_room(len(arrays["running"]))
        self._relink(int(numbers["first"]), position)
        if self._late.size == len(arrays["late"]):
            self._late[:] = arrays["late"]
            self.chains.closed[: self._late.size][self._late == 1] = 0
        self.sampler.restore(arrays)
        self.running[: len(arrays["running"])] = arrays["running"]

    def _shape(self) -> dict[str, int]:
        """What rows and priorities on disk depend on."""
        shape = {
            "capacity": self.ring.capacity,
            "envs": self.chains.envs,
            "window": self.chains.window,
            "stride": self.chains.stride,
        }
        return shape | ({"burn_in": self.chains.burn_in} if self.chains.burn_in else {})

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
        """There may be rows of more actors than the run has now."""
        self.chains.grow(lanes)
        self.running = np.pad(self.running, (0, max(0, lanes - len(self.running))))

    def _relink(self, first: int, last: int) -> None:
        """Finds the chains again: they are a function of the rows."""
        if last > first:
            self.chains.link(self.ring, first, last - first)

    def adopt(self, columns: Mapping[str, Array]) -> None:
        """Takes in rows of a replay that was cut into shards in another way, oldest first."""
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


def bytes_needed(spec: EnvSpec, config: ReplayConfig) -> int:
    """Returns what the replay ring and its priorities will take."""
    schema: Schema = schema_of(spec)
    return config.capacity * (row_bytes(schema) + 1 + 10)
