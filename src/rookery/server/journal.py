"""A journal: what a server promised to remember, on the disk before the promise is made.

    journal = Journal.create(path, about={...})
    journal.append([Record("push", {"worker": "a"}, update), Record("apply", {"lrs": [0.1]})])
    journal, past = Journal.reopen(path, about_of=...)

What is appended together is one frame, there whole or not at all:

| bytes | what |
|---|---|
| 4 | mark |
| 8 | length of what follows the digest |
| 32 | SHA-256 of the journal's salt, the frame's number and what follows |
| 4, then so many | length of the head; the head, JSON: [[kind, about, number of floats], ...] |
| rest | the floats of all records, float32, little-endian |

The frame at number 0 says what the journal is of. A frame that a kill or a full disk cut off is the
last one, and is dropped; one that is broken with whole ones behind it is no accident of ours, and
is refused. The salt, random and never sent to anybody, keeps a client from hiding a frame of its
own making in the floats it pushes.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import CheckpointError
from rookery.types import Floats

MARK = b"RKJ1"
FRONT = struct.Struct("<4sQ32s")
COUNT = struct.Struct("<I")
SALT_BYTES = 16
FLOAT = np.dtype("<f4")


class Record(NamedTuple):
    """One thing that happened."""

    kind: str
    about: dict[str, Any]
    floats: Floats | None = None  # [P] float32


class Journal:
    """An open journal, written at its end."""

    def __init__(self, path: Path, fd: int, salt: bytes, frames: int, size: int):
        self.path, self._fd, self._salt = path, fd, salt
        self._frames, self.size = frames, size

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any]) -> "Journal":
        """Begins a journal; whatever was under this name is gone."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        salt = os.urandom(SALT_BYTES)
        journal = cls(path, fd, salt, 0, 0)
        try:
            journal._write(salt)
            journal.append([Record("journal", dict(about))])
            sync_folder(path.parent)
        except BaseException:  # raised again; an open file must not stay
            journal.close()
            raise
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple["Journal", list[list[Record]]]:
        """Opens a journal to go on with it; returns what was appended, frame by frame.

        What a kill left half written is cut off.
        """
        try:
            raw = path.read_bytes()
            frames, size = _whole(raw)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"the journal {path} cannot be read ({error}); put it back from a copy, or delete "
                "it to go on from the checkpoint without the pushes since"
            ) from error
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        journal = cls(path, fd, raw[:SALT_BYTES], len(frames), size)
        journal._cut()
        return journal, frames

    def append(self, records: Sequence[Record]) -> None:
        """Writes records as one frame; when this returns the disk has it, whole.

        Where it raises, nothing was appended.
        """
        body = encode(records)
        digest = _digest(self._salt, self._frames, body)
        try:
            self._write(FRONT.pack(MARK, len(body), digest) + body)
        except OSError as error:
            self._cut()
            raise CheckpointError(
                f"the journal {self.path} cannot be written: {error}; free some space, then push "
                "again: nothing of this update was taken"
            ) from error
        self._frames += 1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], self.size + done)
        os.fdatasync(self._fd)
        self.size += len(view)

    def _cut(self) -> None:
        """Drops what is behind the last whole frame: a later one would hide behind it."""
        os.ftruncate(self._fd, self.size)
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def encode(records: Sequence[Record]) -> bytes:
    """Returns records as the body of a frame."""
    vectors = [np.zeros(0, FLOAT) if r.floats is None else r.floats for r in records]
    head = json.dumps(
        [
            [record.kind, record.about, -1 if record.floats is None else len(vector)]
            for record, vector in zip(records, vectors, strict=True)
        ]
    ).encode()
    floats = [np.ascontiguousarray(vector, FLOAT).tobytes() for vector in vectors]
    return b"".join([COUNT.pack(len(head)), head, *floats])


def decode(body: bytes) -> list[Record]:
    """Returns the records of a frame's body."""
    (length,) = COUNT.unpack_from(body)
    at = COUNT.size + length
    records = []
    for kind, about, count in json.loads(body[COUNT.size : at]):
        floats = None if count < 0 else np.frombuffer(body, FLOAT, count, at).astype(np.float32)
        at += max(count, 0) * FLOAT.itemsize
        records.append(Record(str(kind), dict(about), floats))
    return records


def _whole(raw: bytes) -> tuple[list[list[Record]], int]:
    """Returns the frames of a journal and where the last one ends."""
    salt, at = raw[:SALT_BYTES], SALT_BYTES
    frames: list[list[Record]] = []
    while (end := _end_of(raw, salt, len(frames), at)) is not None:
        frames.append(decode(raw[at + FRONT.size : end]))
        at = end
    if at < len(raw) and any(_later(raw, salt, len(frames), at)):
        raise ValueError(f"frame {len(frames)} is damaged, and there are whole ones behind it")
    if not frames:
        raise ValueError("its first frame is missing")
    return frames, at


def _end_of(raw: bytes, salt: bytes, number: int, at: int) -> int | None:
    """Returns where the whole frame that begins at `at` ends; None: there is no such frame."""
    if at + FRONT.size > len(raw):
        return None
    mark, length, digest = FRONT.unpack_from(raw, at)
    end = at + FRONT.size + int(length)
    if mark != MARK or end > len(raw):
        return None
    body = memoryview(raw)[at + FRONT.size : end]
    return end if digest == _digest(salt, number, body) else None


def _later(raw: bytes, salt: bytes, number: int, at: int) -> Iterator[int]:
    """Yields where frames begin that are whole and behind a broken one."""
    found = raw.find(MARK, at + 1)
    while found >= 0:
        if _end_of(raw, salt, number + 1, found) is not None:
            yield found
        found = raw.find(MARK, found + 1)


def _digest(salt: bytes, number: int, body: bytes | memoryview) -> bytes:
    return hashlib.sha256(b"".join((salt, struct.pack("<Q", number), body))).digest()


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
