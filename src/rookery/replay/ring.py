"""Rings: columns of experience in a memory-mapped file. One writer, any number of readers, no lock.

Every row has a number that only grows; row r lives in slot r % capacity. Two counters tell what a
reader may touch:

    reserved    rows below it may have been written, and those from it on have not;
                so every row below `reserved - capacity` may be overwritten at this moment
    committed   rows below it are complete

A writer raises `reserved`, writes, raises `committed`. A reader draws from
[reserved - capacity, committed), copies, looks at `reserved` again, and draws anew what was
overtaken (`reader.py`). `next` is the one column that changes after its row is committed: it may
then point at rows from `committed` on, which a reader takes for "not there yet". A writer that
dies leaves a readable ring and holds nothing; the next writer starts at the old `reserved` and
marks the gap, so that it can never be drawn (`Ring.adopt`).

A *transport* ring has one consumer as well: what it has not consumed is never overwritten.

    ring = Ring.create(schema, capacity)              # private: unnamed, freed by the kernel
    with ring.writing(count) as slots: ring.columns["reward"][slots] = ...
"""

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rookery.errors import ClosedError, ConfigError, ProtocolError
from rookery.replay.memory import copy, load, look, post, store
from rookery.replay.owner import Owner
from rookery.types import Array, End, EnvSpec, Rows

FORMAT = 1
MAGIC = b"ROOKRING"
SHM = Path("/dev/shm")

_PAGE = 4096
_LINE = 64  # columns and counters start on their own cache lines
_HEAD = struct.Struct("<8sqqqqq16sq32s")  # magic format header capacity pid start boot json hash
_OWNER = struct.Struct("<qq16s")
_OWNER_AT = 32
WORDS = 512  # bytes at the file's beginning that hold the counters; the schema follows
_STRIDE = 14  # in int64 words, as those that follow; the rest of the first 16 describes the ring
# the last two are the consumer's words to the writer of a transport ring
RESERVED, COMMITTED, _CONSUMED, _HEARTBEAT, _GATE, _EPSILON = 16, 24, 32, 40, 48, 56
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps


class Column(NamedTuple):
    """One field of a row."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        """Bytes in one row."""
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

MISSING = {"taken": np.nan}  # what a column holds that nobody gave, where it is not 0


def obs_column(leaf: str) -> str:
    """Names the column of an observation leaf."""
    return f"obs.{leaf}" if leaf else "obs"


def schema_of(spec: EnvSpec) -> Schema:
    """Returns the columns that rows of this environment have."""
    obs = tuple(Column(obs_column(leaf.name), leaf.shape, leaf.dtype) for leaf in spec.obs)
    action = Column("action", spec.action.shape, spec.action.dtype)
    extras = (Column(extra.name, extra.shape, extra.dtype) for extra in spec.extras)
    return (*obs, action, *extras, *BOOKKEEPING)


def paired_schema(
    obs: Mapping[str, tuple[tuple[int, ...], str]], action: tuple[tuple[int, ...], str]
) -> Schema:
    """Returns the columns of rows that are whole transitions, as other libraries store them.

    Observation leaves are given as name → (shape, dtype). The next row of an environment lies as
    many rows behind as there are environments.
    """
    leaves = [Column(obs_column(name), *what) for name, what in obs.items()]
    following = [leaf._replace(name=f"next_{leaf.name}") for leaf in leaves]
    return (*leaves, Column("action", *action), *following, *TRANSITION)


def row_bytes(schema: Schema) -> int:
    """Returns what one row takes."""
    return sum(column.width for column in schema)


class Ring:
    """A mapped ring. Build it with `create`, `open` or `from_fd`."""

    def __init__(self, fd: int, *, writable: bool):
        self.fd = fd
        size = os.fstat(fd).st_size
        if size < _PAGE:
            raise ProtocolError(f"not a ring: the file has {size} bytes, a ring at least {_PAGE}")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, size, access=access)
        head = _HEAD.unpack_from(self._map)
        _refuse_foreign(head)
        self.capacity: int = head[3]
        self.schema = _read_schema(self._map, head[7], head[8])
        _refuse_damaged(self.schema, self.capacity, head[2], size)
        self.offsets = _offsets(self.schema, self.capacity, head[2])
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.words: Rows = self.bytes[:WORDS].view(np.int64)
        self.widths = np.array([c.width for c in self.schema], dtype=np.int64)
        self.layout = np.concatenate([[self.capacity], self.offsets, self.widths])  # for kernels
        self.columns = {
            c.name: self._column(c, int(at))
            for c, at in zip(self.schema, self.offsets, strict=True)
        }

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
        """Makes a ring: private unless it has a name. A full disk or /dev/shm is a ConfigError.

        `stride`: rows from one step of an environment to its next, where that is always the same.
        """
        if capacity < 1:
            raise ConfigError(f"a ring has at least one row, got a capacity of {capacity}")
        header = _header_bytes(schema)
        directory = directory or default_directory()
        fd = private_file(directory) if name is None else _named_file(directory / name)
        try:
            allocate(fd, _size(schema, capacity, header), directory, what="a ring")
            os.pwrite(fd, _head(schema, capacity, header, Owner.this()), 0)
        except (ConfigError, OSError):
            os.close(fd)
            if name is not None:
                (directory / name).unlink()
            raise
        ring = cls(fd, writable=True)
        ring.words[_STRIDE] = stride
        return ring

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> "Ring":
        """Maps a named ring: another run's, for reading only, or one to be written on."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return cls(fd, writable=writable)
        except ProtocolError:
            os.close(fd)
            raise

    @classmethod
    def from_fd(cls, fd: int) -> "Ring":
        """Maps a private ring that was inherited by descriptor."""
        return cls(fd, writable=True)

    @property
    def paired(self) -> bool:
        """Do rows carry their own next observation?"""
        return "done" in self.columns

    @property
    def stride(self) -> int:
        """Rows from one step of an environment to its next; paired rings only."""
        return int(self.words[_STRIDE])

    @property
    def address(self) -> int:
        """Where the mapping begins, for compiled code that reads several rings."""
        return int(self.bytes.ctypes.data)

    @property
    def owner(self) -> Owner:
        """The process that writes, or wrote last."""
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
        """The lowest row that is not being overwritten."""
        return max(0, self.reserved - self.capacity)

    @property
    def free(self) -> int:
        """Rows a transport ring can still take before its consumer must catch up."""
        return self.capacity - (self.reserved - self.consumed)

    @property
    def waiting(self) -> bool:
        """Has a transport ring rows that its consumer has not taken?"""
        return look(self.words, COMMITTED) > look(self.words, _CONSUMED)

    def control(self, gate: bool, epsilon: float) -> None:
        """Tells a transport ring's writer whether it may go on, and how to explore."""
        self.words[_EPSILON : _EPSILON + 1].view(np.float64)[0] = epsilon
        post(self.words, _GATE, int(gate))

    @property
    def gate(self) -> bool:
        return bool(look(self.words, _GATE))

    @property
    def epsilon(self) -> float:
        return float(self.words[_EPSILON : _EPSILON + 1].view(np.float64)[0])

    def slots(self, first: int, count: int) -> slice | Rows:
        """Returns where `count` rows from `first` on live: a slice, or indices where they wrap."""
        start = first % self.capacity
        if start + count <= self.capacity:
            return slice(start, start + count)
        return (start + np.arange(count)) % self.capacity

    def reserve(self, count: int) -> int:
        """Announces that `count` rows are being written; returns the first one's number."""
        if count > self.capacity:
            raise ProtocolError(f"{count} rows do not fit into a ring of {self.capacity}")
        first = self.reserved
        post(self.words, RESERVED, first + count)
        return first

    def commit(self) -> None:
        """Declares everything reserved complete."""
        post(self.words, COMMITTED, self.reserved)

    def consume(self, upto: int) -> None:
        """Gives a transport ring's rows below `upto` back to its writer."""
        post(self.words, _CONSUMED, upto)

    @contextlib.contextmanager
    def writing(self, count: int) -> Iterator[slice | Rows]:
        """Reserves rows, lets the caller fill the columns at the yielded slots, commits.

        What an exception leaves half-written can never be drawn.
        """
        first = self.reserve(count)
        try:
            yield self.slots(first, count)
        except BaseException:  # whatever it was, the rows are not whole; it is raised again
            self._bury()
            raise
        self.commit()

    def append(self, rows: Mapping[str, Array]) -> None:
        """Writes whole columns at once; columns that are not given are `MISSING`, or zero."""
        count = len(next(iter(rows.values())))
        with self.writing(count) as slots:
            for name, column in self.columns.items():
                column[slots] = rows.get(name, MISSING.get(name, 0))

    def put(self, count: int, rows: Mapping[str, Any]) -> None:
        """Writes `count` rows of the given columns; the others keep what their slots hold.

        The quick way for a writer that always gives the same columns and has filled the rest.
        """
        words, columns = self.words, self.columns
        first = look(words, RESERVED)
        post(words, RESERVED, first + count)
        slots = self.slots(first, count)
        for name, values in rows.items():
            columns[name][slots] = values
        post(words, COMMITTED, first + count)

    def drain_from(self, transport: "Ring") -> tuple[int, int]:
        """Copies what a transport ring with the same schema holds; returns first row and count.

        `Chains.link` commits the rows, once their links are there too. At most a capacity's worth
        at a time: call again while there is more.
        """
        first, count = _drain(
            self.bytes, self.layout, self.words, transport.bytes, transport.layout, transport.words
        )
        return int(first), int(count)

    def adopt(self) -> None:
        """Takes over the ring of a dead writer: what it left half-written can never be drawn."""
        _OWNER.pack_into(self._map, _OWNER_AT, *Owner.this())
        self._bury()

    def _bury(self) -> None:
        """Commits half-written rows as rows that nobody may draw and no chain leads to."""
        first, last = self.committed, self.reserved
        if self.paired:
            self.columns["done"][self.slots(first, last - first)] = np.nan
            self.commit()
            return
        _cut(self.columns["next"], self.oldest, first)
        slots = self.slots(first, last - first)
        self.columns["end"][slots] = End.TRUNCATED
        self.columns["episode"][slots] = -1  # no episode: `Chains.link` joins them to nothing
        self.columns["next"][slots] = 0
        self.columns["prev"][slots] = 0
        self.commit()

    def restart_at(self, row: int) -> None:
        """Sets both counters of a ring that nobody else reads yet."""
        post(self.words, RESERVED, row)
        post(self.words, COMMITTED, row)

    def beat(self) -> None:
        """Tells readers that the owner lives."""
        post(self.words, _HEARTBEAT, time.clock_gettime_ns(_CLOCK))

    @property
    def silence_s(self) -> float:
        """Seconds since the owner's last heartbeat."""
        return (time.clock_gettime_ns(_CLOCK) - look(self.words, _HEARTBEAT)) / 1e9

    def close(self) -> None:
        """Unmaps the ring. Views into its columns must be gone; a private one vanishes."""
        if self.fd < 0:
            raise ClosedError("this ring was closed before; keep one owner for each ring")
        self.columns.clear()
        del self.bytes, self.words
        with contextlib.suppress(BufferError):  # a view outlives us: the kernel frees it later
            self._map.close()
        os.close(self.fd)
        self.fd = -1

    def _column(self, column: Column, at: int) -> Array:
        raw = self.bytes[at : at + column.width * self.capacity]
        return raw.view(column.dtype).reshape(self.capacity, *column.shape)


def default_directory() -> Path:
    """Where private rings live: memory where there is a /dev/shm, else the temporary folder."""
    return SHM if SHM.is_dir() else Path(tempfile.gettempdir())


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _offsets(schema: Schema, capacity: int, header: int) -> Rows:
    sizes = [header, *(_padded(c.width * capacity) for c in schema[:-1])]
    return np.cumsum(sizes, dtype=np.int64)


def _size(schema: Schema, capacity: int, header: int) -> int:
    return int(_offsets(schema, capacity, header)[-1]) + _padded(schema[-1].width * capacity)


def _encode(schema: Schema) -> bytes:
    return json.dumps([[c.name, list(c.shape), c.dtype] for c in schema]).encode()


def _header_bytes(schema: Schema) -> int:
    return -(-(WORDS + len(_encode(schema))) // _PAGE) * _PAGE


def _head(schema: Schema, capacity: int, header: int, owner: Owner) -> bytes:
    text = _encode(schema)
    head = _HEAD.pack(
        MAGIC,
        FORMAT,
        header,
        capacity,
        owner.pid,
        owner.started,
        owner.boot,
        len(text),
        hashlib.sha256(text).digest(),
    )
    return bytes(head) + bytes(16 * 8 - len(head)) + bytes(WORDS - 16 * 8) + text


def _refuse_foreign(head: tuple[Any, ...]) -> None:
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


def private_file(directory: Path) -> int:
    """An unnamed file: it needs no cleaning up, whoever is killed."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # filesystems without O_TMPFILE, and macOS
        fd, path = tempfile.mkstemp(prefix="rookery-", dir=directory)
        os.unlink(path)
        return fd


def _named_file(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)


def allocate(fd: int, size: int, directory: Path, *, what: str) -> None:
    """Takes the space now: a full /dev/shm must be an error here, not a SIGBUS later."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.truncate(fd, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
        raise ConfigError(
            f"{what} of {size / 1e6:.0f} MB does not fit into {directory} "
            f"({free / 1e6:.0f} MB free); lower replay.capacity, enlarge {directory} "
            "(docker: --shm-size), or set replay.storage=disk"
        ) from error


@njit(cache=True, nogil=True)
def _cut(links, first, last):  # type: ignore[no-untyped-def]
    """Undoes the links of rows [first, last) that lead to `last` or beyond."""
    for row in range(first, last):
        if row + links[row % links.size] >= last:
            links[row % links.size] = 0


@njit(cache=True, nogil=True)
def _drain(target, target_layout, target_words, source, source_layout, source_words):  # type: ignore[no-untyped-def]
    """Copies rows column by column, in the longest runs that neither ring wraps."""
    columns = target_layout.size // 2
    target_capacity, source_capacity = target_layout[0], source_layout[0]
    begin = load(source_words, _CONSUMED)
    count = min(load(source_words, COMMITTED) - begin, target_capacity)
    first = load(target_words, RESERVED)
    store(target_words, RESERVED, first + count)
    done = 0
    while done < count:
        to = (first + done) % target_capacity
        at = (begin + done) % source_capacity
        run = min(count - done, target_capacity - to, source_capacity - at)
        for c in range(1, columns + 1):
            width = target_layout[columns + c]
            copy(
                target,
                target_layout[c] + to * width,
                source,
                source_layout[c] + at * width,
                run * width,
            )
        done += run
    store(source_words, _CONSUMED, begin + count)
    return first, count
