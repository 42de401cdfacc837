"""Replay buffers: steps by key, in rings, drawn uniformly or by priority.

Rows lie in a `Ring` and are drawn by the samplers of runs (`replay/`), with replacement. The first
experience decides shapes and types. All methods may be called from several threads.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.actors.policy import checked
from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content
from rookery.components.experience import KEYS, ROWS, WEIGHT
from rookery.components.protocols import Experience
from rookery.errors import CheckpointError, ConfigError, EmptyReplayError
from rookery.replay.ring import Column, Ring, Schema
from rookery.replay.sampler import FLOOR, Prioritized, Sampler, Uniform
from rookery.types import Array, Floats, Rows

FORMAT = 1
ROW_BITS = 40  # a pool knows a row as buffer << ROW_BITS | row
MOST_BUFFERS = 1 << 20
NUMBERS = "bifu"  # the kinds of numpy's types that a ring can hold


class _Open(NamedTuple):
    """Which rows a uniform sampler may draw: all of them."""

    closed: Array


class Drawn(NamedTuple):
    """Rows that were drawn, what they hold, and how likely each of them was."""

    columns: dict[str, Array]
    rows: Rows
    mass: Floats


class ReplayBuffer:
    """Keeps the newest `capacity` experiences; each is as likely to be drawn as any other.

    buffer = ReplayBuffer(10_000)
    buffer.add({"obs": obs, "action": 1, "reward": 0.5, ...}); buffer.add_batch(experiences)
    batch = buffer.sample(32)                                 # key → [B, ...]
    buffer.size(); buffer.is_full(); buffer.clear()
    """

    @checked
    def __init__(self, capacity: int, experience_keys: Sequence[str] = KEYS, *, seed: int = 0):
        _refuse_odd(capacity, experience_keys)
        self.capacity, self.experience_keys = capacity, tuple(experience_keys)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._ring: Ring | None = None
        self._sampler: Sampler | None = None
        self._base = 0  # rows that were there before the buffer was cleared: numbers only grow

    @checked
    def add(self, experience: Experience) -> None:
        """Stores one step."""
        self.add_batch([experience])

    @checked
    def add_batch(self, experiences: Sequence[Experience] | Mapping[str, Any]) -> None:
        """Stores several: dictionaries, or one with an array [B, ...] for each key."""
        columns = self._columns(experiences)
        self._store(columns, np.empty(0))

    @checked
    def sample(self, batch_size: int) -> Any:
        """Returns `batch_size` experiences, drawn with replacement: key → [B, ...]."""
        return self.draw(batch_size).columns

    @checked
    def clear(self) -> None:
        """Forgets everything; the numbers of rows go on, so that nobody mistakes new ones."""
        with self._lock:
            if self._ring is not None:
                self._base += self._ring.committed
                self._release()
            self._ring = self._sampler = None

    @checked
    def size(self) -> int:
        """How many experiences there are."""
        with self._lock:
            return 0 if self._ring is None else self._ring.committed - self._ring.oldest

    def __len__(self) -> int:
        return self.size()

    @checked
    def is_full(self) -> bool:
        """Does each new experience take the place of the oldest one?"""
        return self.size() == self.capacity

    @checked
    def draw(self, batch_size: int, beta: float = 0.0) -> Drawn:
        """Draws rows: those of all buffers of a pool are weighed together."""
        with self._lock:
            if self._ring is None or self._sampler is None:
                raise EmptyReplayError("this buffer is empty; add experiences before you sample")
            rows = self._sampler.sample(batch_size, beta, self._rng).rows
            slots = rows % self.capacity
            columns = {key: column[slots] for key, column in self._ring.columns.items()}
            return Drawn(columns, rows + self._base, self._mass(slots))

    @property
    def spread(self) -> float:
        """What a row's mass is a part of."""
        with self._lock:
            return 0.0 if self._sampler is None else self._sampler.spread

    @checked
    def contents(self) -> tuple[dict[str, Array], Floats]:
        """Returns everything, oldest first, and what it is ranked by."""
        with self._lock:
            if self._ring is None:
                return {}, np.empty(0)
            rows = np.arange(self._ring.oldest, self._ring.committed)
            slots = rows % self.capacity
            return {k: c[slots] for k, c in self._ring.columns.items()}, self._ranks(slots)

    @checked
    def refill(self, columns: Mapping[str, Array], ranks: Floats) -> None:
        """Puts what `contents` gave, or a part of it, in the place of everything."""
        with self._lock:
            self.clear()
            if columns and len(ranks):
                self._store(dict(columns), ranks)

    def _mass(self, slots: Rows) -> Floats:
        return np.ones(len(slots))

    def _ranks(self, slots: Rows) -> Floats:
        return np.ones(len(slots))

    def _store(self, columns: dict[str, Array], ranks: Floats) -> None:
        count = len(next(iter(columns.values())))
        with self._lock:
            if count and self._ring is None:
                self._open(columns)
            for first in range(0, count, self.capacity):
                part = slice(first, first + self.capacity)
                self._append({k: c[part] for k, c in columns.items()}, ranks[part])

    def _append(self, columns: dict[str, Array], ranks: Floats) -> None:
        ring, sampler = self._ring, self._sampler
        assert ring is not None, "it was opened"
        assert sampler is not None, "so was this"
        fitting = _fitting(columns, ring.schema)
        first, count = ring.reserved, len(next(iter(fitting.values())))
        sampler.clear(first, count)
        ring.put(count, fitting)
        sampler.admit(np.arange(first, first + count), ranks)

    def _open(self, columns: Mapping[str, Array]) -> None:
        schema = tuple(Column(k, c.shape[1:], c.dtype.str) for k, c in columns.items())
        self._ring = Ring.create(schema, self.capacity)
        self._release = weakref.finalize(self, _close, self._ring)
        self._sampler = self._make_sampler(self._ring)

    def _make_sampler(self, ring: Ring) -> Sampler:
        opened: Any = _Open(np.ones(self.capacity, dtype=np.uint8))
        return Uniform(ring, opened, 0.0)

    def _columns(self, experiences: Sequence[Experience] | Mapping[str, Any]) -> dict[str, Array]:
        if isinstance(experiences, Mapping):
            self._refuse_other_keys(experiences)
            return {key: _array(experiences[key], key) for key in self.experience_keys}
        for experience in experiences:
            self._refuse_other_keys(experience)
        return {key: _array([e[key] for e in experiences], key) for key in self.experience_keys}

    def _refuse_other_keys(self, experience: Experience) -> None:
        if missing := [key for key in self.experience_keys if key not in experience]:
            raise ConfigError(
                f"an experience of this buffer has {', '.join(self.experience_keys)}, got "
                f"{', '.join(experience)}; add {', '.join(missing)}, or name other experience_keys"
            )


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws experience i with probability p_i**alpha / sum(p**alpha) (Schaul et al. 2016).

    buffer = PrioritizedReplayBuffer(10_000, alpha=0.6, beta=0.4)
    buffer.add(experience, priority=2.0)
    batch, weights, indices = buffer.sample(32)               # the largest weight is 1
    buffer.update_priorities(indices, td_error)               # overwritten ones are skipped

    `beta` grows by `beta_increment` with every sample, up to 1.
    """

    @checked
    def __init__(
        self,
        capacity: int,
        experience_keys: Sequence[str] = KEYS,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_increment: float = 0.001,
        *,
        seed: int = 0,
    ):
        if not (0 <= alpha <= 1 and 0 <= beta <= 1 and beta_increment >= 0):
            raise ConfigError(
                f"alpha and beta are from 0 to 1 and beta_increment at least 0, got {alpha}, "
                f"{beta} and {beta_increment}; leave them out for the defaults"
            )
        super().__init__(capacity, experience_keys, seed=seed)
        self.alpha, self.beta, self.beta_increment = alpha, beta, beta_increment

    @checked
    def add(self, experience: Experience, priority: float = 1.0) -> None:
        """Stores one step, ranked by `priority` until there is a TD error for it."""
        _refuse_odd_priority(priority)
        self._store(self._columns([experience]), np.array([priority], dtype=np.float64))

    @checked
    def sample(self, batch_size: int) -> Any:
        """Returns experiences (key → [B, ...]), their weights [B] and their indices [B]."""
        drawn = self.draw(batch_size)
        weights = Prioritized.weigh(drawn.mass, self.beta)
        self.anneal()
        return drawn.columns, weights, drawn.rows

    @checked
    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Ranks experiences by their |TD errors| from now on."""
        with self._lock:
            if self._sampler is None:
                return
            rows = np.asarray(indices, dtype=np.int64) - self._base
            self._sampler.update_priorities(rows, np.asarray(priorities, dtype=np.float64))

    @checked
    def anneal(self) -> None:
        """Corrects a little more for what priorities do to the odds."""
        self.beta = min(1.0, self.beta + self.beta_increment)

    def _make_sampler(self, ring: Ring) -> Sampler:
        opened: Any = _Open(np.empty(0))
        return Prioritized(ring, opened, self.alpha)

    def _mass(self, slots: Rows) -> Floats:
        assert isinstance(self._sampler, Prioritized), "which was made above"
        mass: Floats = self._sampler.leaves[slots]
        return mass

    def _ranks(self, slots: Rows) -> Floats:
        """Returns the |TD errors| themselves; with alpha 0 they are all alike."""
        if not self.alpha:
            return np.ones(len(slots))
        ranks: Floats = self._mass(slots) ** (1.0 / self.alpha) - FLOOR
        return ranks.clip(min=0.0)


class ReplayBufferPool:
    """Several buffers that fill evenly, and are drawn from as if they were one.

    pool = ReplayBufferPool(num_buffers=4, use_prioritized=True, save_path="buffers")
    pool.add_experiences(experiences)                         # shared out among the buffers
    batch = pool.sample_batch(32)                             # with `weight` and `rows`
    pool.update_priorities(batch["rows"], td_error)
    pool.balance_buffers(); pool.get_buffer_stats()["sizes"]
    pool.save_buffers(); pool.load_buffers()                  # safetensors and JSON
    """

    @checked
    def __init__(
        self,
        num_buffers: int = 4,
        buffer_capacity: int = 100_000,
        experience_keys: Sequence[str] = KEYS,
        use_prioritized: bool = False,
        save_path: str | Path | None = None,
        *,
        seed: int = 0,
    ):
        if not 1 <= num_buffers <= MOST_BUFFERS:
            raise ConfigError(
                f"a pool has 1 to {MOST_BUFFERS} buffers, got num_buffers {num_buffers}; leave it "
                "out for 4"
            )
        kind = PrioritizedReplayBuffer if use_prioritized else ReplayBuffer
        self.use_prioritized = use_prioritized
        self.experience_keys = tuple(experience_keys)
        self.save_path = None if save_path is None else Path(save_path)
        self.buffers: list[ReplayBuffer] = [
            kind(buffer_capacity, experience_keys, seed=seed + i) for i in range(num_buffers)
        ]
        self._rng = np.random.default_rng([seed, num_buffers])
        self._lock = threading.RLock()
        self._added = self._sampled = 0

    @classmethod
    @checked
    def around(cls, buffer: ReplayBuffer) -> "ReplayBufferPool":
        """Makes a pool of a buffer that is there already."""
        prioritized = isinstance(buffer, PrioritizedReplayBuffer)
        pool = cls(1, buffer.capacity, buffer.experience_keys, use_prioritized=prioritized)
        pool.buffers = [buffer]
        return pool

    @property
    def capacity(self) -> int:
        """Experiences that all buffers have room for."""
        return sum(buffer.capacity for buffer in self.buffers)

    @checked
    def add_experiences(
        self,
        experiences: Sequence[Experience] | Mapping[str, Any],
        buffer_id: int | None = None,
    ) -> None:
        """Stores experiences in one buffer, or shares them out in turn."""
        with self._lock:
            if buffer_id is not None:
                self._buffer(buffer_id).add_batch(experiences)
                self._added += _count(experiences)
                return
            columns = self.buffers[0]._columns(experiences)
            for index in range(len(self.buffers)):
                turn = (self._added + index) % len(self.buffers)
                part = {k: c[index :: len(self.buffers)] for k, c in columns.items()}
                self.buffers[turn]._store(part, np.empty(0))
            self._added += _count(experiences)

    @checked
    def sample_batch(self, batch_size: int, buffer_id: int | None = None) -> dict[str, Array]:
        """Draws from one buffer or from all: key → [B, ...], and `rows` [B] for priorities.

        Where there are priorities, `weight` [B] corrects for them; the largest is 1.
        """
        with self._lock:
            chosen = self.buffers if buffer_id is None else [self._buffer(buffer_id)]
            spreads = np.array([buffer.spread for buffer in chosen])
            if not spreads.sum() > 0:
                raise EmptyReplayError("all buffers are empty; add experiences before you sample")
            shares = self._rng.multinomial(batch_size, spreads / spreads.sum())
            drawn = [
                self._drawn(buffer, int(share))
                for buffer, share in zip(chosen, shares, strict=True)
                if share
            ]
            self._sampled += batch_size
            return self._batch(drawn)

    @checked
    def update_priorities(self, rows: Any, priorities: Any) -> None:
        """Ranks experiences by their |TD errors|, by the `rows` that a batch came with."""
        known, errors = np.asarray(rows, dtype=np.int64), np.asarray(priorities)
        for index in np.unique(known >> ROW_BITS).tolist():
            buffer, own = self._buffer(index), known >> ROW_BITS == index
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(known[own] & ((1 << ROW_BITS) - 1), errors[own])

    @checked
    def get_buffer_stats(self) -> dict[str, Any]:
        """Returns sizes and counts, of each buffer and of all."""
        sizes = [buffer.size() for buffer in self.buffers]
        return {
            "num_buffers": len(self.buffers),
            "sizes": sizes,
            "capacity": self.capacity,
            "total": sum(sizes),
            "fill": sum(sizes) / self.capacity,
            "added": self._added,
            "sampled": self._sampled,
            "prioritized": self.use_prioritized,
        }

    @checked
    def get_total_experiences(self) -> int:
        """How many experiences there are in all buffers."""
        return sum(buffer.size() for buffer in self.buffers)

    @checked
    def clear_all_buffers(self) -> None:
        """Forgets everything."""
        with self._lock:
            for buffer in self.buffers:
                buffer.clear()

    @checked
    def balance_buffers(self) -> None:
        """Moves the oldest experiences of fuller buffers until no two sizes differ by more than 1.

        They keep their priorities. What a batch knew as `rows` is forgotten where a buffer changed.
        """
        with self._lock:
            sizes = [buffer.size() for buffer in self.buffers]
            targets = _even(sizes)
            moved: list[tuple[dict[str, Array], Floats]] = []
            for buffer, size, target in zip(self.buffers, sizes, targets, strict=True):
                if size > target:
                    columns, ranks = buffer.contents()
                    surplus, rest = slice(size - target), slice(size - target, None)
                    moved.append(({k: c[surplus] for k, c in columns.items()}, ranks[surplus]))
                    buffer.refill({k: c[rest] for k, c in columns.items()}, ranks[rest])
            self._deal(moved, sizes, targets)

    def _deal(
        self,
        moved: list[tuple[dict[str, Array], Floats]],
        sizes: list[int],
        targets: list[int],
    ) -> None:
        """Gives experiences to the buffers that have room for them."""
        if not moved:
            return
        columns = {key: np.concatenate([c[key] for c, _ in moved]) for key in moved[0][0]}
        ranks, at = np.concatenate([r for _, r in moved]), 0
        for buffer, size, target in zip(self.buffers, sizes, targets, strict=True):
            if (room := target - size) > 0:
                part = slice(at, at + room)
                buffer._store({k: c[part] for k, c in columns.items()}, ranks[part])
                at += room

    @checked
    def save_buffers(self, path: str | Path | None = None) -> Path:
        """Writes all experiences, whole or not at all; the folder that holds them is returned.

        An earlier save in the same place goes once this one is on the disk.
        """
        parent, arrays = self._place(path), dict[str, Array]()
        with self._lock:
            for index, buffer in enumerate(self.buffers):
                columns, ranks = buffer.contents()
                arrays |= {f"{index}.{key}": column for key, column in columns.items()}
                arrays[f"{index}:ranks"] = ranks
            state = {
                "format": FORMAT,
                "buffers": len(self.buffers),
                "keys": list(self.experience_keys),
                "added": self._added,
                "betas": [getattr(buffer, "beta", None) for buffer in self.buffers],
            }
        folder = checkpoint.write(
            parent,
            checkpoint.name_of(_latest(parent) + 1),
            Content(
                env_steps=self._added,
                version=0,
                exact=True,
                final=False,
                about={"what": "replay buffers"},
                weights={},
                state=state,
                arrays=arrays,
            ),
        )
        checkpoint.prune(parent, 1)
        return folder

    @checked
    def load_buffers(self, path: str | Path | None = None) -> int:
        """Puts saved experiences in the place of all there are; returns how many came.

        A pool with another number of buffers shares them out anew.
        """
        state, arrays = self._saved(self._place(path))
        ranks = [arrays[f"{index}:ranks"] for index in range(state["buffers"])]
        with self._lock:
            self.clear_all_buffers()
            for index, own in enumerate(ranks):
                if len(own):
                    columns = {key: arrays[f"{index}.{key}"] for key in self.experience_keys}
                    self._put_back(index, len(ranks), columns, own)
            self._added = int(state["added"])
            for buffer, beta in zip(self.buffers, state["betas"], strict=False):
                if isinstance(buffer, PrioritizedReplayBuffer) and beta is not None:
                    buffer.beta = float(beta)
        return self.get_total_experiences()

    def _put_back(self, index: int, saved: int, columns: dict[str, Array], ranks: Floats) -> None:
        if saved == len(self.buffers):
            self.buffers[index].refill(columns, ranks)
            return
        for turn, buffer in enumerate(self.buffers):
            every = slice(turn, None, len(self.buffers))
            buffer._store({k: c[every] for k, c in columns.items()}, ranks[every])

    def _saved(self, parent: Path) -> tuple[dict[str, Any], dict[str, Array]]:
        found = checkpoint.newest(parent)
        if found.found is None:
            raise CheckpointError(
                f"there are no whole buffers in {str(parent)!r} "
                f"({'; '.join(found.broken) or 'it has none'}); give the folder that save_buffers "
                "wrote to"
            )
        state, arrays = found.found.state(), found.found.arrays()
        if state.get("format") != FORMAT or set(state["keys"]) != set(self.experience_keys):
            raise CheckpointError(
                f"{found.found.folder} holds experiences of {state.get('keys')}, this pool has "
                f"{list(self.experience_keys)}; load it into a pool with the same experience_keys"
            )
        return state, arrays

    def _place(self, path: str | Path | None) -> Path:
        place = self.save_path if path is None else Path(path)
        if place is None:
            raise ConfigError(
                "buffers are saved in a folder, got none; give a path here, or save_path when the "
                "pool is made"
            )
        return place

    def _buffer(self, index: int) -> ReplayBuffer:
        if not 0 <= index < len(self.buffers):
            raise ConfigError(
                f"buffer_id is from 0 to {len(self.buffers) - 1}, got {index}; leave it out to use "
                "all of them"
            )
        return self.buffers[index]

    def _drawn(self, buffer: ReplayBuffer, share: int) -> Drawn:
        drawn, tag = buffer.draw(share), self.buffers.index(buffer) << ROW_BITS
        return drawn._replace(rows=drawn.rows | tag)

    def _batch(self, drawn: list[Drawn]) -> dict[str, Array]:
        batch = {
            key: np.concatenate([one.columns[key] for one in drawn]) for key in drawn[0].columns
        }
        batch[ROWS] = np.concatenate([one.rows for one in drawn])
        first = self.buffers[0]
        if isinstance(first, PrioritizedReplayBuffer):
            mass = np.concatenate([one.mass for one in drawn])
            batch[WEIGHT] = Prioritized.weigh(mass, first.beta)
            for buffer in self.buffers:
                buffer.anneal()  # type: ignore[attr-defined]
        return batch


def _refuse_odd(capacity: int, keys: Sequence[str]) -> None:
    odd = isinstance(keys, str) or not keys or len(set(keys)) < len(keys)
    if capacity < 1 or odd or ROWS in keys or WEIGHT in keys:
        raise ConfigError(
            f"a buffer has room for at least 1 experience of different keys, got {capacity} and "
            f"{keys!r}; {ROWS!r} and {WEIGHT!r} are what it adds to batches itself"
        )


def _refuse_odd_priority(priority: float) -> None:
    if not (priority >= 0 and np.isfinite(priority)):
        raise ConfigError(
            f"a priority is a finite number of at least 0, got {priority}; give the |TD error|, or "
            "leave it out"
        )


def _array(values: Any, key: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in NUMBERS:
        raise ConfigError(
            f"experiences hold numbers, got {array.dtype} for {key!r}; parts of a Dict are keys of "
            f"their own, such as {key}.name"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _fitting(columns: Mapping[str, Array], schema: Schema) -> dict[str, Array]:
    """Returns columns of the buffer's types, and refuses those of other shapes."""
    for column in schema:
        given = columns[column.name]
        if given.shape[1:] != column.shape:
            raise ConfigError(
                f"this buffer holds {column.name!r} of shape {column.shape}, got "
                f"{given.shape[1:]}; use one buffer for each kind of experience"
            )
    return {c.name: np.asarray(columns[c.name], dtype=c.dtype) for c in schema}


def _count(experiences: Sequence[Experience] | Mapping[str, Any]) -> int:
    if isinstance(experiences, Mapping):
        return len(next(iter(experiences.values())))
    return len(experiences)


def _even(sizes: Sequence[int]) -> list[int]:
    """Returns sizes that differ by 1 at most; the larger ones where there is more already."""
    each, rest = divmod(sum(sizes), len(sizes))
    first = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:rest]
    return [each + (i in first) for i in range(len(sizes))]


def _latest(parent: Path) -> int:
    """Returns the number of the newest save in a folder, 0 where there is none."""
    found = checkpoint.folders(parent)
    return int(found[0].name.split("-")[1]) if found else 0


def _close(ring: Ring) -> None:
    ring.close()
