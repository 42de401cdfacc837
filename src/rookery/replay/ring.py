"""Ring buffers of rows in a memory-mapped file: one writer, any number of readers, no lock.

A row is one stored step. Rows are numbered in the order of writing; row r is in slot r % capacity.
Two counters tell readers which rows are valid:

    reserved    no row from this number on has been written yet;
                rows below `reserved - capacity` may be overwritten at this moment
    committed   all rows below this number are complete

A writer raises `reserved`, writes the rows, and raises `committed`. A reader copies rows from
[reserved - capacity, committed), reads `reserved` again, and samples other rows instead of those
that were overwritten meanwhile (`sharing/ring_reader.py`). Only the column `next`, the distance to
the next row of the same environment, changes after its row is committed. It may lead to a row that
is not committed yet; readers then treat the next row as missing. If a writer process dies, the ring
stays readable. The next writer starts at the old `reserved`, and makes the half-written rows
invalid, so that they are never sampled (`Ring.adopt`).

A *transport* ring carries rows from one actor to the learner. It has one consumer, and rows that
were not consumed are never overwritten.

    ring = Ring.create(schema, capacity)              # private: unnamed, freed by the kernel
    with ring.writing(count) as slots: ring.columns["reward"][slots] = ...
"""

import contextlib
import hashlib
import json
import math
import mmap
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from rookery.errors import ConfigError, ProtocolError
from rookery.replay.file_owner import Owner
from rookery.replay.shared_arrays import SharedFile, new_file, padded
from rookery.replay.shared_memory import address, copy, load, look, post, store
from rookery.types import Array, End, EnvSpec, Rows, Slots

FORMAT = 1
MAGIC = b"ROOKRING"

_PAGE = 4096
_HEAD = struct.Struct("<8sqqqqq16sq32s")  # magic format header capacity pid start boot json hash
_OWNER = struct.Struct("<qq16s")
_OWNER_AT = 32
UNLIMITED_ROWS = 1 << 62  # more than any run writes
WORDS = 512  # bytes at the file's beginning that hold the counters; the schema follows
_STRIDE = 14  # in int64 words, as those that follow; the rest of the first 16 describes the ring
# the last two are the consumer's words to the writer of a transport ring
RESERVED, COMMITTED, _CONSUMED, _HEARTBEAT, _ROW_LIMIT, _EPSILON = 16, 24, 32, 40, 48, 56
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # runs on while a laptop sleeps


class Column(NamedTuple):
    """Name, shape and dtype of one field of a replay row, such as the reward."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        """Bytes that this field takes in one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


Schema = tuple[Column, ...]

BOOKKEEPING: Schema = (
    Column("reward", (), "float32"),
    Column("end", (), "uint8"),  # types.End
    Column("actor", (), "int32"),
    Column("incarnation", (), "int32"),
    Column("env", (), "int32"),
    Column("episode", (), "int64"),
    Column("t", (), "int32"),
    Column("version", (), "int64"),
    Column("taken", (), "float32"),  # the actor's value of its action; nan: it gave none
    Column("best", (), "float32"),  # and of the best action: what is bootstrapped from
    Column("next", (), "int32"),  # distance to that environment's next row; 0: not there yet
    Column("prev", (), "int32"),  # distance back; 0: first of its episode; -1: it is gone
)

TRANSITION: Schema = (  # what a row holds that carries its own next observation
    Column("reward", (), "float32"),
    Column("done", (), "float32"),  # 1: the episode ended with this step; nan: never whole
    Column("timeout", (), "float32"),  # 1: by its time limit
)

MISSING = {"taken": np.nan}  # value of a column that was not given, where it is not 0


def obs_column(leaf: str) -> str:
    """Returns the column name of an observation leaf, an entry of a dict observation."""
    return f"obs.{leaf}" if leaf else "obs"


def schema_of(spec: EnvSpec) -> Schema:
    """Returns the columns of a replay row (env step) for an environment with this spec."""
    obs = tuple(Column(obs_column(leaf.name), leaf.shape, leaf.dtype) for leaf in spec.obs)
    action = Column("action", spec.action.shape, spec.action.dtype)
    extras = (Column(extra.name, extra.shape, extra.dtype) for extra in spec.extras)
    return (*obs, action, *extras, *BOOKKEEPING)


def paired_schema(
    obs: Mapping[str, tuple[tuple[int, ...], str]], action: tuple[tuple[int, ...], str]
) -> Schema:
    """Returns the columns of rows that hold whole transitions, as Stable-Baselines3 stores them.

    Each row holds both the observation and the next observation. Observation leaves are given as
    name → (shape, dtype). With E environments, the next step of an environment is E rows later.
    """
    leaves = [Column(obs_column(name), *what) for name, what in obs.items()]
    following = [leaf._replace(name=f"next_{leaf.name}") for leaf in leaves]
    return (*leaves, Column("action", *action), *following, *TRANSITION)


def row_bytes(schema: Schema) -> int:
    """Returns the bytes that one row (stored step) with these columns takes."""
    return sum(column.width for column in schema)


class Ring(SharedFile):
    """Ring buffer of rows (env steps) in a memory-mapped file.

    Build it with `create`, `open` or `from_fd`.
    """

    what = "ring"

    def __init__(self, fd: int, *, writable: bool):
        size = os.fstat(fd).st_size
        if size < _PAGE:
            raise ProtocolError(f"not a ring: the file has {size} bytes, a ring at least {_PAGE}")
        super().__init__(fd, writable=writable)
        head = _HEAD.unpack_from(self._map)
        _refuse_foreign(head)
        self.capacity: int = head[3]
        self.schema = _read_schema(self._map, head[7], head[8])
        _refuse_damaged(self.schema, self.capacity, head[2], size)
        self.offsets = _offsets(self.schema, self.capacity, head[2])
        self.words: Rows = self.bytes[:WORDS].view(np.int64)
        self.widths = np.array([c.width for c in self.schema], dtype=np.int64)
        self.layout = np.concatenate([[self.capacity], self.offsets, self.widths])  # for kernels
        self.columns = dict[str, Array]()
        for column, at in zip(self.schema, self.offsets, strict=True):
            raw = self.bytes[at : at + column.width * self.capacity].view(column.dtype)
            self.columns[column.name] = raw.reshape(self.capacity, *column.shape)

    @classmethod
    def create(
        cls,
        schema: Schema,
        capacity: int,
        *,
        directory: Path | None = None,
        name: str | None = None,
        stride: int = 1,
    ) -> "Ring":
        """Creates a ring buffer of `capacity` rows (env steps) in a file.

        Without a name, the file is unnamed and private to this process and its children. `stride`
        is the number of rows from one step of an environment to its next step, if that is constant.
        Raises `ConfigError` if the disk or /dev/shm is full.
        """
        if capacity < 1:
            raise ConfigError(f"a ring has at least one row, got a capacity of {capacity}")
        header = _header_bytes(schema)
        size = _size(schema, capacity, header)
        fd = new_file(size, what="a ring", directory=directory, name=name)
        try:
            text = _encode(schema)
            digest, owner = hashlib.sha256(text).digest(), Owner.this()
            head = _HEAD.pack(MAGIC, FORMAT, header, capacity, *owner, len(text), digest)
            os.pwrite(fd, head.ljust(WORDS, b"\0") + text, 0)
            ring = cls(fd, writable=True)
        except OSError:
            os.close(fd)
            if directory is not None and name is not None:
                (directory / name).unlink(missing_ok=True)
            raise
        ring.words[_STRIDE] = stride
        return ring

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> "Ring":
        """Maps the file of an existing ring buffer, read-only unless `writable`.

        Raises `ProtocolError` if the file is not a ring buffer or is damaged.
        """
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return cls(fd, writable=writable)
        except ProtocolError:
            os.close(fd)
            raise

    @classmethod
    def from_fd(cls, fd: int) -> "Ring":
        """Maps an unnamed ring buffer whose file descriptor this process inherited."""
        return cls(fd, writable=True)

    @property
    def paired(self) -> bool:
        """True if each row (env step) of this ring buffer also holds its next observation."""
        return "done" in self.columns

    @property
    def stride(self) -> int:
        """Number of rows from one step of an environment to its next step in this ring buffer.

        Meaningful only if rows hold their next observation (`paired`).
        """
        return int(self.words[_STRIDE])

    @property
    def address(self) -> int:
        """Memory address of the mapped ring buffer, for compiled code that reads several."""
        return int(self.bytes.ctypes.data)

    @property
    def owner(self) -> Owner:
        """The process that writes to the ring buffer, or the last one that did."""
        return Owner(*_OWNER.unpack_from(self._map, _OWNER_AT))

    @property
    def reserved(self) -> int:
        return look(self.words, RESERVED)

    @property
    def committed(self) -> int:
        return look(self.words, COMMITTED)

    @property
    def consumed(self) -> int:
        return look(self.words, _CONSUMED)

    @property
    def oldest(self) -> int:
        """Number of the oldest row (env step) that is stored and not being overwritten."""
        return max(0, self.reserved - self.capacity)

    @property
    def free(self) -> int:
        """Number of rows (env steps) an actor can still write before the learner must read some.

        For transport rings only, the ring buffers that carry rows from one actor to the learner.
        """
        return self.capacity - (self.reserved - self.consumed)

    @property
    def waiting(self) -> bool:
        """True if a transport ring (ring buffer from an actor to the learner) holds unread rows."""
        return look(self.words, COMMITTED) > look(self.words, _CONSUMED)

    def control(self, go: bool, epsilon: float, rows: int = UNLIMITED_ROWS) -> None:
        """Lets the actor that writes to this ring buffer play if `go`, otherwise pauses it.

        The actor may begin chunks (of `actor.chunk` env steps) until it has written `rows` more
        rows. Also sends the actor its exploration rate `epsilon`.
        """
        self.words[_EPSILON : _EPSILON + 1].view(np.float64)[0] = epsilon
        post(self.words, _ROW_LIMIT, self.reserved + rows if go else 0)

    @property
    def may_write(self) -> bool:
        """True if the learner allows the actor that writes to this ring buffer to play on.

        The learner sets this with `control`.
        """
        return self.reserved < look(self.words, _ROW_LIMIT)

    @property
    def epsilon(self) -> float:
        return float(self.words[_EPSILON : _EPSILON + 1].view(np.float64)[0])

    def slots(self, first: int, count: int) -> Slots:
        """Returns the array indices of `count` rows (env steps) from row number `first` on.

        It is a slice, or an index array if the rows wrap around the end of the ring buffer.
        """
        start = first % self.capacity
        if start + count <= self.capacity:
            return slice(start, start + count)
        return (start + np.arange(count)) % self.capacity

    def reserve(self, count: int) -> int:
        """Announces that `count` rows are about to be written; returns the first row's number.

        Readers then know that the oldest rows may be overwritten. Raises `ProtocolError` if `count`
        exceeds the capacity.
        """
        if count > self.capacity:
            raise ProtocolError(f"{count} rows do not fit into a ring of {self.capacity}")
        first = self.reserved
        post(self.words, RESERVED, first + count)
        return first

    def commit(self) -> None:
        """Marks all reserved rows as complete, so that readers may read them."""
        post(self.words, COMMITTED, self.reserved)

    def consume(self, upto: int) -> None:
        """Marks the rows below number `upto` of a ring buffer from an actor to the learner as read.

        The actor may then overwrite them.
        """
        post(self.words, _CONSUMED, upto)

    @contextlib.contextmanager
    def writing(self, count: int) -> Iterator[Slots]:
        """Context manager: reserves `count` rows, yields their array indices, then commits them.

        The caller writes the rows (env steps) at these indices. Rows that an exception leaves
        half-written are never sampled.
        """
        first = self.reserve(count)
        try:
            yield self.slots(first, count)
        except BaseException:  # whatever it was, the rows are not whole; it is raised again
            self._bury()
            raise
        self.commit()

    def append(self, rows: Mapping[str, Array]) -> None:
        """Appends rows (env steps), given as arrays by column name.

        A column that is not given gets its default value in `MISSING`, or 0 if it has none.
        """
        count = len(next(iter(rows.values())))
        with self.writing(count) as slots:
            for name, column in self.columns.items():
                column[slots] = rows.get(name, MISSING.get(name, 0))

    def put(self, count: int, rows: Mapping[str, npt.ArrayLike]) -> None:
        """Appends `count` rows (env steps) of the given columns; does not write the other columns.

        Those keep the values of the overwritten rows. It is faster than `append`, for a writer that
        always gives the same columns.
        """
        words, columns = self.words, self.columns
        first = look(words, RESERVED)
        post(words, RESERVED, first + count)
        slots = self.slots(first, count)
        for name, values in rows.items():
            columns[name][slots] = values
        post(words, COMMITTED, first + count)

    def drain_from(self, transport: "Ring") -> tuple[int, int]:
        """Copies the unread rows (env steps) of an actor's ring buffer into this ring buffer.

        Returns the number of the first copied row and how many were copied, at most `capacity`.
        Both ring buffers must have the same schema. The rows are not committed here: `Chains.link`
        links them to earlier rows and commits them.
        """
        first, count = _drain(self.bytes, self.layout, transport.bytes, transport.layout)
        return int(first), int(count)

    def adopt(self) -> None:
        """Makes this process the writer of the ring buffer.

        Rows (env steps) that the previous writer left half-written become invalid and are never
        sampled.
        """
        _OWNER.pack_into(self._map, _OWNER_AT, *Owner.this())
        self._bury()

    def _bury(self) -> None:
        """Commits half-written rows (env steps) as invalid rows, which are never sampled."""
        first, last = self.committed, self.reserved
        if self.paired:
            self.columns["done"][self.slots(first, last - first)] = np.nan
            self.commit()
            return
        _cut(self.columns["next"], self.oldest, first)
        slots = self.slots(first, last - first)
        # without an episode, `Chains.link` joins them to nothing
        for name, value in {"end": End.TRUNCATED, "episode": -1, "next": 0, "prev": 0}.items():
            self.columns[name][slots] = value
        self.commit()

    def restart_at(self, row: int) -> None:
        """Sets the number that the next row (env step) of a new ring buffer gets.

        No other process may read the ring buffer yet.
        """
        post(self.words, RESERVED, row)
        post(self.words, COMMITTED, row)

    def beat(self) -> None:
        """Stores the present time as the writer's heartbeat, for readers of the ring buffer."""
        post(self.words, _HEARTBEAT, time.clock_gettime_ns(_CLOCK))

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat of the process that writes to the ring buffer."""
        return (time.clock_gettime_ns(_CLOCK) - look(self.words, _HEARTBEAT)) / 1e9

    def close(self) -> None:
        """Unmaps the ring buffer; numpy views of its columns must not be used any more.

        An unnamed ring buffer is deleted once the last process closes it. Raises `ClosedError` if
        it was closed before.
        """
        super().close()
        self.columns.clear()
        del self.words


def _offsets(schema: Schema, capacity: int, header: int) -> Rows:
    sizes = [header, *(padded(c.width * capacity) for c in schema[:-1])]
    return np.cumsum(sizes, dtype=np.int64)


def _size(schema: Schema, capacity: int, header: int) -> int:
    return int(_offsets(schema, capacity, header)[-1]) + padded(schema[-1].width * capacity)


def _encode(schema: Schema) -> bytes:
    return json.dumps([[c.name, list(c.shape), c.dtype] for c in schema]).encode()


def _header_bytes(schema: Schema) -> int:
    return -(-(WORDS + len(_encode(schema))) // _PAGE) * _PAGE


def _refuse_foreign(head: tuple[object, ...]) -> None:
    magic, version = head[:2]
    if magic != MAGIC:
        raise ProtocolError("not a ring: the file does not begin with the ring's mark")
    if version != FORMAT:
        raise ProtocolError(
            f"ring format {version} was written by another release of Rookery; "
            f"this one reads format {FORMAT}: run both with the same release"
        )


def _refuse_damaged(schema: Schema, capacity: int, header: int, size: int) -> None:
    too_small = capacity * row_bytes(schema) > size or size < _size(schema, capacity, header)
    if capacity < 1 or header != _header_bytes(schema) or too_small:
        raise ProtocolError(
            f"ring header is damaged: header {header}, capacity {capacity}, "
            f"file {size} bytes; a ring that was made whole has all its rows"
        )


def _read_schema(raw: mmap.mmap, length: int, digest: bytes) -> Schema:
    text = raw[WORDS : WORDS + length]
    if hashlib.sha256(text).digest() != digest:
        raise ProtocolError("ring schema is damaged: its checksum does not match")
    return tuple(Column(name, tuple(shape), dtype) for name, shape, dtype in json.loads(text))


@njit(cache=True, nogil=True)
def _cut(links, first, last):  # type: ignore[no-untyped-def]
    """Removes the links of rows [first, last) to row `last` and later rows: sets them to 0.

    `links` is the column `next`, the distance from a row (env step) to the next row of the same
    environment.
    """
    for row in range(first, last):
        if row + links[row % links.size] >= last:
            links[row % links.size] = 0


@njit(cache=True, nogil=True)
def _drain(target, target_layout, source, source_layout):  # type: ignore[no-untyped-def]
    """Copies the unread rows (env steps) of an actor's ring buffer to the replay ring buffer.

    Copies column by column, in the longest blocks in which neither ring buffer wraps around.
    Returns the number of the first row in replay and the number of copied rows.
    """
    columns = target_layout.size // 2
    target_capacity, source_capacity = target_layout[0], source_layout[0]
    to_ring, from_ring = address(target), address(source)
    begin = load(from_ring + 8 * _CONSUMED)
    count = min(load(from_ring + 8 * COMMITTED) - begin, target_capacity)
    first = load(to_ring + 8 * RESERVED)
    store(to_ring + 8 * RESERVED, first + count)
    done = 0
    while done < count:
        to = (first + done) % target_capacity
        at = (begin + done) % source_capacity
        run = min(count - done, target_capacity - to, source_capacity - at)
        for c in range(1, columns + 1):
            width = target_layout[columns + c]
            to_column, from_column = to_ring + target_layout[c], from_ring + source_layout[c]
            copy(to_column + to * width, from_column + at * width, run * width)
        done += run
    store(from_ring + 8 * _CONSUMED, begin + count)
    return first, count
