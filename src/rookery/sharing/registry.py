"""The registry: which runs lend to which. A folder, and nothing else: no server, no global lock.

    registry = create_distributed_registry()
    buffer_id = registry.register_buffer(run_id="my_run_1", algorithm="SAC")
    ...                                                 # buffers attach to it, and lend
    registry.deregister_buffer(buffer_id)
    registry.stop()

A pool's folder (0700, in memory where there is a /dev/shm) holds

    pool.json         what the pool allows. Locked, together, by every registry that is started
    terms.json        what its buffers have in common, as the first of them said it
    ID.json           a reserved id: who, which algorithm. Locked while whoever registered it lives
    ID.ring           its replay ring, 0600. Locked by its one writer, from its first row on

The kernel lets go of all locks, whoever is killed: a buffer whose locks are free and whose owner
is gone is litter, and the next one to look around removes it (`remains.py`); the last one to stop
removes the pool. Locks are never waited for, and nobody who reads takes one. Sampling is mapping
the others' rings (`borrower.py`).
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

from rookery.errors import ConfigError, ProtocolError, RegistryError
from rookery.replay.owner import Owner
from rookery.replay.ring import Ring, Schema, default_directory
from rookery.sharing import files, remains
from rookery.sharing.files import NOTE, POOL, RING, SCRATCH, TERMS
from rookery.sharing.terms import Terms, differences

FORMAT = 1
STALE_S = 300.0  # a buffer that was not written to for so long is ignored
ON_POLICY = ("A2C", "PPO", "TRPO", "RecurrentPPO", "MaskablePPO")
PATIENCE_S = 0.5  # for a lock: whoever looks whether its holder lives takes it for a moment
STARTS = 10  # tries to open a pool that somebody else is removing at the same time
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Standing(StrEnum):
    """What a buffer of a pool is."""

    RESERVED = "reserved"  # registered, without a row
    LENDING = "lending"
    SILENT = "silent"  # not written to for long: ignored
    DEAD = "dead"  # nobody's, or not to be read


@dataclass(frozen=True)
class Listed:
    """A buffer of the pool."""

    buffer_id: str
    run_id: str
    algorithm: str
    reward_tag: str | None
    env: str | None
    pid: int  # of whoever registered it
    rows: int  # written in its life; 0 until it is attached
    filled: int  # rows that can be read
    capacity: int
    bytes: int
    silence_s: float | None  # since the last row; none: there was none
    state: Standing


def shared_directory() -> Path:
    """Where this user's named rings live."""
    return default_directory() / f"rookery-{os.getuid()}"


def create_distributed_registry(
    max_buffer_size: int = 1_000_000,
    *,
    path: str | Path | None = None,
    stale_s: float = STALE_S,
) -> "Registry":
    """Opens the pool in a folder, or makes a new pool, and starts it.

    Without a path the pool is new and nobody knows of it but whoever is given the registry or its
    `path`. A pool that is there already keeps its own `max_buffer_size` and `stale_s`.
    """
    if max_buffer_size < 1 or not stale_s > 0:
        raise ConfigError(
            f"a pool has buffers of at least one row that are stale after some seconds, got "
            f"max_buffer_size={max_buffer_size}, stale_s={stale_s}"
        )
    folder = Path(path) if path is not None else shared_directory() / f"pool-{secrets.token_hex(4)}"
    registry = Registry(folder.absolute())
    registry.start(max_buffer_size=max_buffer_size, stale_s=stale_s)
    return registry


class Registry:
    """A pool of buffers. Pickled it is its folder's path, and nothing else."""

    def __init__(self, path: Path):
        self.path = path
        self.max_buffer_size, self.stale_s = 0, STALE_S
        self.revived = False  # from a pickle: the pool may have gone meanwhile
        self._pool_fd = -1  # holds our part of the pool's lock; -1: not started
        self._held: dict[str, int] = {}  # descriptors of the notes we registered, which lock them

    def __getstate__(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Path(state["path"]))  # type: ignore[misc]
        self.revived = True
        with contextlib.suppress(RegistryError, ConfigError):
            self._open()

    # --- the pool

    def start(self, *, max_buffer_size: int = 1_000_000, stale_s: float = STALE_S) -> None:
        """Makes the pool's folder where it is not there, and opens it."""
        about = {"format": FORMAT, "max_buffer_size": max_buffer_size, "stale_s": stale_s}
        for _ in range(STARTS):
            with contextlib.suppress(FileNotFoundError, RegistryError):  # its last member left
                self._make(about)
                self._open()
                return
        self._open()

    def _make(self, about: dict[str, Any]) -> None:
        if self.path.parent == shared_directory():
            files.make_private(self.path.parent)
        files.make_private(self.path)
        try:
            files.write_once(self.path / POOL, about)
        except ConfigError:
            with contextlib.suppress(OSError):  # it was not empty
                self.path.rmdir()
            raise

    def _open(self) -> None:
        try:
            files.refuse_foreign(self.path)
            fd = files.open_private(self.path / POOL)
        except FileNotFoundError:
            raise RegistryError(
                f"start: there is no pool in {self.path}; make one with "
                "create_distributed_registry(path=...)"
            ) from None
        except ProtocolError as error:
            raise ConfigError(f"this is no pool: {error}; name another folder") from error
        try:
            self._enter(fd)
        except (ConfigError, RegistryError):
            os.close(fd)
            raise

    def _enter(self, fd: int) -> None:
        entered = files.take(fd, fcntl.LOCK_SH, patience_s=PATIENCE_S)
        if not entered or not files.is_at(fd, self.path / POOL):
            raise RegistryError(f"start: the pool in {self.path} is being removed; start it again")
        self.max_buffer_size, self.stale_s = _limits(self.path)
        self._let_go()
        self._pool_fd = fd

    def _let_go(self) -> None:
        if self._pool_fd >= 0:
            os.close(self._pool_fd)
        self._pool_fd = -1

    @property
    def available(self) -> bool:
        """Is the pool started, and still there?"""
        return self._pool_fd >= 0 and files.is_at(self._pool_fd, self.path / POOL)

    def stop(self) -> None:
        """Gives back what this registry registered; the last one alive removes the whole pool."""
        for buffer_id in tuple(self._held):
            self._remove(buffer_id)
        self._let_go()
        remains.clear(self.path)
        remains.dissolve(self.path)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._let_go()

    def _check(self, call: str) -> None:
        """Refuses a call on a pool that is stopped or gone."""
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
        """Reserves an id for a run's buffer, which is there once a buffer attaches to it.

        `reward_tag` names how rewards were normalised before they were stored, `env` the
        environment; both must agree within a pool. Buffers of one `family` are parts of one run
        and do not borrow from each other.
        """
        self._check("register_buffer")
        refuse_on_policy(algorithm)
        if not _NAME.fullmatch(run_id):
            raise ConfigError(
                f"run_id is {run_id!r}; use letters, digits, '_', '-' and '.', a letter or digit "
                "first, at most 100"
            )
        self.sweep()
        self._mention_namesake(run_id)
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
        self._held[buffer_id] = files.locked_note(self.path / f"{buffer_id}{NOTE}", note)
        return buffer_id

    def _mention_namesake(self, run_id: str) -> None:
        for buffer_id in remains.ids(self.path):
            if buffer_id.rpartition("-")[0] != run_id:
                continue
            listed = self._listed(buffer_id)
            if listed is not None and listed.state != Standing.DEAD:
                warnings.warn(
                    f"run {run_id!r} is in the pool already as {listed.buffer_id} (pid "
                    f"{listed.pid}); the new one gets an id of its own",
                    stacklevel=3,
                )
                return

    def deregister_buffer(self, buffer_id: str) -> None:
        """Takes a buffer out of the pool. Those who have mapped it can read on until they look."""
        self._check("deregister_buffer")
        if not self._remove(buffer_id):
            raise RegistryError(
                f"deregister_buffer: {buffer_id!r} is not in {self.path}; it has "
                f"{', '.join(remains.ids(self.path)) or 'no buffers'}"
            )

    def _remove(self, buffer_id: str) -> bool:
        held = self._held.pop(buffer_id, None)
        if held is not None:
            os.close(held)
        (self.path / f"{buffer_id}{RING}").unlink(missing_ok=True)
        try:
            (self.path / f"{buffer_id}{NOTE}").unlink()
        except FileNotFoundError:
            return False
        return True

    def note(self, buffer_id: str) -> dict[str, Any]:
        """Returns what was said of a buffer when it was registered."""
        self._check("note")
        try:
            return files.read_json(self.path / f"{buffer_id}{NOTE}")
        except FileNotFoundError:
            raise RegistryError(
                f"buffer {buffer_id!r} is not registered in {self.path}; call register_buffer first"
            ) from None

    def attach(
        self, buffer_id: str, terms: Terms, schema: Schema, capacity: int, *, stride: int = 1
    ) -> Ring:
        """Returns the ring of an id, made for its first buffer; refuses what does not fit."""
        self.note(buffer_id)
        if capacity > self.max_buffer_size:
            raise ConfigError(
                f"a buffer of {capacity} rows is larger than the pool's max_buffer_size "
                f"{self.max_buffer_size}; make it smaller, or the pool's limit larger"
            )
        self._agree(terms)
        path = self.path / f"{buffer_id}{RING}"
        with contextlib.suppress(FileExistsError):
            return self._made(path, schema, capacity, stride)
        ring = files.open_ring(path, writable=True)
        if (ring.schema, ring.capacity, ring.stride) != (schema, capacity, stride):
            there = ring.capacity
            ring.close()
            raise ConfigError(
                f"buffer {buffer_id} has a ring of {there} rows with other columns or another "
                f"size than the {capacity} asked for; register an id of its own for each buffer"
            )
        return ring

    def _made(self, path: Path, schema: Schema, capacity: int, stride: int) -> Ring:
        """Makes a ring before it has a name: nobody ever sees half of one, or has to clear it."""
        if path.exists():
            raise FileExistsError(path)
        ring = Ring.create(schema, capacity, directory=self.path, stride=stride)
        ring.beat()
        try:
            files.name_ring(ring, path)
        except OSError as error:
            ring.close()
            if isinstance(error, FileExistsError):
                raise
            return self._made_beside(path, schema, capacity, stride)
        return ring

    def _made_beside(self, path: Path, schema: Schema, capacity: int, stride: int) -> Ring:
        """The same where a file without a name cannot be given one: macOS, some filesystems."""
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
        files.write_once(self.path / TERMS, terms)
        try:
            theirs = files.read_json(self.path / TERMS)
        except ProtocolError as error:
            raise ConfigError(f"{error}. Give this buffer a pool of its own") from error
        if different := differences(json.loads(json.dumps(terms)), theirs):
            raise ConfigError(
                f"this buffer does not fit into the pool {self.path}: "
                + "; ".join(different)
                + ". Give it a pool of its own"
            )

    def claim(self, ring: Ring, buffer_id: str) -> None:
        """Makes this process the ring's one writer, until it closes the ring or dies."""
        if not files.take(ring.fd, fcntl.LOCK_EX, patience_s=PATIENCE_S):
            raise RegistryError(
                f"buffer {buffer_id} is being written by another buffer (pid {ring.owner.pid}); "
                "a buffer has one writer: register an id of its own for this one"
            )
        if not files.is_at(ring.fd, self.path / f"{buffer_id}{RING}"):
            raise RegistryError(
                f"claim: buffer {buffer_id} was taken out of {self.path} before its first row; "
                "register an id again, and build a buffer on it"
            )
        ring.adopt()

    # --- looking around

    def others(self, buffer_id: str) -> Sequence[str]:
        """Returns the ids of the buffers that are there besides this one."""
        return [other for other in remains.ids(self.path) if other != buffer_id]

    def open_ring(self, buffer_id: str) -> Ring:
        """Maps a buffer's ring for reading; refuses files that are not this user's alone."""
        return files.open_ring(self.path / f"{buffer_id}{RING}")

    def list(self) -> Sequence[Listed]:
        """Returns every buffer of the pool."""
        self._check("list")
        found = map(self._listed, remains.ids(self.path))
        return tuple(listed for listed in found if listed is not None)

    def _listed(self, buffer_id: str) -> Listed | None:
        try:
            note = self.note(buffer_id)
            about: dict[str, Any] = {
                key: note[key] for key in ("run_id", "algorithm", "reward_tag", "env")
            }
            about["pid"] = note["owner"][0]
        except (ProtocolError, KeyError, TypeError, IndexError):  # gone, or no note of ours
            return None
        standing, found = self._standing(buffer_id)
        if remains.is_dead(self.path, buffer_id):
            standing = Standing.DEAD
        return Listed(buffer_id=buffer_id, **about, **found, state=standing)

    def _standing(self, buffer_id: str) -> tuple[Standing, dict[str, Any]]:
        nothing = {"rows": 0, "filled": 0, "capacity": 0, "bytes": 0, "silence_s": None}
        try:
            ring = self.open_ring(buffer_id)
        except FileNotFoundError:
            return Standing.RESERVED, nothing
        except ProtocolError:
            return Standing.DEAD, nothing
        found = _measured(ring)
        silent = ring.silence_s > self.stale_s
        ring.close()
        if not found["rows"]:
            return Standing.RESERVED, found
        return Standing.SILENT if silent else Standing.LENDING, found

    def stats(self) -> dict[str, Any]:
        """Returns what the pool holds, as numbers."""
        buffers = self.list()
        return {
            "path": str(self.path),
            "num_buffers": len(buffers),
            "num_lending": sum(b.state is Standing.LENDING for b in buffers),
            "total_rows": sum(b.rows for b in buffers),
            "filled_rows": sum(b.filled for b in buffers),
            "total_bytes": sum(b.bytes for b in buffers),
            "max_buffer_size": self.max_buffer_size,
            "stale_s": self.stale_s,
            "buffers": {b.buffer_id: asdict(b) for b in buffers},
        }

    # --- litter

    def sweep(self) -> Sequence[str]:
        """Removes buffers that are provably nobody's any more; returns their ids."""
        return remains.clear(self.path)


def refuse_on_policy(algorithm: str) -> None:
    """Refuses algorithms that may learn from nothing but what their own policy just did."""
    if algorithm.upper() in {name.upper() for name in ON_POLICY}:
        raise ConfigError(
            f"{algorithm} cannot share: it is on-policy, and learns only from what its present "
            "policy did; share off-policy algorithms (SAC, TD3, DDPG, DQN), and run it beside them "
            "as a baseline"
        )


def _measured(ring: Ring) -> dict[str, Any]:
    committed = ring.committed
    return {
        "rows": committed,
        "filled": committed - ring.oldest,
        "capacity": ring.capacity,
        "bytes": int(ring.bytes.size),
        "silence_s": ring.silence_s if committed else None,
    }


def _limits(folder: Path) -> tuple[int, float]:
    """Returns `max_buffer_size` and `stale_s`, as whoever made the pool said them."""
    try:
        about = files.read_json(folder / POOL)
        found, limits = about["format"], (int(about["max_buffer_size"]), float(about["stale_s"]))
    except (ProtocolError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{folder / POOL} does not say what its pool allows: {error}; name another folder"
        ) from error
    if found != FORMAT:
        raise ConfigError(
            f"the pool in {folder} has format {found}, this release reads {FORMAT}; "
            "use one release for all runs that share"
        )
    return limits
