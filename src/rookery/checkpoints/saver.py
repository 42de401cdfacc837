"""The saver: writes checkpoints, replay segments and the best model on a thread of its own.

Training waits only while new data is copied in memory. Replay is written as segments: immutable
files of consecutive rows (stored env steps), which later checkpoints include by hard link. A full
or broken disk causes a warning and never stops a run; older checkpoints stay.
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

from rookery.checkpoints import checkpoint
from rookery.checkpoints.checkpoint import Content, Digest, Segment
from rookery.errors import StalledError
from rookery.types import Array

SEGMENT_BYTES = 64 << 20  # unsaved rows are written at about this size
BACKLOG = 4  # queued jobs before training waits
EXPECTED = (OSError, MemoryError, SafetensorError)  # errors of writing to a disk
BEST = "best"
CHECKPOINTS = "checkpoints"
SEGMENTS = "replay"


class UnsavedRows(NamedTuple):
    """Rows (stored env steps) of replay that are not on disk yet.

    Their numbers are [first, last) within `shard`, the number of one part of replay.
    """

    shard: int
    first: int
    last: int
    columns: Mapping[str, Array]


class Saver:
    """Thread that writes checkpoints, replay segments and the best model, in queued order.

    A segment is a file of consecutive replay rows (stored env steps).
    """

    def __init__(self, run_dir: Path, *, keep: int):
        self.run_dir, self.keep = run_dir, keep
        # by shard: every row below this number is in a segment, or queued for one
        self.saved_rows: defaultdict[int, int] = defaultdict(int)
        self.failures: list[str] = []  # returned by `take_failures`
        self._segments: list[Segment] = []  # used by the thread only, once it runs
        self._unwritten: list[UnsavedRows] = []  # could not be written yet
        self._unwritten_best: Content | None = None  # a best model that could not be written yet
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def adopt(self, segments: list[Segment]) -> None:
        """Makes `segments` the run's saved replay; called when a run resumes from a checkpoint.

        A segment is a file of replay rows (stored env steps). The method empties the run's segment
        folder (`replay/`) and hard-links the given files into it.
        """
        folder = self.run_dir / SEGMENTS
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        self._segments = [self._adopted(folder, segment) for segment in segments]
        self.saved_rows.clear()
        for segment in segments:
            self.saved_rows[segment.shard] = max(self.saved_rows[segment.shard], segment.last)

    def _adopted(self, folder: Path, segment: Segment) -> Segment:
        checkpoint.link_or_copy(segment.path, folder / segment.path.name)
        return replace(segment, path=folder / segment.path.name)

    def rows(self, first: int, columns: Mapping[str, Array], shard: int = 0) -> None:
        """Queues new replay rows (stored env steps) for writing; does nothing if there are none.

        `first` is the number of the first row, within the part of replay called `shard`.
        """
        piece = UnsavedRows(shard, first, first + len(columns["end"]), columns)
        if piece.last > first:
            self.saved_rows[shard] = piece.last
            self._jobs.put(lambda: self._write_segments(piece))

    def rewind(self, shard: int, row: int) -> None:
        """Queues the deletion of saved rows of a replay shard that reach beyond row number `row`.

        Rows are stored env steps; a shard is the part of replay on one cluster host. Called when
        the shard of a crashed host is restored from a checkpoint that ends at `row`: the next rows
        inserted there get the numbers of the lost rows.
        """
        self.saved_rows[shard] = row
        self._jobs.put(lambda: self._forget(shard, row))

    def save(
        self, content: Content, *, oldest: Sequence[int], done: Callable[[Path], None]
    ) -> None:
        """Queues a checkpoint for writing, with hard links to the replay segments on disk.

        A segment is a file of replay rows (stored env steps). `oldest` is the oldest row number in
        each shard (part) of replay; segments that contain only older rows are deleted. The thread
        calls `done` with the checkpoint folder once it is written.
        """
        self._jobs.put(lambda: self._write_checkpoint(content, oldest, done))

    def best(self, content: Content) -> None:
        """Queues the weights with the best evaluation score so far for writing."""
        self._jobs.put(lambda: self._write_best(content))

    def take_failures(self) -> list[str]:
        """Returns and clears the error messages of all writes that failed since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def flush(self, timeout_s: float) -> None:
        """Waits until everything queued is on disk; raises StalledError after `timeout_s`."""
        finished = threading.Event()
        deadline = time.monotonic() + timeout_s
        self._jobs.put(finished.set, timeout=timeout_s)
        if not finished.wait(max(0.0, deadline - time.monotonic())):
            raise StalledError(
                f"the disk of {self.run_dir} did not take a checkpoint within "
                f"{timeout_s:.0f} s; the previous one is intact"
            )

    def close(self) -> None:
        """Waits at most 60 s until everything queued is written, and ends the thread."""
        self._jobs.put(None)
        self._thread.join(timeout=60.0)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            # Not only disk errors: training must never wait for a thread that has ended.
            except Exception as error:
                kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
                self.failures.append(
                    f"could not write to {self.run_dir}: {kind}{error}; "
                    "older checkpoints are intact, the next checkpoint tries again"
                )

    def _write_segments(self, piece: UnsavedRows) -> None:
        """Writes replay rows (stored env steps) to segment files.

        First those whose earlier write failed, then `piece`.
        """
        self._unwritten.append(piece)
        while self._unwritten:
            self._segments.append(self._segment(self._unwritten[0]))
            self._unwritten.pop(0)

    def _segment(self, piece: UnsavedRows) -> Segment:
        folder = self.run_dir / SEGMENTS
        folder.mkdir(parents=True, exist_ok=True)
        raw = checkpoint.save_bytes(piece.columns)
        path = folder / f"rows-{piece.shard}-{piece.first:012d}-{piece.last:012d}.safetensors"
        scratch = checkpoint.scratch_name(path)  # a checkpoint may link the final name
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
        if content.final:  # the run ended here: later checkpoints do not count
            checkpoint.remove_beyond(parent, content.env_steps)
        done(folder)
        checkpoint.prune(parent, self.keep)
        if self._unwritten_best is not None:
            self._write_best(self._unwritten_best)

    def _forget(self, shard: int, row: int) -> None:
        self._unwritten = [p for p in self._unwritten if p.shard != shard or p.last <= row]
        for segment in [s for s in self._segments if s.shard == shard and s.last > row]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _drop(self, oldest: Sequence[int]) -> None:
        """Deletes segment files whose rows (stored env steps) have all left replay.

        `oldest` is the number of the oldest row in each shard (part) of replay.
        """
        self._unwritten = [p for p in self._unwritten if p.last > oldest[p.shard]]
        for segment in [s for s in self._segments if s.last <= oldest[s.shard]]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _write_best(self, content: Content) -> None:
        self._unwritten_best = content
        parent = self.run_dir / BEST
        kept = checkpoint.write(parent, checkpoint.name_of(content.env_steps), content)
        self._unwritten_best = None
        for folder in checkpoint.folders(parent):  # not by env steps: a resumed run may be behind
            if folder != kept:
                checkpoint.remove(folder)
