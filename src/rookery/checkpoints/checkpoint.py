"""Checkpoints on disk: one folder each, written atomically and verified before use.

    ckpt-000000010000/
        MANIFEST.json         written last: format, counters, SHA-256 of every file and of itself
        state.json            counters and states of learner, actors and replay
        arrays.safetensors    networks, optimizer, priorities
        weights.safetensors   weights that actors need: all that `rookery.load` reads
        rows-S-A-B.safetensors  rows A to B of replay shard S, hard-linked between checkpoints

A row is one stored step; a shard is one part of the replay buffer. A folder is written under a
temporary name and renamed when it is complete. Loading takes the newest checkpoint whose checksums
are correct, and reports the ones it skipped. Checkpoints share files of rows, so one damaged file
may be in all of them: if no checkpoint is intact, loading takes the newest one of which only rows
are damaged, without those rows. Nothing is unpickled.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from rookery.errors import CheckpointError
from rookery.files import scratch_name, sync_folder
from rookery.replay.saved_rows import kept_apart, lost_rows
from rookery.types import Array
from rookery.version import __version__

FORMAT = 2
MANIFEST, STATE = "MANIFEST.json", "state.json"
ARRAYS, WEIGHTS = "arrays.safetensors", "weights.safetensors"
MOST_MANIFEST_BYTES = 16 << 20
COPIED = ("env_steps", "version", "exact", "final", "about")  # from `Content` into the manifest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDER = re.compile(r"ckpt-(\d{12})(?:-(\d+))?")


@dataclass(frozen=True)
class Digest:
    """Expected size and SHA-256 of a file."""

    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, raw: bytes) -> "Digest":
        return cls(len(raw), hashlib.sha256(raw).hexdigest())


@dataclass(frozen=True)
class Segment:
    """A file with the rows (stored env steps) [first, last) of one shard (part) of replay."""

    path: Path
    first: int
    last: int
    digest: Digest
    shard: int = 0
    intact: bool = True  # False: its file is damaged or missing, and must not be read


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint in memory, before it is written."""

    env_steps: int
    version: int
    exact: bool  # a resumed run continues bit for bit
    final: bool  # the run is over: weights only
    about: dict[str, Any]  # counters, spec, score: for readers and for `rookery.load`
    weights: dict[str, Array]
    state: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint on disk whose sizes and checksums were found correct.

    Files of replay rows may be damaged; `damaged` has their names and what is wrong with each.
    """

    folder: Path
    manifest: dict[str, Any]
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def env_steps(self) -> int:
        return int(self.manifest["env_steps"])

    def weights(self) -> dict[str, Array]:
        return _load_arrays(self.folder / WEIGHTS)

    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / STATE).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{self.folder / STATE} cannot be read: {error}") from error

    def arrays(self) -> dict[str, Array]:
        return _load_arrays(self.folder / ARRAYS)

    def segments(self) -> list[Segment]:
        """Returns the files of replay rows, also the damaged ones, oldest rows first."""
        digests = {name: Digest(**file) for name, file in self.manifest["files"].items()}
        return [
            Segment(self.folder / name, a, b, digests[name], shard, name not in self.damaged)
            for name, a, b, shard in self.manifest["segments"]
        ]

    @property
    def lost_rows(self) -> int:
        """Number of replay rows (stored env steps) in damaged files."""
        return sum(s.last - s.first for s in self.segments() if not s.intact)


class CheckpointSearch(NamedTuple):
    """Result of a search for a checkpoint, with the reasons why others were skipped.

    Each reason begins with the name of the skipped folder.
    """

    found: VerifiedCheckpoint | None
    broken: list[str]  # reasons of those that do not verify
    unfit: list[str]  # reasons of those that verify but do not fit the request


def name_of(env_steps: int) -> str:
    """Returns the folder name of a checkpoint at `env_steps`; names sort by env steps."""
    return f"ckpt-{env_steps:012d}"


def write(parent: Path, name: str, content: Content) -> Path:
    """Writes a checkpoint into a new folder in `parent`; returns the folder.

    On return all its files are on disk. If `name` is taken, a number is appended to it.
    """
    parent.mkdir(parents=True, exist_ok=True)
    # a resumed run can save again at the same env step
    taken = [number for at, number, _ in _numbered(parent) if name_of(at) == name]
    folder = parent / (f"{name}-{max(taken) + 1}" if taken else name)
    scratch = scratch_name(folder)
    try:
        scratch.mkdir()
        _fill(scratch, content)
        os.rename(scratch, folder)
    except BaseException:  # also KeyboardInterrupt: no half-written checkpoint may stay
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    sync_folder(parent)
    return folder


def _fill(scratch: Path, content: Content) -> None:
    raw = {WEIGHTS: save_bytes(content.weights)}
    if content.state:
        raw[STATE] = json.dumps(content.state).encode()
        raw[ARRAYS] = save_bytes(content.arrays)
    files = {name: asdict(Digest.of(data)) for name, data in raw.items()}
    for name, data in raw.items():
        write_synced(scratch / name, data)
    for segment in content.segments:
        link_or_copy(segment.path, scratch / segment.path.name)
        files[segment.path.name] = asdict(segment.digest)
    manifest = {
        "format": FORMAT,
        "rookery": __version__,
        **{key: getattr(content, key) for key in COPIED},
        "files": files,
        "segments": [[s.path.name, s.first, s.last, s.shard] for s in content.segments],
    }
    manifest["sha256"] = _seal(manifest)
    write_synced(scratch / MANIFEST, json.dumps(manifest, indent=1).encode())
    sync_folder(scratch)


def save_bytes(arrays: Mapping[str, Array], header: dict[str, str] | None = None) -> bytes:
    """Serializes named arrays as safetensors, with texts in the header of the file."""
    whole = {name: np.require(a, requirements="C") for name, a in arrays.items()}
    return bytes(save(whole, metadata=header))


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and waits until it is on disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def verify(folder: Path) -> VerifiedCheckpoint:
    """Checks sizes and checksums of all files of a checkpoint; returns it if they are correct.

    Otherwise raises CheckpointError with the reason. Damaged files of replay rows (stored env
    steps) are accepted: they are in its `damaged`.
    """
    try:
        manifest = _manifest(folder)
        listed = {n: Digest(int(d["size"]), d["sha256"]) for n, d in manifest["files"].items()}
        rows = {name for name, *_ in manifest["segments"]}
        present = {path.name for path in folder.iterdir()} - {MANIFEST}
        differing = present ^ set(listed)
        if not differing <= rows & set(listed):
            raise CheckpointError(f"its files differ from its manifest: {sorted(differing)}")
        damaged = {}
        for name, digest in listed.items():
            try:
                _verify_file(folder / name, digest)
            except (CheckpointError, OSError) as error:
                if name not in rows:
                    raise
                # a disk that cannot read one file may read the others
                unread = f"{name} cannot be read: " if isinstance(error, OSError) else ""
                damaged[name] = f"{unread}{error}"
    # RecursionError: a manifest of ten thousand brackets
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"it cannot be read as a checkpoint ({type(error).__name__}: {error})"
        ) from error
    return VerifiedCheckpoint(folder, manifest, damaged)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    _refuse_special(path)
    if path.stat().st_size > MOST_MANIFEST_BYTES:
        raise CheckpointError("its manifest is too large to be one")
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"it has format {manifest['format']}, written by Rookery "
            f"{manifest.get('rookery')}; Rookery {__version__} reads format "
            f"{FORMAT}: use the release that wrote it"
        )
    if manifest.pop("sha256") != _seal(manifest):
        raise CheckpointError("its manifest does not match its own checksum")
    names = [*manifest["files"], *(name for name, *_ in manifest["segments"])]
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise CheckpointError(f"its manifest names files outside of it: {names}")
    if missing := [key for key in COPIED if key not in manifest]:
        raise CheckpointError(f"its manifest lacks {missing}")
    return manifest


def _verify_file(path: Path, expected: Digest) -> None:
    _refuse_special(path)
    if path.stat().st_size != expected.size:
        raise CheckpointError(
            f"{path.name} has {path.stat().st_size} bytes, its manifest says {expected.size}"
        )
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
            raise CheckpointError(f"{path.name} does not match its checksum")


def _refuse_special(path: Path) -> None:
    """Raises CheckpointError unless `path` is a plain file (no symbolic link, pipe or device)."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(
            f"{path.name} is {'a link' if path.is_symlink() else 'not a plain file'}"
        )


def folders(parent: Path) -> list[Path]:
    """Returns the checkpoint folders in `parent`, newest first."""
    return [path for _, _, path in _numbered(parent)]


def _numbered(parent: Path) -> list[tuple[int, int, Path]]:
    """Returns env steps, appended number and folder of each checkpoint, newest first."""
    found = [
        (int(match[1]), int(match[2] or 0), path)
        for path in (parent.iterdir() if parent.is_dir() else ())
        if (match := _FOLDER.fullmatch(path.name))
    ]
    return sorted(found, reverse=True)


def newest(parent: Path, *, exact: bool = False, resumable: bool = True) -> CheckpointSearch:
    """Returns the newest checkpoint with correct checksums, and why newer ones were skipped.

    If no checkpoint is intact, returns the newest one of which only replay rows are damaged. With
    `exact` it skips that one too, and those from which a run would not continue bit for bit. With
    `resumable` it also skips those of finished runs, which contain weights only; without it,
    damaged rows do not matter.
    """
    broken: list[str] = []
    unfit: list[str] = []
    partial: list[VerifiedCheckpoint] = []
    for folder in folders(parent):
        try:
            found = verify(folder)
        except CheckpointError as error:
            broken.append(f"{folder.name} skipped: {error}")
            continue
        if resumable and found.manifest["final"]:
            unfit.append(f"{folder.name} skipped: it only has the weights of a finished run")
        elif exact and not found.manifest["exact"]:
            unfit.append(
                f"{folder.name} skipped: it is not exact (saved at an interrupt, with environments "
                "that could not be saved, or without replay)"
            )
        elif resumable and found.damaged:
            partial.append(found)
            broken += [f"{folder.name} skipped: {reason}" for reason in found.damaged.values()]
        else:
            return CheckpointSearch(found, broken, unfit)
    if not partial or exact:
        return CheckpointSearch(None, broken, unfit)
    return CheckpointSearch(
        partial[0],
        [reason for reason in broken if not reason.startswith(f"{partial[0].folder.name} ")],
        unfit,
    )


def prune(parent: Path, keep: int) -> None:
    """Deletes all but the newest `keep` checkpoints in the folder `parent`."""
    for folder in folders(parent)[keep:]:
        remove(folder)


def remove_beyond(parent: Path, env_steps: int) -> None:
    """Deletes all checkpoints in the folder `parent` with more than `env_steps` env steps."""
    for at, _, folder in _numbered(parent):
        if at > env_steps:
            remove(folder)


def remove(folder: Path) -> None:
    """Deletes a checkpoint; renames it first, so that a half-deleted one is never loaded."""
    doomed = scratch_name(folder)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def read_segments(
    segments: Iterable[Segment], shard: int = 0
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Reads the saved rows (stored env steps) of one replay shard from its segment files.

    Yields the first row number and the columns, arrays by name, of each file. Only one file is in
    memory at a time. For a damaged file it yields rows that are never sampled, and keeps the rows
    on both sides of them apart.
    """
    own = [segment for segment in segments if segment.shard == shard]
    for index, segment in enumerate(own):
        if not segment.intact:
            yield segment.first, lost_rows(segment.last - segment.first)
            continue
        columns = _load_arrays(segment.path)
        gaps = sum(not later.intact for later in own[index:])
        yield segment.first, kept_apart(columns, gaps) if gaps else columns


def _load_arrays(path: Path) -> dict[str, Array]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-links a file, or copies it if the file system does not allow links."""
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(source, target)
