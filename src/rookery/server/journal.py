"""A journal: what a server promised to remember, on the disk before the promise is made.

    journal = Journal.create(path, about={...})
    journal.append([Record("push", {"worker": "a"}, update), Record("apply", {"lrs": [0.1]})])
    journal, frames = Journal.reopen(path)

What is appended together is one frame, there whole or not at all:

| bytes | what |
|---|---|
| 4, 8, 8 | mark, the frame's number, length of what follows the digest |
| 32 | SHA-256 of the journal's salt, the frame's number and what follows |
| 4, then so many | length of the head; the head, JSON: [[kind, about, number of floats], ...] |
| rest | the floats of all records, float32, little-endian |

The frame at number 0 says what the journal is of. A frame that a kill or a full disk cut off is the
last one, and is dropped; one that is broken with whole ones behind it is no accident of ours, and
is refused. The salt, random and never sent, keeps a client from hiding a frame of its
own making in the floats it pushes.
"""

import contextlib
import hashlib
import json
import os
import re
import struct
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rookery.errors import CheckpointError
from rookery.files import sync_folder
from rookery.types import Floats

MARK = b"RKJ1"
FRONT = struct.Struct("<4sQQ32s")
COUNT = struct.Struct("<I")
SALT_BYTES = 16
FLOAT = np.dtype("<f4")
Part: TypeAlias = bytes | memoryview


class Record(NamedTuple):
    """One thing that happened."""

    kind: str
    about: dict[str, Any]
    floats: Floats | None = None  # [P] float32


class Journal:
    """An open journal, written at its end."""

    def __init__(self, path: Path, fd: int, salt: bytes, frames: int, size: int):
        self.path, self._fd, self._salt = path, fd, salt
        self._frames, self.size = frames, size  # bytes of whole frames
        self._shut = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any]) -> "Journal":
        """Begins a journal; whatever was under this name is gone."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        salt = os.urandom(SALT_BYTES)
        journal = cls(path, fd, salt, 0, 0)
        journal._write([salt])
        journal.append([Record("journal", dict(about))])
        sync_folder(path.parent)
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple["Journal", list[list[Record]]]:
        """Opens a journal to go on with it; returns what was appended, frame by frame.

        What a kill left half written is cut off.
        """
        salt, frames, size = _read(path)
        journal = cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), salt, len(frames), size)
        journal._cut()
        return journal, frames

    def append(self, records: Sequence[Record]) -> None:
        """Writes records as one frame; when this returns the disk has it, whole.

        Where it raises, nothing was appended.
        """
        body = encode(records)
        length = sum(len(part) for part in body)
        digest = _digest(self._salt, self._frames, body)
        try:
            self._write([FRONT.pack(MARK, self._frames, length, digest), *body])
        except OSError as error:
            with contextlib.suppress(OSError):  # the next frame goes over it in any case
                self._cut()
            raise CheckpointError(
                f"the journal {self.path} cannot be written: {error}; free some space, then push "
                "again: nothing of this update was taken"
            ) from error
        self._frames += 1

    def _write(self, parts: Sequence[Part]) -> None:
        end = self.size
        for part in parts:
            view = memoryview(part)
            while len(view):
                written = os.pwrite(self._fd, view, end)
                end, view = end + written, view[written:]
        os.fdatasync(self._fd)
        self.size = end

    def _cut(self) -> None:
        """Drops what is behind the last whole frame: a later one would hide behind it."""
        os.ftruncate(self._fd, self.size)
        os.fdatasync(self._fd)

    def close(self) -> None:
        self._shut()


def encode(records: Sequence[Record]) -> list[Part]:
    """Returns records as the body of a frame, in parts that follow each other."""
    vectors = [None if r.floats is None else np.ascontiguousarray(r.floats, FLOAT) for r in records]
    head = json.dumps(
        [
            [record.kind, record.about, -1 if vector is None else len(vector)]
            for record, vector in zip(records, vectors, strict=True)
        ]
    ).encode()
    floats = [vector.data.cast("B") for vector in vectors if vector is not None and len(vector)]
    return [COUNT.pack(len(head)), head, *floats]


def decode(body: memoryview) -> list[Record]:
    """Returns the records of a frame's body; their floats are views of it."""
    (length,) = COUNT.unpack_from(body)
    at = COUNT.size + length
    records = []
    for kind, about, count in json.loads(bytes(body[COUNT.size : at])):
        floats = None if count < 0 else np.frombuffer(body, FLOAT, count, at)
        at += max(count, 0) * FLOAT.itemsize
        records.append(Record(str(kind), dict(about), floats))
    return records


def read(path: Path) -> list[list[Record]]:
    """Returns what was appended to a journal, frame by frame, and leaves it alone."""
    return _read(path)[1]


def _read(path: Path) -> tuple[bytes, list[list[Record]], int]:
    """Returns the salt, the frames, and where the last whole one ends."""
    try:
        raw = memoryview(path.read_bytes())
        salt, end, frames = bytes(raw[:SALT_BYTES]), SALT_BYTES, list[list[Record]]()
        while (body := _body(raw, salt, end, len(frames))) is not None:
            frames.append(decode(body))
            end += FRONT.size + len(body)
        _refuse_damaged(raw, salt, end, len(frames))
    # the last ones: a body that is whole and still none of ours
    except (OSError, ValueError, TypeError, struct.error) as error:
        raise CheckpointError(
            f"the journal {path} cannot be read ({error}); without it, pushes would be lost that "
            "were acknowledged: put it back from a copy, or begin with another checkpoint_path"
        ) from error
    return salt, frames, end


def _refuse_damaged(raw: memoryview, salt: bytes, end: int, frames: int) -> None:
    """Refuses whole frames behind the last one that was found in its place."""
    if not frames:
        raise ValueError("its first frame is missing")
    for mark in re.finditer(MARK, raw[end:]):
        at = end + mark.start()
        number = FRONT.unpack_from(raw, at)[1] if at + FRONT.size <= len(raw) else 0
        if number > frames and _body(raw, salt, at, number) is not None:
            raise ValueError(f"frame {frames} is damaged, and there are whole ones behind it")


def _body(raw: memoryview, salt: bytes, at: int, number: int) -> memoryview | None:
    """Returns the body of the frame of this number at `at`; None: there is no such whole frame."""
    if at + FRONT.size > len(raw):
        return None
    mark, found, length, digest = FRONT.unpack_from(raw, at)
    body = raw[at + FRONT.size :][:length]
    whole = mark == MARK and found == number and len(body) == length
    return body if whole and digest == _digest(salt, number, [body]) else None


def _digest(salt: bytes, number: int, parts: Sequence[Part]) -> bytes:
    digest = hashlib.sha256(salt + struct.pack("<Q", number))
    for part in parts:
        digest.update(part)
    return digest.digest()
