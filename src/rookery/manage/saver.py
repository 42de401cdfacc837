"""The saver: what a run writes to its folder, in order, on a thread of its own.

Training only pays for copying what is new. Replay is written as segments: immutable files of
consecutive rows that later checkpoints link. A disk that is full or broken is reported and never
stops a run; the old checkpoints stay.
"""

import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from rookery.errors import StalledError
from rookery.manage import checkpoint
from rookery.manage.checkpoint import Content, Digest, Segment
from rookery.types import Array

SEGMENT_BYTES = 64 << 20  # rows are written at the latest when this much is unsaved
BACKLOG = 4  # jobs that may wait before training does
EXPECTED = (OSError, MemoryError, SafetensorError)  # what a disk may say
BEST = "best"
CHECKPOINTS = "checkpoints"
SEGMENTS = "replay"


class Piece(NamedTuple):
    """Rows [first, last) of a shard that are not on the disk yet."""

    shard: int
    first: int
    last: int
    columns: Mapping[str, Array]


class Saver:
    """Writes checkpoints, replay segments and the best model, one after another."""

    def __init__(self, run_dir: Path, *, keep: int):
        self.run_dir, self.keep = run_dir, keep
        self.saved_rows: defaultdict[int, int] = defaultdict(int)  # by shard: every row below it
        # is in a segment, or queued to be
        self.failures: list[str] = []  # taken by `complaints`
        self._segments: list[Segment] = []  # touched by the thread only, once it runs
        self._unwritten: list[Piece] = []  # refused by the disk
        self._unkept: Content | None = None  # a best model that the disk refused
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def adopt(self, segments: list[Segment]) -> None:
        """Takes over the segments of the checkpoint a run resumes from, and forgets all others."""
        folder = self.run_dir / SEGMENTS
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        self._segments = [self._adopted(folder, segment) for segment in segments]
        self.saved_rows.clear()
        for segment in segments:
            self.saved_rows[segment.shard] = max(self.saved_rows[segment.shard], segment.last)

    def _adopted(self, folder: Path, segment: Segment) -> Segment:
        checkpoint._link(segment.path, folder / segment.path.name)
        return replace(segment, path=folder / segment.path.name)

    def rows(self, first: int, columns: Mapping[str, Array], shard: int = 0) -> None:
        """Queues new rows of a shard from `first` on; they must follow those queued before."""
        piece = Piece(shard, first, first + len(columns["end"]), columns)
        if piece.last > first:
            self.saved_rows[shard] = piece.last
            self._jobs.put(lambda: self._write_segments(piece))

    def rewind(self, shard: int, row: int) -> None:
        """Forgets a shard's rows from `row` on: it was lost, and others get these numbers."""
        self.saved_rows[shard] = row
        self._jobs.put(lambda: self._forget(shard, row))

    def save(
        self, content: Content, *, oldest: Sequence[int], done: Callable[[Path], None]
    ) -> None:
        """Queues a checkpoint that links every segment with rows from its shard's `oldest` on."""
        self._jobs.put(lambda: self._write_checkpoint(content, oldest, done))

    def best(self, content: Content) -> None:
        """Queues the best model so far."""
        self._jobs.put(lambda: self._write_best(content))

    def complaints(self) -> list[str]:
        """Returns what failed since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def flush(self, timeout_s: float) -> None:
        """Waits until everything queued is on disk."""
        finished = threading.Event()
        deadline = time.monotonic() + timeout_s
        self._jobs.put(finished.set, timeout=timeout_s)
        if not finished.wait(max(0.0, deadline - time.monotonic())):
            raise StalledError(
                f"the disk of {self.run_dir} did not take a checkpoint within "
                f"{timeout_s:.0f} s; the previous one is intact"
            )

    def close(self) -> None:
        """Finishes what is queued and ends the thread."""
        self._jobs.put(None)
        self._thread.join(timeout=60.0)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            # A disk that is full or read-only, or no memory to write from; and whatever else it is,
            # training must not wait for a thread that has ended.
            except Exception as error:
                kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
                self.failures.append(
                    f"could not write to {self.run_dir}: {kind}{error}; "
                    "older checkpoints are intact, the next mark tries again"
                )

    def _write_segments(self, piece: Piece) -> None:
        """Writes these rows after any that an unwilling disk refused before."""
        self._unwritten.append(piece)
        while self._unwritten:
            self._segments.append(self._segment(self._unwritten[0]))
            self._unwritten.pop(0)

    def _segment(self, piece: Piece) -> Segment:
        folder = self.run_dir / SEGMENTS
        folder.mkdir(parents=True, exist_ok=True)
        raw = checkpoint.save_bytes(piece.columns)
        path = folder / f"rows-{piece.shard}-{piece.first:012d}-{piece.last:012d}.safetensors"
        scratch = checkpoint.scratch_name(path)  # never into a file that a checkpoint may share
        try:
            checkpoint.write_synced(scratch, raw)
            os.replace(scratch, path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        return Segment(path, piece.first, piece.last, Digest.of(raw), piece.shard)

    def _write_checkpoint(
        self, content: Content, oldest: Sequence[int], done: Callable[[Path], None]
    ) -> None:
        self._drop(oldest)
        if self._unwritten:
            self._write_segments(self._unwritten.pop())
        parent = self.run_dir / CHECKPOINTS
        if not content.final:
            content = replace(content, segments=tuple(self._segments))
        folder = checkpoint.write(parent, checkpoint.name_of(content.env_steps), content)
        if content.final:  # the run ended at this mark: what it did afterwards does not count
            checkpoint.remove_beyond(parent, content.env_steps)
        done(folder)
        checkpoint.prune(parent, self.keep)
        if self._unkept is not None:
            self._write_best(self._unkept)

    def _forget(self, shard: int, row: int) -> None:
        self._unwritten = [p for p in self._unwritten if p.shard != shard or p.last <= row]
        for segment in [s for s in self._segments if s.shard == shard and s.last > row]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _drop(self, oldest: Sequence[int]) -> None:
        """Forgets rows that have been overwritten in their ring."""
        self._unwritten = [p for p in self._unwritten if p.last > oldest[p.shard]]
        for segment in [s for s in self._segments if s.last <= oldest[s.shard]]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _write_best(self, content: Content) -> None:
        self._unkept = content
        parent = self.run_dir / BEST
        kept = checkpoint.write(parent, checkpoint.name_of(content.env_steps), content)
        self._unkept = None
        for folder in checkpoint.folders(parent):  # not by mark: a resumed run may be behind it
            if folder != kept:
                checkpoint.remove(folder)
