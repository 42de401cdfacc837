"""What a parameter server keeps on the disk: a checkpoint, and a journal of what came after it.

    checkpoint.safetensors   parameters, optimizer, workers, pending updates; replaced as a whole
    journal-000000007.log    everything since; the checkpoint says which one is its own
    lock                     one server at a time

Saving begins the next journal, then replaces the checkpoint, which names that journal, then deletes
the old one. Whenever it is killed, there is one checkpoint, and the journal that it names is there.
Until the disk has the new checkpoint's name, the old journal stays and nothing is appended to the
new one: after a loss of power either of the two checkpoints may be there.
"""

import fcntl
import hashlib
import json
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rookery.errors import CheckpointError, ConfigError
from rookery.files import UNFINISHED, replace_file, sync_folder
from rookery.networks.named_arrays import fingerprint
from rookery.server.journal import Journal, Record, discard, read
from rookery.types import Array
from rookery.version import __version__

FORMAT = 2
READ = (1, FORMAT)  # 1: without a round's settings, pending updates whole
CHECKPOINT, LOCK = "checkpoint.safetensors", "lock"
SUFFIX = ".safetensors"
ABOUT, SEAL = "rookery", "sha256"  # entries in the header of a checkpoint
JOURNAL = re.compile(r"journal-(\d{9})\.log")


class SavedServer(NamedTuple):
    """All there is to know of a server."""

    numbers: dict[str, Any]  # ready for JSON
    arrays: dict[str, Array]


class StoredServer(NamedTuple):
    """What a folder holds: a checkpoint and what happened since."""

    saved: SavedServer
    frames: list[list[Record]]  # the first says what the journal is of


class Store:
    """The folder of one server, locked while it is open."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._unlock = weakref.finalize(self, os.close, _seize(folder))
        self._journal: Journal | None = None
        self._number = 0  # of the journal
        self._settled = True  # has the disk the name of the checkpoint?

    @property
    def journal_bytes(self) -> int:
        return 0 if self._journal is None else self._journal.size

    def load(self) -> StoredServer | None:
        """Returns what an earlier server left, and goes on with its journal; None: nothing.

        For a store just made.
        """
        if not (self.folder / CHECKPOINT).exists():
            return None
        saved = read_checkpoint(self.folder / CHECKPOINT)
        self._number = _journal_number(saved)
        self._journal, frames = Journal.reopen(self._path(self._number))
        self.settle()
        return StoredServer(saved, frames)

    def save(self, saved: SavedServer, identity: Mapping[str, Any]) -> Path:
        """Replaces the checkpoint, begins a new journal, and waits until the disk has both."""
        path = self.replace(saved, identity)
        self.settle()
        return path

    def replace(self, saved: SavedServer, identity: Mapping[str, Any]) -> Path:
        """Replaces the checkpoint and begins a new journal; `settle` must follow.

        Where it raises, the old checkpoint and its journal are still the ones that count.
        """
        number = self._number + 1
        path = self.folder / CHECKPOINT
        try:
            journal = Journal.create(self._path(number), identity)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            numbers = {**saved.numbers, "journal": number}
            _replace_checkpoint(path, SavedServer(numbers, saved.arrays))
        except BaseException:  # raised again; the old journal stays the one that counts
            journal.close()
            raise
        self._close_journal()
        self._journal, self._number, self._settled = journal, number, False
        return path

    def append(self, records: Sequence[Record]) -> None:
        """Writes down what happens; when this returns, the disk has it."""
        assert self._journal is not None, "save() or load() comes first"
        if not self._settled:
            self.settle()
        self._journal.append(records)

    def close(self) -> None:
        """Lets another server have the folder."""
        self._close_journal()
        self._unlock()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _path(self, number: int) -> Path:
        return self.folder / f"journal-{number:09d}.log"

    def settle(self) -> None:
        """Waits until the disk has the checkpoint's name; only then the old journal may go."""
        self._settled = False
        try:
            sync_folder(self.folder)
        except OSError as error:
            raise _unwritable(self.folder / CHECKPOINT, error) from error
        self._settled = True
        self._sweep()

    def _sweep(self) -> None:
        """Deletes what an earlier server was killed over."""
        for path in self.folder.iterdir():
            match = JOURNAL.fullmatch(path.name)
            if (match and int(match[1]) != self._number) or path.name.endswith(UNFINISHED):
                discard(path)


def look_into(path: Path) -> StoredServer:
    """Reads a checkpoint file, or all that is in a server's folder, without changing either."""
    if not path.is_dir():
        return StoredServer(read_checkpoint(path), [])
    saved = read_checkpoint(path / CHECKPOINT)
    return StoredServer(saved, read(path / f"journal-{_journal_number(saved):09d}.log"))


def write_checkpoint(path: Path, saved: SavedServer) -> None:
    """Writes a checkpoint; there is the old one under this name, or the new one, and no half."""
    _replace_checkpoint(path, saved)
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _replace_checkpoint(path: Path, saved: SavedServer) -> None:
    """Where it raises, the old one is there; else the new one, for whoever looks."""
    about = json.dumps({"format": FORMAT, "rookery": __version__, **saved.numbers})
    arrays = {name: np.require(array, requirements="C") for name, array in saved.arrays.items()}
    raw = save(arrays, metadata={ABOUT: about, SEAL: _seal(about, arrays)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, raw)
    except OSError as error:
        raise _unwritable(path, error) from error


def read_checkpoint(path: Path) -> SavedServer:
    """Reads a checkpoint and checks every byte. Nothing in it is unpickled."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = header[ABOUT]
        numbers = dict(json.loads(about))
    # KeyError: another's safetensors; RecursionError: a header of ten thousand brackets
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a parameter server's checkpoint "
            f"({type(error).__name__}: {error}); give a file that save_checkpoint wrote"
        ) from error
    if numbers.get("format") not in READ:
        raise CheckpointError(
            f"{path} has format {numbers.get('format')}, written by Rookery "
            f"{numbers.get('rookery')}; Rookery {__version__} reads format {FORMAT}; load it with "
            "the release that wrote it"
        )
    if header.get(SEAL) != _seal(about, arrays):
        raise CheckpointError(f"{path} does not match its checksum; put it back from a copy")
    return SavedServer(numbers, arrays)


def _seal(about: str, arrays: Mapping[str, Array]) -> str:
    return hashlib.sha256((about + fingerprint(arrays)).encode()).hexdigest()


def _journal_number(saved: SavedServer) -> int:
    """0 is nobody's: a checkpoint that was written elsewhere has no journal."""
    return int(saved.numbers.get("journal", 0))


def _seize(folder: Path) -> int:
    """Opens the folder's lock, which the kernel lets go of whoever is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"checkpoint_path {folder} cannot be used: {error}; name a folder that this user may "
            "write, or one that does not exist yet"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigError(
            f"another parameter server is at work in {folder}; close() it, or give this one "
            "another checkpoint_path"
        ) from None
    return fd


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be written: {error}; free some space, or save elsewhere")
