"""Registry of the replay buffers that runs share: a folder, without a server or a global lock.

    with create_distributed_registry() as registry:         # or: registry.stop() at the end
        buffer_id = registry.register_buffer(run_id="my_run_1", algorithm="SAC")
        ...                                                 # replay buffers attach to the id
        registry.deregister_buffer(buffer_id)

A pool is the set of replay buffers that several runs share. Its folder (mode 0700, in memory if
there is a /dev/shm) holds

    pool.json         limits of the pool; every started registry holds a shared lock on it
    terms.json        properties that all buffers must have in common; the first buffer writes it
    ID.json           a registered buffer id and its run; locked by the process that registered it
    ID.ring           the buffer's replay ring, mode 0600; locked by its only writer

The kernel releases the locks of a killed process. A buffer without locks whose process has ended is
stale; another run of the pool removes it (`stale_pools.py`). The last registry to stop removes the
pool. A registry that the program does not stop is stopped at the end of its process
(`open_registries.py`). Readers take no locks: they map the rings of the other runs (`borrower.py`).
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rookery.config.schema import Config
from rookery.errors import ConfigError, ProtocolError, RegistryError
from rookery.replay.file_owner import Owner
from rookery.replay.ring import Ring, Schema
from rookery.replay.shared_arrays import default_directory
from rookery.sharing import pool_files, stale_pools
from rookery.sharing.argument_types import is_number
from rookery.sharing.compatibility import Terms, differences
from rookery.sharing.open_registries import OPEN
from rookery.sharing.pool_files import NOTE, POOL, RING, SCRATCH, TERMS
from rookery.sharing.sample_counts import SampleCounts

FORMAT = 1
MAX_ROWS = 1_000_000  # largest capacity of a buffer by default, in env steps
STALE_S = 300.0  # seconds without a heartbeat after which a buffer is ignored
ON_POLICY = ("A2C", "PPO", "TRPO", "RecurrentPPO", "MaskablePPO")
PATIENCE_S = 0.5  # for a lock, which other processes take briefly to see if its holder lives
STARTS = 10  # attempts to open a pool that another process removes at the same time
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_BUFFER_ID = re.compile(rf"{_NAME.pattern}-[0-9a-f]{{6}}")  # a run id and a random number


class BufferState(StrEnum):
    """State of a replay buffer in a pool of shared buffers, such as `lending` or `dead`."""

    RESERVED = "reserved"  # registered, no rows yet
    LENDING = "lending"  # other runs can sample from it
    SILENT = "silent"  # no heartbeat for longer than `stale_s`; ignored
    DEAD = "dead"  # abandoned by its process, or unreadable


@dataclass(frozen=True)
class BufferInfo:
    """Information about a replay buffer of a pool (set of shared buffers).

    `Registry.list` returns one for each buffer.
    """

    buffer_id: str
    run_id: str
    algorithm: str
    reward_tag: str | None
    env: str | None
    pid: int  # of the process that registered it
    state: BufferState
    rows: int = 0  # written since it was made; 0 until a buffer attaches
    filled: int = 0  # rows that can be read
    capacity: int = 0
    bytes: int = 0
    silence_s: float | None = None  # seconds since the last heartbeat; None before the first row


def shared_directory() -> Path:
    """Returns the directory that holds this user's pools of shared replay buffers."""
    return default_directory() / f"rookery-{os.getuid()}"


def create_distributed_registry(
    max_buffer_size: int = MAX_ROWS,
    *,
    path: str | Path | None = None,
    stale_s: float = STALE_S,
) -> "Registry":
    """Opens the pool of shared replay buffers in the folder `path`, or creates it.

    Without `path`, creates a new pool with a random name; other processes can open it by the
    registry's `path`. `max_buffer_size` is the largest capacity of a buffer, in env steps. A buffer
    without a heartbeat for `stale_s` seconds is ignored. An existing pool keeps its own values of
    both. The registry is a context manager, which stops it at its end.
    """
    rows_are_valid = is_number(max_buffer_size) and max_buffer_size >= 1
    if not (rows_are_valid and is_number(stale_s) and stale_s > 0):
        raise ConfigError(
            f"got max_buffer_size={max_buffer_size!r}, stale_s={stale_s!r}; give a "
            "max_buffer_size of at least 1 row and a stale_s of more than 0 seconds"
        )
    folder = Path(path) if path is not None else shared_directory() / f"pool-{secrets.token_hex(4)}"
    registry = Registry(folder.absolute())
    registry.start(max_buffer_size=max_buffer_size, stale_s=stale_s)
    return registry


def open_pool(config: Config) -> "Registry":
    """Opens the pool of shared replay buffers that the setting `sharing.pool` of a run names."""
    assert config.sharing.pool is not None, "sharing.pool is not set"
    largest = max(MAX_ROWS, config.replay.capacity)
    return create_distributed_registry(largest, path=config.sharing.pool)


def run_id_of(name: str) -> str:
    """Returns a run id that resembles `name`, such as that of the run's folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:80].lstrip("._-") or "run"


class Registry:
    """Access to a pool, the folder of the replay buffers that runs share.

    A pickled registry holds only the folder's path. As a context manager it is stopped at the end
    of the block; otherwise call `stop()`. At the end of the process it is stopped in any case,
    unless the process is killed.
    """

    def __init__(self, path: Path):
        self.path = path
        self.max_buffer_size, self.stale_s = 0, STALE_S
        self.revived = False  # unpickled: the pool may have been removed meanwhile
        self._pool_fd = -1  # descriptor with the shared lock of the pool; -1: not started
        self._held: dict[str, int] = {}  # descriptors with the locks of the registered notes
        self._pid = os.getpid()  # of the process that registered them
        self._counts: dict[str, SampleCounts] = {}

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Path(state["path"]))  # type: ignore[misc]
        self.revived = True
        with contextlib.suppress(RegistryError, ConfigError):
            self._open()

    # --- the pool

    def start(self, *, max_buffer_size: int = MAX_ROWS, stale_s: float = STALE_S) -> None:
        """Opens the pool of shared replay buffers; creates its folder if it does not exist.

        Other users must not have access to the folder; otherwise raises `ConfigError`.
        """
        about = {"format": FORMAT, "max_buffer_size": max_buffer_size, "stale_s": stale_s}
        for _ in range(STARTS):
            with contextlib.suppress(FileNotFoundError, RegistryError):  # removed meanwhile
                self._make(about)
                self._open()
                return
        self._open()

    def _make(self, about: dict[str, Any]) -> None:
        if self.path.parent == shared_directory():
            pool_files.make_private(self.path.parent)
        pool_files.make_private(self.path)
        try:
            pool_files.write_once(self.path / POOL, about)
        except ConfigError:
            with contextlib.suppress(OSError):  # the folder is not empty
                self.path.rmdir()
            raise

    def _open(self) -> None:
        try:
            pool_files.require_private(self.path)
            fd = pool_files.open_private(self.path / POOL)
        except FileNotFoundError:
            raise RegistryError(
                f"start: there is no pool in {self.path}; make one with "
                "create_distributed_registry(path=...)"
            ) from None
        except ProtocolError as error:
            raise ConfigError(f"{self.path} is not a pool: {error}; name another folder") from error
        try:
            self._enter(fd)
        except (ConfigError, RegistryError):
            os.close(fd)
            raise

    def _enter(self, fd: int) -> None:
        entered = pool_files.lock(fd, fcntl.LOCK_SH, patience_s=PATIENCE_S)
        if not entered or not pool_files.is_at(fd, self.path / POOL):
            raise RegistryError(f"start: the pool in {self.path} is being removed; start it again")
        self.max_buffer_size, self.stale_s = _limits(self.path)
        self._let_go()
        self._pool_fd = fd
        OPEN.add(self)

    def _let_go(self) -> None:
        if self._pool_fd >= 0:
            os.close(self._pool_fd)
        self._pool_fd = -1
        OPEN.discard(self)

    @property
    def available(self) -> bool:
        """True if this registry has opened its pool of replay buffers and it still exists."""
        return self._pool_fd >= 0 and pool_files.is_at(self._pool_fd, self.path / POOL)

    def stop(self) -> None:
        """Removes the replay buffers that this registry has registered, and closes the pool.

        The last registry to stop deletes the folder of the pool of shared buffers. Copies of this
        registry in this process, such as that of a model which SB3 has loaded, are closed with it.
        """
        self._forget_inherited()
        for buffer_id in tuple(self._held):
            self._remove(buffer_id)
        self._let_go()
        self._close_copies()
        stale_pools.clear(self.path)
        stale_pools.remove_if_empty(self.path)

    def _forget_inherited(self) -> None:
        """In a forked process: forgets the buffers of the parent process, which still uses them."""
        if self._pid == os.getpid():
            return
        for inherited in self._held.values():
            os.close(inherited)
        self._held, self._pid = {}, os.getpid()

    def _close_copies(self) -> None:
        """Closes unpickled copies without buffers, if they alone hold the pool in this process."""
        others = OPEN.of(self.path)
        if all(other.revived and not other._held for other in others):
            for other in others:
                other._let_go()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._let_go()

    def _check(self, call: str) -> None:
        """Raises `RegistryError` if this registry is stopped or its pool of buffers was removed."""
        if self._pool_fd < 0:
            raise RegistryError(
                f"{call}: the registry of {self.path} is stopped; call start() first, or make one "
                "with create_distributed_registry()"
            )
        if not self.available:
            raise RegistryError(
                f"{call}: the pool in {self.path} is gone; make a new one with "
                "create_distributed_registry() and register again"
            )

    # --- buffers

    def register_buffer(
        self,
        run_id: str,
        algorithm: str,
        reward_tag: str | None = None,
        *,
        env: str | None = None,
        family: str | None = None,
    ) -> str:
        """Registers a replay buffer of run `run_id` in the pool; returns the new buffer id.

        The pool is the set of buffers that runs share. `reward_tag` names how rewards were
        normalised before they were stored, `env` the environment; both must agree within a pool.
        Buffers with the same `family` are parts of one run and do not sample from each other.
        Raises `ConfigError` for on-policy algorithms.
        """
        self._check("register_buffer")
        refuse_on_policy(algorithm)
        if not isinstance(run_id, str) or not _NAME.fullmatch(run_id):
            raise ConfigError(
                f"run_id is {run_id!r}; use letters, digits, '_', '-' and '.', a letter or digit "
                "first, at most 100"
            )
        self._forget_inherited()
        self.sweep()
        self._warn_of_same_run(run_id)
        buffer_id = f"{run_id}-{secrets.token_hex(3)}"
        owner = Owner.this()
        note = {
            "run_id": run_id,
            "algorithm": algorithm,
            "reward_tag": reward_tag,
            "env": env,
            "family": family,
            "owner": [owner.pid, owner.started, owner.boot.hex()],
            "created": time.time(),
        }
        self._held[buffer_id] = pool_files.locked_note(self._file(buffer_id, NOTE), note)
        OPEN.keep(self)
        return buffer_id

    def _warn_of_same_run(self, run_id: str) -> None:
        for listed in self.list():
            if listed.run_id == run_id and listed.state != BufferState.DEAD:
                warnings.warn(
                    f"run {run_id!r} is in the pool already as {listed.buffer_id} (pid "
                    f"{listed.pid}); the new one gets an id of its own",
                    stacklevel=3,
                )
                return

    def deregister_buffer(self, buffer_id: str) -> None:
        """Removes a replay buffer from the pool of shared buffers.

        Runs that have mapped it may read it until they next update their list of buffers. Raises
        `RegistryError` if the pool has no such buffer.
        """
        self._check("deregister_buffer")
        if not self._remove(buffer_id):
            raise RegistryError(
                f"deregister_buffer: {buffer_id!r} is not in {self.path}; it has "
                f"{', '.join(stale_pools.buffer_ids(self.path)) or 'no buffers'}"
            )

    def _remove(self, buffer_id: str) -> bool:
        held = self._held.pop(buffer_id, None)
        if held is not None:
            os.close(held)
        if not self._held:
            OPEN.release(self)
        self._file(buffer_id, RING).unlink(missing_ok=True)
        try:
            self._file(buffer_id, NOTE).unlink()
        except FileNotFoundError:
            return False
        return True

    def _file(self, buffer_id: str, kind: str) -> Path:
        """Returns the path of a buffer's registration (`NOTE`) or ring buffer (`RING`).

        Raises `RegistryError` if `buffer_id` is not an id of a buffer, such as a path that would
        lead out of the pool, or the name of another file of the pool.
        """
        if not isinstance(buffer_id, str) or not _BUFFER_ID.fullmatch(buffer_id):
            raise RegistryError(
                f"buffer id {buffer_id!r} cannot be in {self.path}: an id is a run id, '-' and six "
                "hexadecimal digits; give what register_buffer(run_id=..., algorithm=...) returned"
            )
        return self.path / f"{buffer_id}{kind}"

    def note(self, buffer_id: str) -> dict[str, Any]:
        """Returns the registration of a replay buffer: run, algorithm, environment and process.

        Raises `RegistryError` if the buffer is not registered.
        """
        self._check("note")
        try:
            return pool_files.read_json(self._file(buffer_id, NOTE))
        except FileNotFoundError:
            raise RegistryError(
                f"buffer {buffer_id!r} is not registered in {self.path}; call register_buffer first"
            ) from None

    def attach(
        self, buffer_id: str, terms: Terms, schema: Schema, capacity: int, *, stride: int = 1
    ) -> Ring:
        """Returns the replay ring buffer of a registered buffer id; creates it at the first call.

        `terms` are the properties in which all buffers of a pool (set of shared buffers) must agree
        (`terms_of`). Raises `ConfigError` if they differ from the pool's, if the capacity exceeds
        the pool's limit, or if an existing ring buffer has other columns or another size.
        """
        self.note(buffer_id)
        if capacity > self.max_buffer_size:
            raise ConfigError(
                f"a buffer of {capacity} rows is larger than the pool's max_buffer_size "
                f"{self.max_buffer_size}; use a smaller buffer, or a pool with a larger limit"
            )
        self._agree(terms)
        path = self._file(buffer_id, RING)
        with contextlib.suppress(FileExistsError):
            return self._made(path, schema, capacity, stride)
        ring = pool_files.open_ring(path, writable=True)
        if (ring.schema, ring.capacity, ring.stride) != (schema, capacity, stride):
            there = ring.capacity
            ring.close()
            raise ConfigError(
                f"buffer {buffer_id} has a ring of {there} rows with other columns or another "
                f"size than the {capacity} asked for; register an id of its own for each buffer"
            )
        return ring

    def _made(self, path: Path, schema: Schema, capacity: int, stride: int) -> Ring:
        """Creates a replay ring buffer as an unnamed file, then names it.

        So no process sees an incomplete ring buffer. Raises `FileExistsError` if the name is taken.
        """
        if path.exists():
            raise FileExistsError(path)
        ring = Ring.create(schema, capacity, directory=self.path, stride=stride)
        ring.beat()
        try:
            pool_files.name_ring(ring, path)
        except FileExistsError:
            ring.close()
            raise
        except OSError:
            ring.close()
            return self._made_beside(path, schema, capacity, stride)
        return ring

    def _made_beside(self, path: Path, schema: Schema, capacity: int, stride: int) -> Ring:
        """Creates a replay ring buffer under a temporary name, then gives it its final name.

        This is used on filesystems that cannot give an unnamed file a name.
        """
        scratch = f"{SCRATCH}{path.name}.{secrets.token_hex(4)}"
        ring = Ring.create(schema, capacity, directory=self.path, name=scratch, stride=stride)
        try:
            ring.beat()
            os.link(self.path / scratch, path)
        except FileExistsError:
            ring.close()
            raise
        finally:
            (self.path / scratch).unlink()
        return ring

    def _agree(self, terms: Terms) -> None:
        pool_files.write_once(self.path / TERMS, terms)
        try:
            theirs = pool_files.read_json(self.path / TERMS)
        except ProtocolError as error:
            raise ConfigError(f"{error}; use another pool for this buffer") from error
        if different := differences(json.loads(json.dumps(terms)), theirs):
            raise ConfigError(
                f"this buffer does not fit into the pool {self.path}: "
                + "; ".join(different)
                + "; use another pool for it"
            )

    def claim(self, ring: Ring, buffer_id: str) -> None:
        """Makes this process the only writer of a replay ring buffer, until it closes it or ends.

        Raises `RegistryError` if it has another writer or its file was removed.
        """
        if not pool_files.lock(ring.fd, fcntl.LOCK_EX, patience_s=PATIENCE_S):
            raise RegistryError(
                f"buffer {buffer_id} is being written by another buffer (pid {ring.owner.pid}); "
                "a buffer has one writer: register an id of its own for this one"
            )
        if not pool_files.is_at(ring.fd, self._file(buffer_id, RING)):
            raise RegistryError(
                f"claim: buffer {buffer_id} was removed from {self.path} before its first row; "
                "register a new id, and build a buffer on it"
            )
        ring.adopt()

    def counts(self, buffer_id: str) -> SampleCounts:
        """Returns the counts of env steps sampled for a buffer id through this registry.

        All replay buffers that are built on the id count into the same object.
        """
        return self._counts.setdefault(buffer_id, SampleCounts())

    # --- the buffers of the pool

    def others(self, buffer_id: str) -> Sequence[str]:
        """Returns the ids of all replay buffers that runs share in the pool but `buffer_id`."""
        return [other for other in stale_pools.buffer_ids(self.path) if other != buffer_id]

    def open_ring(self, buffer_id: str) -> Ring:
        """Maps the ring buffer file of a shared replay buffer for reading.

        Raises `FileNotFoundError` if there is no file yet, and `ProtocolError` if other users can
        access it or it is damaged.
        """
        return pool_files.open_ring(self._file(buffer_id, RING))

    def list(self) -> Sequence[BufferInfo]:
        """Returns run, size, process and state of every replay buffer in this pool.

        A pool is the set of replay buffers that runs share.
        """
        self._check("list")
        found = map(self._listed, stale_pools.buffer_ids(self.path))
        return tuple(listed for listed in found if listed is not None)

    def _listed(self, buffer_id: str) -> BufferInfo | None:
        try:
            note = self.note(buffer_id)
            about: dict[str, Any] = {
                key: note[key] for key in ("run_id", "algorithm", "reward_tag", "env")
            }
            about["pid"] = note["owner"][0]
        except (ProtocolError, KeyError, TypeError, IndexError):  # removed, or another kind of file
            return None
        about |= self._measured(buffer_id)
        if stale_pools.is_buffer_abandoned(self.path, buffer_id):
            about["state"] = BufferState.DEAD
        return BufferInfo(buffer_id=buffer_id, **about)

    def _measured(self, buffer_id: str) -> dict[str, Any]:
        """Returns the state of a shared replay buffer and, if it has a ring buffer, its size."""
        try:
            ring = self.open_ring(buffer_id)
        except FileNotFoundError:
            return {"state": BufferState.RESERVED}
        except ProtocolError:
            return {"state": BufferState.DEAD}
        rows, silence_s = ring.committed, ring.silence_s
        state = BufferState.SILENT if silence_s > self.stale_s else BufferState.LENDING
        found = {
            "state": state if rows else BufferState.RESERVED,
            "rows": rows,
            "filled": rows - ring.oldest,
            "capacity": ring.capacity,
            "bytes": int(ring.bytes.size),
            "silence_s": silence_s if rows else None,
        }
        ring.close()
        return found

    def stats(self) -> dict[str, Any]:
        """Returns statistics of the pool of shared replay buffers: buffers, env steps, bytes."""
        buffers = self.list()
        return {
            "path": str(self.path),
            "num_buffers": len(buffers),
            "num_lending": sum(b.state is BufferState.LENDING for b in buffers),
            "total_rows": sum(b.rows for b in buffers),
            "filled_rows": sum(b.filled for b in buffers),
            "total_bytes": sum(b.bytes for b in buffers),
            "max_buffer_size": self.max_buffer_size,
            "stale_s": self.stale_s,
            "buffers": {b.buffer_id: asdict(b) for b in buffers},
        }

    def sweep(self) -> Sequence[str]:
        """Removes the shared replay buffers of processes that have ended; returns their ids."""
        return stale_pools.clear(self.path)


def refuse_on_policy(algorithm: str) -> None:
    """Raises `ConfigError` for on-policy algorithms, which cannot learn from other runs' steps.

    So it does for anything that is not the name of an algorithm.
    """
    if not isinstance(algorithm, str):
        raise ConfigError(
            f"algorithm is {algorithm!r}; give the name of an off-policy algorithm, such as 'SAC'"
        )
    if algorithm.upper() in {name.upper() for name in ON_POLICY}:
        raise ConfigError(
            f"{algorithm} cannot share: it is on-policy, and learns only from rows of its present "
            "policy; share off-policy algorithms (SAC, TD3, DDPG, DQN), and run it without "
            "sharing as a baseline"
        )


def _limits(folder: Path) -> tuple[int, float]:
    """Returns `max_buffer_size` and `stale_s` of the pool of replay buffers in a folder.

    They are the largest capacity of a buffer in env steps, and the seconds without a heartbeat
    after which a buffer is ignored. Raises `ConfigError` if they cannot be read.
    """
    try:
        about = pool_files.read_json(folder / POOL)
        found, limits = about["format"], (int(about["max_buffer_size"]), float(about["stale_s"]))
    except (ProtocolError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{folder / POOL} has no valid limits of a pool: {error}; name another folder"
        ) from error
    if found != FORMAT:
        raise ConfigError(
            f"the pool in {folder} has format {found}, this release reads {FORMAT}; "
            "use one release for all runs that share"
        )
    return limits
