"""Replay buffers: steps by key, in rings, sampled uniformly or by priority.

Rows lie in a `Ring` and are sampled by the samplers of runs (`replay/`), with replacement. The
first experience decides shapes and types. All methods may be called from several threads.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from rookery.actors.policy import checked
from rookery.api.rollout_worker import joined
from rookery.checkpoints.checkpoint import Content
from rookery.components import saved
from rookery.components.experience import KEYS, ROWS, WEIGHT
from rookery.components.protocols import Experience, checked_methods
from rookery.config.checks import Count, Fraction, PositiveOr0
from rookery.errors import CheckpointError, ConfigError, EmptyReplayError
from rookery.replay.ring import Column, Ring
from rookery.replay.sampler import FLOOR, UNKNOWN, Prioritized, Sampler, Uniform
from rookery.types import Array, Floats, Rows, below, prefixed

FORMAT = 1
ROW_BITS = 40  # a pool knows a row as buffer << ROW_BITS | row
NUMBERS = "bifu"  # the kinds of numpy's types that a ring can hold


class Contents(NamedTuple):
    """Experiences, oldest first, and the |TD errors| that they have priority by."""

    columns: dict[str, Array]
    priorities: Floats

    def part(self, index: Any) -> "Contents":
        columns = {key: column[index] for key, column in self.columns.items()}
        return Contents(columns, self.priorities[index])


@checked_methods
class ReplayBuffer:
    """Keeps the newest `capacity` experiences; each is as likely to be sampled as any other.

    buffer = ReplayBuffer(10_000)
    buffer.add({"obs": obs, "action": 1, "reward": 0.5, ...}); buffer.add_batch(experiences)
    batch = buffer.sample(32)                                 # key → [B, ...]
    buffer.size(); buffer.is_full(); buffer.clear()
    """

    alpha: float | None = None  # exponent of priorities; None: there are none

    def __init__(self, capacity: Count, experience_keys: Sequence[str] = KEYS, *, seed: int = 0):
        _refuse_odd(experience_keys)
        self.capacity, self.experience_keys = capacity, tuple(experience_keys)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._ring: Ring | None = None
        self._sampler: Sampler | None = None
        self._base = 0  # rows that were there before the buffer was cleared: numbers only grow

    def add(self, experience: Experience) -> None:
        """Stores one step."""
        self.add_batch([experience])

    def add_batch(self, experiences: Sequence[Experience] | Mapping[str, Any]) -> None:
        """Stores several: dictionaries, or one with an array [B, ...] for each key."""
        self.store(Contents(self.columns_of(experiences), UNKNOWN))

    def sample(self, batch_size: int) -> Any:
        """Returns `batch_size` experiences, drawn with replacement: key → [B, ...]."""
        return self.draw(batch_size)[0]

    def clear(self) -> None:
        """Forgets everything; the numbers of rows go on, so that old ones are never mistaken."""
        with self._lock:
            if self._ring is not None:
                self._base += self._ring.committed
                self._release()
            self._ring = self._sampler = None

    def size(self) -> int:
        """How many experiences there are."""
        with self._lock:
            return 0 if self._ring is None else self._ring.committed - self._ring.oldest

    def __len__(self) -> int:
        return self.size()

    def is_full(self) -> bool:
        """Does each new experience take the place of the oldest one?"""
        return self.size() == self.capacity

    # For a pool, which weighs the rows of all its buffers together.

    def draw(self, batch_size: int) -> tuple[dict[str, Array], Rows, Floats]:
        """Samples rows: what they hold, their numbers, and how likely each of them was."""
        with self._lock:
            if self._ring is None or self._sampler is None:
                raise EmptyReplayError("this buffer is empty; add experiences before you sample")
            rows = self._sampler.sample(batch_size, 0.0, self._rng).rows
            slots = rows % self.capacity
            columns = {key: column[slots] for key, column in self._ring.columns.items()}
            return columns, rows + self._base, self._mass(slots)

    @property
    def spread(self) -> float:
        """The sum of the mass of all rows."""
        with self._lock:
            return 0.0 if self._sampler is None else self._sampler.spread

    def contents(self) -> Contents:
        """Returns everything."""
        with self._lock:
            if self._ring is None:
                return Contents({}, UNKNOWN)
            slots = np.arange(self._ring.oldest, self._ring.committed) % self.capacity
            columns = {key: column[slots] for key, column in self._ring.columns.items()}
            errors = np.ones(len(slots))  # with alpha 0 they are all alike
            if self.alpha:
                errors = (self._mass(slots) ** (1.0 / self.alpha) - FLOOR).clip(min=0.0)
            return Contents(columns, errors)

    def store(self, new: Contents) -> None:
        """Stores experiences; those without priorities get the largest so far."""
        new = new.part(slice(-self.capacity, None))
        if not (count := len(next(iter(new.columns.values()), ()))):
            return
        with self._lock:
            ring, sampler = self._opened(new.columns)
            first = ring.reserved
            sampler.clear(first, count)
            ring.put(count, new.columns)
            sampler.admit(np.arange(first, first + count), new.priorities)

    def columns_of(self, experiences: Sequence[Experience] | Mapping[str, Any]) -> dict[str, Array]:
        """Returns experiences as arrays [B, ...]; refuses those that have other keys."""
        for experience in [experiences] if isinstance(experiences, Mapping) else experiences:
            if missing := [key for key in self.experience_keys if key not in experience]:
                raise ConfigError(
                    "an experience of this buffer has "
                    f"{', '.join(self.experience_keys)}, got {', '.join(experience)}; add "
                    f"{', '.join(missing)}, or name other experience_keys"
                )
        if isinstance(experiences, Mapping):
            return {key: _numbers(experiences[key], key) for key in self.experience_keys}
        return {key: _numbers([e[key] for e in experiences], key) for key in self.experience_keys}

    def _mass(self, slots: Rows) -> Floats:
        leaves: Floats | None = getattr(self._sampler, "leaves", None)
        return np.ones(len(slots)) if leaves is None else leaves[slots]

    def _opened(self, columns: Mapping[str, Array]) -> tuple[Ring, Sampler]:
        """Returns ring and sampler for such columns; the first ones decide shapes and types."""
        if self._ring is None or self._sampler is None:
            schema = tuple(Column(k, c.shape[1:], c.dtype.str) for k, c in columns.items())
            self._ring = Ring.create(schema, self.capacity)
            self._release = weakref.finalize(self, self._ring.close)
            every_row: Any = SimpleNamespace(closed=np.ones(self.capacity, dtype=np.uint8))
            kind = Uniform if self.alpha is None else Prioritized
            self._sampler = kind(self._ring, every_row, self.alpha or 0.0)
        for column in self._ring.schema:
            if (given := columns[column.name].shape[1:]) != column.shape:
                raise ConfigError(
                    f"this buffer holds {column.name!r} of shape {column.shape}, got {given}; use "
                    "one buffer for each kind of experience"
                )
        return self._ring, self._sampler


@checked_methods
class PrioritizedReplayBuffer(ReplayBuffer):
    """Samples experience i with probability p_i**alpha / sum(p**alpha) (Schaul et al. 2016).

    buffer = PrioritizedReplayBuffer(10_000, alpha=0.6, beta=0.4)
    buffer.add(experience, priority=2.0)
    batch, weights, indices = buffer.sample(32)               # the largest weight is 1
    buffer.update_priorities(indices, td_error)               # overwritten ones are skipped

    `beta` grows by `beta_increment` with every sample, up to 1.
    """

    def __init__(
        self,
        capacity: Count,
        experience_keys: Sequence[str] = KEYS,
        alpha: Fraction = 0.6,
        beta: Fraction = 0.4,
        beta_increment: PositiveOr0 = 0.001,
        *,
        seed: int = 0,
    ):
        super().__init__(capacity, experience_keys, seed=seed)
        self.alpha, self.beta, self.beta_increment = alpha, beta, beta_increment

    def add(self, experience: Experience, priority: PositiveOr0 = 1.0) -> None:
        """Stores one step, with `priority` until there is a TD error for it."""
        self.store(Contents(self.columns_of([experience]), np.array([float(priority)])))

    def sample(self, batch_size: int) -> Any:
        """Returns experiences (key → [B, ...]), their weights [B] and their indices [B]."""
        columns, rows, mass = self.draw(batch_size)
        weights = Prioritized.weigh(mass, self.beta)
        self.anneal()
        return columns, weights, rows

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Gives experiences the priority of their |TD errors| from now on."""
        with self._lock:
            if self._sampler is None:
                return
            rows = np.asarray(indices, dtype=np.int64) - self._base
            self._sampler.update_priorities(rows, np.asarray(priorities, dtype=np.float64))

    def anneal(self) -> None:
        """Raises `beta` by `beta_increment`."""
        self.beta = min(1.0, self.beta + self.beta_increment)


@checked_methods
class ReplayBufferPool:
    """Several buffers that fill evenly, and are sampled as if they were one.

    pool = ReplayBufferPool(num_buffers=4, use_prioritized=True, save_path="buffers")
    pool.add_experiences(experiences)                         # shared out among the buffers
    batch = pool.sample_batch(32)                             # with `weight` and `rows`
    pool.update_priorities(batch["rows"], td_error)
    pool.balance_buffers(); pool.get_buffer_stats()["sizes"]
    pool.save_buffers(); pool.load_buffers()                  # safetensors and JSON
    """

    def __init__(
        self,
        num_buffers: Count = 4,
        buffer_capacity: Count = 100_000,
        experience_keys: Sequence[str] = KEYS,
        use_prioritized: bool = False,
        save_path: str | Path | None = None,
        *,
        seed: int = 0,
    ):
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

    def add_experiences(
        self,
        experiences: Sequence[Experience] | Mapping[str, Any],
        buffer_id: int | None = None,
    ) -> None:
        """Stores experiences in one buffer, or shares them out in turn."""
        with self._lock:
            new = Contents(self.buffers[0].columns_of(experiences), UNKNOWN)
            if buffer_id is not None:
                self._buffer(buffer_id).store(new)
            else:
                self._share_out(new, self._added)
            self._added += len(new.columns[self.experience_keys[0]])

    def _share_out(self, new: Contents, turn: int = 0) -> None:
        """Stores experiences in the buffers in turn; the first one is for buffer `turn`."""
        count = len(self.buffers)
        for index in range(count):
            self.buffers[(turn + index) % count].store(new.part(slice(index, None, count)))

    def sample_batch(self, batch_size: Count, buffer_id: int | None = None) -> dict[str, Array]:
        """Samples from one buffer or from all: key → [B, ...], and `rows` [B] for priorities.

        Where there are priorities, `weight` [B] corrects for them; the largest is 1.
        """
        with self._lock:
            numbers = range(len(self.buffers)) if buffer_id is None else [buffer_id]
            spreads = np.array([self._buffer(number).spread for number in numbers])
            if not spreads.sum() > 0:
                raise EmptyReplayError("all buffers are empty; add experiences before you sample")
            shares = self._rng.multinomial(batch_size, spreads / spreads.sum()).tolist()
            drawn = [
                (number, *self.buffers[number].draw(share))
                for number, share in zip(numbers, shares, strict=True)
                if share
            ]
            self._sampled += batch_size
        batch = joined([columns for _, columns, _, _ in drawn])
        batch[ROWS] = np.concatenate([rows | number << ROW_BITS for number, _, rows, _ in drawn])
        if ranked := [one for one in self.buffers if isinstance(one, PrioritizedReplayBuffer)]:
            mass = np.concatenate([mass for *_, mass in drawn])
            batch[WEIGHT] = Prioritized.weigh(mass, ranked[0].beta)
        for buffer in ranked:
            buffer.anneal()
        return batch

    def update_priorities(self, rows: Any, priorities: Any) -> None:
        """Gives experiences the priority of their |TD errors|, by the `rows` of a batch."""
        known, errors = np.asarray(rows, dtype=np.int64), np.asarray(priorities)
        for index in np.unique(known >> ROW_BITS).tolist():
            buffer, own = self._buffer(index), known >> ROW_BITS == index
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(known[own] & ((1 << ROW_BITS) - 1), errors[own])

    def get_buffer_stats(self) -> dict[str, Any]:
        """Returns sizes and counts, of each buffer and of all."""
        total = self.get_total_experiences()
        return {
            "num_buffers": len(self.buffers),
            "sizes": [buffer.size() for buffer in self.buffers],
            "capacity": self.capacity,
            "total": total,
            "fill": total / self.capacity,
            "added": self._added,
            "sampled": self._sampled,
            "prioritized": self.use_prioritized,
        }

    def get_total_experiences(self) -> int:
        """How many experiences there are in all buffers."""
        return sum(buffer.size() for buffer in self.buffers)

    def clear_all_buffers(self) -> None:
        """Forgets everything."""
        with self._lock:
            for buffer in self.buffers:
                buffer.clear()

    def balance_buffers(self) -> None:
        """Shares all experiences out anew, if any two sizes differ by more than 1.

        They keep their priorities. What a batch knew as `rows` is then forgotten.
        """
        with self._lock:
            pieces = [buffer.contents() for buffer in self.buffers]
            sizes = [len(piece.priorities) for piece in pieces]
            if max(sizes) - min(sizes) > 1:
                self.clear_all_buffers()
                self._share_out(_by_age(pieces))

    def save_buffers(self, path: str | Path | None = None) -> Path:
        """Writes all experiences, whole or not at all; the folder that holds them is returned.

        An earlier save in the same place goes once this one is on the disk.
        """
        parent = self._folder(path)
        with self._lock:
            pieces = [buffer.contents() for buffer in self.buffers]
            state = {
                "format": FORMAT,
                "buffers": len(pieces),
                "keys": list(self.experience_keys),
                "added": self._added,
                "betas": [getattr(buffer, "beta", None) for buffer in self.buffers],
            }
        arrays = {f"{i}:ranks": piece.priorities for i, piece in enumerate(pieces)}
        for i, piece in enumerate(pieces):
            arrays |= prefixed(f"{i}.", piece.columns)
        about = {"what": "replay buffers"}
        content = Content(self._added, 0, True, False, about, {}, state, arrays)
        return saved.write(parent, saved.next_number(parent), content, keep=1)

    def load_buffers(self, path: str | Path | None = None) -> int:
        """Puts saved experiences in the place of all there are; returns how many came.

        A pool with another number of buffers shares them out anew.
        """
        found = saved.newest(self._folder(path))
        state, arrays = found.state(), found.arrays()
        if state.get("format") != FORMAT or set(state["keys"]) != set(self.experience_keys):
            raise CheckpointError(
                f"{found.folder} holds experiences of {state.get('keys')}, this pool has "
                f"{list(self.experience_keys)}; load it into a pool with the same experience_keys"
            )
        pieces = [
            Contents(below(f"{i}.", arrays), arrays[f"{i}:ranks"]) for i in range(state["buffers"])
        ]
        with self._lock:
            self.clear_all_buffers()
            if len(pieces) == len(self.buffers):
                for buffer, piece in zip(self.buffers, pieces, strict=True):
                    buffer.store(piece)
            else:
                self._share_out(_by_age(pieces))
            self._added = int(state["added"])
            for buffer, beta in zip(self.buffers, state["betas"], strict=False):
                if isinstance(buffer, PrioritizedReplayBuffer) and beta is not None:
                    buffer.beta = float(beta)
        return self.get_total_experiences()

    def _folder(self, path: str | Path | None) -> Path:
        return saved.folder_of(path, self.save_path, "save_path when the pool is made")

    def _buffer(self, index: int) -> ReplayBuffer:
        if not 0 <= index < len(self.buffers):
            raise ConfigError(
                f"buffer_id is from 0 to {len(self.buffers) - 1}, got {index}; leave it out to use "
                "all of them"
            )
        return self.buffers[index]


def _by_age(pieces: Sequence[Contents]) -> Contents:
    """Returns the contents of several buffers as one; the oldest come first."""
    filled = [piece for piece in pieces if piece.columns]
    if not filled:
        return Contents({}, UNKNOWN)
    age = np.concatenate([np.arange(len(piece.priorities))[::-1] for piece in filled])
    priorities = np.concatenate([piece.priorities for piece in filled])
    whole = Contents(joined([piece.columns for piece in filled]), priorities)
    return whole.part(np.argsort(-age, kind="stable"))


def _refuse_odd(keys: Sequence[str]) -> None:
    repeated = not keys or len(set(keys)) < len(keys)
    if isinstance(keys, str) or repeated or ROWS in keys or WEIGHT in keys:
        raise ConfigError(
            f"experience_keys are different names, at least one, got {keys!r}; {ROWS!r} and "
            f"{WEIGHT!r} are what a buffer adds to batches itself"
        )


def _numbers(values: Any, key: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in NUMBERS:
        raise ConfigError(
            f"experiences hold numbers, got {array.dtype} for {key!r}; parts of a Dict are keys of "
            f"their own, such as {key}.name"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array
