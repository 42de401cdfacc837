"""The files of a parameter server: a checkpoint, and a journal of what came after it.

    checkpoint.safetensors          parameters, optimizer, workers, pending updates
    journal-000000007-000000012     records that were written together after checkpoint 7
    lock                            one server at a time

All of them are safetensors files with JSON and a SHA-256 in their header. A checkpoint is replaced
as a whole. Records that belong together are one file of the journal, there whole or not at all: a
kill can only cut off the last one, which was never acknowledged and is left out. The first one says
what the journal is of, so that a journal without files is a lost one.

Saving begins the next journal, then replaces the checkpoint, which names that journal, then deletes
the old one. Whenever it is killed, there is one checkpoint, and the journal that it names is there.
Until the disk has the new checkpoint's name, the old journal stays and nothing is appended to the
new one: after a loss of power either of the two checkpoints may be there.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rookery.errors import CheckpointError
from rookery.files import UNFINISHED, replace_file, sync_folder
from rookery.networks.named_arrays import fingerprint
from rookery.server.file_lock import lock_file
from rookery.types import Array, Floats
from rookery.version import __version__

FORMAT = 3
READ = (1, 2, FORMAT)  # 1: without a round's settings; 1, 2: every pending update by itself
CHECKPOINT, LOCK = "checkpoint.safetensors", "lock"
SUFFIX = ".safetensors"
ABOUT, SEAL = "rookery", "sha256"  # entries in the header of a file
BLOCK = 4096  # bytes that a file takes at least


class Record(NamedTuple):
    """One change of a parameter server's state, such as a push or a step."""

    kind: str
    about: dict[str, Any]
    floats: Floats | None = None  # [P] float32


class SavedServer(NamedTuple):
    """The saved state of a parameter server: a checkpoint, and the records after it."""

    numbers: dict[str, Any]  # ready for JSON
    arrays: dict[str, Array]
    journal: Sequence[Sequence[Record]] = ()  # file by file; the first one says what it is of


class Store:
    """The folder of one server, locked while it is open."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._unlock = lock_file(
            self,
            folder / LOCK,
            unusable=f"checkpoint_path {folder} cannot be used",
            taken=f"another parameter server is at work in {folder}; close() it, or give this one "
            "another checkpoint_path",
        )
        self._number = 0  # of the journal
        self._files = 0  # of the journal that are whole
        self.journal_bytes = 0  # that it takes on the disk
        self._settled = True  # has the disk the name of the checkpoint?

    def load(self) -> SavedServer | None:
        """Returns what an earlier server saved, and continues its journal; None: nothing.

        For a store just made.
        """
        if not (self.folder / CHECKPOINT).exists():
            return None
        saved = look_into(self.folder)
        self._number, self._files = _journal_number(saved), len(saved.journal)
        own = self.folder.glob(f"journal-{self._number:09d}-*")
        self.journal_bytes = sum(max(BLOCK, path.stat().st_size) for path in own)
        self.settle()
        return saved

    def save(self, saved: SavedServer, identity: Mapping[str, Any]) -> Path:
        """Replaces the checkpoint and begins a new journal; `settle` must follow.

        Where it raises, the old checkpoint and its journal are still the ones that count.
        """
        number, path = self._number + 1, self.folder / CHECKPOINT
        size = _write_records(self.folder, number, 0, [Record("journal", dict(identity))])
        _replace_checkpoint(path, saved._replace(numbers={**saved.numbers, "journal": number}))
        self._number, self._files, self.journal_bytes, self._settled = number, 1, size, False
        return path

    def append(self, records: Sequence[Record]) -> None:
        """Appends records to the journal; when this returns, they are on the disk.

        Where it raises, nothing was appended.
        """
        if not self._settled:
            self.settle()
        self.journal_bytes += _write_records(self.folder, self._number, self._files, records)
        self._files += 1

    def close(self) -> None:
        """Unlocks the folder for another server."""
        self._unlock()

    def settle(self) -> None:
        """Waits until the disk has the checkpoint's name; only then the old journal may go."""
        self._settled = False
        with _writing(self.folder / CHECKPOINT):
            sync_folder(self.folder)
        self._settled = True
        for path in (*self.folder.glob("journal-*"), *self.folder.glob("*" + UNFINISHED)):
            if not path.name.startswith(f"journal-{self._number:09d}-"):
                path.unlink(missing_ok=True)


def look_into(path: Path) -> SavedServer:
    """Reads a checkpoint file, or all that is in a server's folder, without changing either."""
    if not path.is_dir():
        return read_checkpoint(path)
    saved = read_checkpoint(path / CHECKPOINT)
    return saved._replace(journal=_read_journal(path, _journal_number(saved)))


def _journal_number(saved: SavedServer) -> int:
    """Returns the number of a checkpoint's journal; 0 if it was written outside of a store."""
    return int(saved.numbers.get("journal", 0))


def _journal_path(folder: Path, number: int, index: int) -> Path:
    return folder / f"journal-{number:09d}-{index:09d}"


def _read_journal(folder: Path, number: int) -> list[list[Record]]:
    """Returns the records of a journal, file by file, without those that a kill cut off."""
    found: list[list[Record]] = []
    last = max(folder.glob(f"journal-{number:09d}-*"), default=None)
    for index in range(0 if last is None else int(last.name[-9:]) + 1):
        path = _journal_path(folder, number, index)
        try:
            numbers, arrays, _ = read_checkpoint(path)
        except CheckpointError as error:
            if found and path == last:
                break
            raise _lost(f"{path} is damaged or missing") from error
        about = enumerate(numbers["records"])
        found.append([Record(kind, told, arrays.get(str(i))) for i, (kind, told) in about])
    if not found:
        raise _lost(f"the journal of {folder} is missing")
    return found


def _lost(what: str) -> CheckpointError:
    return CheckpointError(
        f"{what}; without it, pushes would be lost that were acknowledged: put it back from a "
        "copy, or begin with another checkpoint_path"
    )


def _write_records(folder: Path, number: int, index: int, records: Sequence[Record]) -> int:
    """Writes a file of a journal, waits until it is on the disk, and returns its size there."""
    path = _journal_path(folder, number, index)
    arrays = {str(i): each.floats for i, each in enumerate(records) if each.floats is not None}
    raw = memoryview(_packed({"records": [each[:2] for each in records]}, arrays))
    with _writing(path):
        fd, written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), 0
        try:
            while written < len(raw):
                written += os.pwrite(fd, raw[written:], written)
            os.fsync(fd)
            sync_folder(folder)
        except OSError:
            with contextlib.suppress(OSError):  # the next records go over it in any case
                path.unlink()
            raise
        finally:
            os.close(fd)
    return max(BLOCK, len(raw))


def write_checkpoint(path: Path, saved: SavedServer) -> None:
    """Writes a checkpoint atomically: the file is the old one or the new one."""
    _replace_checkpoint(path, saved)
    with _writing(path):
        sync_folder(path.parent)


def _replace_checkpoint(path: Path, saved: SavedServer) -> None:
    """Replaces a checkpoint; if it raises, the old one is still there."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _packed(saved.numbers, saved.arrays))


def _packed(numbers: Mapping[str, Any], given: Mapping[str, Array]) -> bytes:
    """Returns the content of a file with these numbers and arrays."""
    about = json.dumps({"format": FORMAT, "rookery": __version__, **numbers})
    arrays = {name: np.require(array, requirements="C") for name, array in given.items()}
    return bytes(save(arrays, metadata={ABOUT: about, SEAL: _seal(about, arrays)}))


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
            f"{path} has format {numbers.get('format')}, and Rookery {__version__} reads {FORMAT}; "
            f"load it with the release that wrote it, {numbers.get('rookery')}"
        )
    if header.get(SEAL) != _seal(about, arrays):
        raise CheckpointError(f"{path} does not match its checksum; put it back from a copy")
    return SavedServer(numbers, arrays)


def _seal(about: str, arrays: Mapping[str, Array]) -> str:
    return hashlib.sha256((about + fingerprint(arrays)).encode()).hexdigest()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}; free some space, or save elsewhere"
        ) from error
