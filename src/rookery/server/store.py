"""What a parameter server keeps on the disk: a checkpoint, and a journal of what came after it.

    checkpoint.safetensors   parameters, optimizer, workers, pending updates; replaced as a whole
    journal-000000007.log    everything since; the checkpoint says which one is its own
    lock                     one server at a time

Saving begins the next journal, then replaces the checkpoint, which names that journal, then deletes
the old one. Whenever it is killed, there is one checkpoint, and the journal that it names is there.
Until the disk has the new checkpoint's name, the old journal stays and nothing is appended to the
new one: after a loss of power either of the two checkpoints may be there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rookery.errors import CheckpointError
from rookery.files import UNFINISHED, replace_file, sync_folder
from rookery.networks.named_arrays import fingerprint
from rookery.server.file_lock import lock_file
from rookery.server.journal import Journal, Record, read
from rookery.types import Array
from rookery.version import __version__

FORMAT = 3
READ = (1, 2, FORMAT)  # 1: without a round's settings; 1, 2: every pending update by itself
CHECKPOINT, LOCK = "checkpoint.safetensors", "lock"
SUFFIX = ".safetensors"
ABOUT, SEAL = "rookery", "sha256"  # entries in the header of a checkpoint


class SavedServer(NamedTuple):
    """All there is to know of a server: a checkpoint, and what happened after it."""

    numbers: dict[str, Any]  # ready for JSON
    arrays: dict[str, Array]
    journal: Sequence[Record] = ()  # the first one says what the journal is of


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
        self._journal: Journal | None = None
        self._number = 0  # of the journal
        self._settled = True  # has the disk the name of the checkpoint?

    @property
    def journal_bytes(self) -> int:
        return 0 if self._journal is None else self._journal.size

    def load(self) -> SavedServer | None:
        """Returns what an earlier server left, and goes on with its journal; None: nothing.

        For a store just made.
        """
        if not (self.folder / CHECKPOINT).exists():
            return None
        saved = read_checkpoint(self.folder / CHECKPOINT)
        self._number = _journal_number(saved)
        self._journal, frames = Journal.reopen(_journal_path(self.folder, self._number))
        self.settle()
        return saved._replace(journal=[*chain(*frames)])

    def save(self, saved: SavedServer, identity: Mapping[str, Any]) -> Path:
        """Replaces the checkpoint and begins a new journal; `settle` must follow.

        Where it raises, the old checkpoint and its journal are still the ones that count.
        """
        number, path = self._number + 1, self.folder / CHECKPOINT
        with _writing(path):
            journal = Journal.create(_journal_path(self.folder, number), identity)
        _replace_checkpoint(path, saved._replace(numbers={**saved.numbers, "journal": number}))
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
        self._journal = None  # its file is closed with it
        self._unlock()

    def settle(self) -> None:
        """Waits until the disk has the checkpoint's name; only then the old journal may go."""
        self._settled = False
        with _writing(self.folder / CHECKPOINT):
            sync_folder(self.folder)
        self._settled = True
        own = _journal_path(self.folder, self._number)
        for path in (*self.folder.glob("journal-[0-9]*.log"), *self.folder.glob("*" + UNFINISHED)):
            if path != own:
                path.unlink(missing_ok=True)


def look_into(path: Path) -> SavedServer:
    """Reads a checkpoint file, or all that is in a server's folder, without changing either."""
    if not path.is_dir():
        return read_checkpoint(path)
    saved = read_checkpoint(path / CHECKPOINT)
    frames = read(_journal_path(path, _journal_number(saved)))
    return saved._replace(journal=[*chain(*frames)])


def write_checkpoint(path: Path, saved: SavedServer) -> None:
    """Writes a checkpoint; there is the old one under this name, or the new one, and no half."""
    _replace_checkpoint(path, saved)
    with _writing(path):
        sync_folder(path.parent)


def _replace_checkpoint(path: Path, saved: SavedServer) -> None:
    """Where it raises, the old one is there; else any process finds the new one."""
    about = json.dumps({"format": FORMAT, "rookery": __version__, **saved.numbers})
    arrays = {name: np.require(array, requirements="C") for name, array in saved.arrays.items()}
    raw = save(arrays, metadata={ABOUT: about, SEAL: _seal(about, arrays)})
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, raw)


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
    """Returns 0, which no journal has, of a checkpoint that was written elsewhere."""
    return int(saved.numbers.get("journal", 0))


def _journal_path(folder: Path, number: int) -> Path:
    return folder / f"journal-{number:09d}.log"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}; free some space, or save elsewhere"
        ) from error
