"""The saver: writes checkpoints, replay segments and the best model on a thread of its own.

Training waits only while new data is copied in memory. Replay is written as segments: immutable
files of consecutive rows (stored env steps), which later checkpoints include by hard link. A full
or broken disk causes a warning and never stops a run; older checkpoints stay. For a disk that does
not answer training waits, with warnings, and fails with CheckpointError after five minutes.
"""

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
from rookery.config.load import RUN_FILE
from rookery.errors import CheckpointError
from rookery.files import delete, replacing
from rookery.terminal.output import notice
from rookery.types import Array

SEGMENT_BYTES = 64 << 20  # unsaved rows are written at about this size
BACKLOG = 4  # queued jobs before training waits
STUCK_S = 300.0  # that training waits for the disk before the run fails
WARN_S = 10.0  # of waiting before the first warning; the next ones come after 20 s, 40 s, ...
CLOSE_S = 60.0  # for everything queued to be written at the end
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

    A segment is a file of consecutive replay rows (stored env steps). Methods that queue something
    wait while the queue is full, and raise CheckpointError after `timeout_s`.
    """

    def __init__(
        self, run_dir: Path, *, keep: int, timeout_s: float = STUCK_S, warn_s: float = WARN_S
    ):
        self.run_dir, self.keep = run_dir, keep
        run_dir.mkdir(parents=True, exist_ok=True)
        self.newest: Path | None = None  # checkpoint that was written, or resumed from
        self.removed = False  # the run folder, or the settings in it, are gone
        self._described = (run_dir / RUN_FILE).exists()
        # by shard: every row below this number is in a segment, or queued for one
        self.saved_rows: defaultdict[int, int] = defaultdict(int)
        self.failures: list[str] = []  # returned by `take_failures`
        self._segments: list[Segment] = []  # used by the thread only, once it runs
        self._unwritten: list[UnsavedRows] = []  # could not be written yet
        self._unwritten_best: Content | None = None  # a best model that could not be written yet
        self._timeout_s, self._warn_s = timeout_s, warn_s
        self._writing: Path | None = None  # by the thread, at this moment
        self._stuck = False  # the disk has kept training waiting for too long
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def adopt(self, segments: list[Segment]) -> None:
        """Makes `segments` the run's saved replay; called when a run resumes from a checkpoint.

        A segment is a file of replay rows (stored env steps). The method empties the run's segment
        folder (`replay/`) and hard-links the given files into it.
        """
        folder = self._folder(SEGMENTS)
        for old in folder.iterdir():
            delete(old)
        self._segments = []
        self.saved_rows.clear()
        for segment in segments:
            path = folder / segment.path.name
            checkpoint.link_or_copy(segment.path, path)
            self._segments.append(replace(segment, path=path))
            self.saved_rows[segment.shard] = max(self.saved_rows[segment.shard], segment.last)

    def rows(self, first: int, columns: Mapping[str, Array], shard: int = 0) -> None:
        """Queues new replay rows (stored env steps) for writing; does nothing if there are none.

        `first` is the number of the first row, within the part of replay called `shard`.
        """
        piece = UnsavedRows(shard, first, first + len(next(iter(columns.values()))), columns)
        if piece.last > first:
            self.saved_rows[shard] = piece.last
            self._put(lambda: self._write_segments(piece))

    def rewind(self, shard: int, row: int) -> None:
        """Queues the deletion of saved rows of a replay shard that reach beyond row number `row`.

        Rows are stored env steps; a shard is the part of replay on one cluster host. Called when
        the shard of a crashed host is restored from a checkpoint that ends at `row`: the next rows
        inserted there get the numbers of the lost rows.
        """
        self.saved_rows[shard] = row
        self._put(lambda: self._discard(lambda s: s.shard == shard and s.last > row))

    def save(
        self, content: Content, *, oldest: Sequence[int], done: Callable[[Path], None]
    ) -> None:
        """Queues a checkpoint for writing, with hard links to the replay segments on disk.

        A segment is a file of replay rows (stored env steps). `oldest` is the oldest row number in
        each shard (part) of replay; segments that contain only older rows are deleted. The thread
        calls `done` with the checkpoint folder once it is written.
        """
        self._put(lambda: self._write_checkpoint(content, oldest, done))

    def best(self, content: Content) -> None:
        """Queues the weights with the best evaluation score so far for writing."""
        self._put(lambda: self._write_best(content))

    def take_failures(self) -> list[str]:
        """Returns and clears the error messages of all writes that failed since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def flush(self, timeout_s: float) -> None:
        """Waits until everything queued is on disk; raises CheckpointError after `timeout_s`."""
        finished = threading.Event()
        deadline = time.monotonic() + timeout_s
        self._wait(lambda wait_s: self._offer(finished.set, wait_s), timeout_s)
        self._wait(finished.wait, deadline - time.monotonic())

    def close(self) -> None:
        """Waits at most 60 s until everything queued is written, and ends the thread.

        Does not wait for a disk that has kept training waiting for too long.
        """
        deadline = time.monotonic() + (0.0 if self._stuck else CLOSE_S)
        if self._offer(None, deadline - time.monotonic()):
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and not self._stuck:
            notice(
                f"the disk of {self.run_dir} did not take everything within {CLOSE_S:.0f} s; "
                f"{self._on_disk()}"
            )

    def _put(self, job: Callable[[], None]) -> None:
        self._wait(lambda wait_s: self._offer(job, wait_s), self._timeout_s)

    def _offer(self, job: Callable[[], None] | None, wait_s: float) -> bool:
        """Queues a job if there is room within `wait_s`; returns whether there was."""
        try:
            self._jobs.put(job, timeout=max(0.0, wait_s))
        except queue.Full:
            return False
        return True

    def _wait(self, done: Callable[[float], bool], timeout_s: float) -> None:
        """Waits until `done`, called with the seconds that it may wait, returns True.

        Meanwhile warns of the file that is being written. Raises CheckpointError after `timeout_s`.
        """
        began, warn_s = time.monotonic(), self._warn_s
        while not done(min(warn_s, timeout_s) - (time.monotonic() - began)):
            waited = time.monotonic() - began
            if waited >= timeout_s:
                self._stuck = True
                raise CheckpointError(
                    f"{self._waited(waited)}; {self._on_disk()}; check the disk, then resume the "
                    "run"
                )
            if waited >= warn_s:
                warn_s *= 2
                warning = f"{self._waited(waited)}; after {timeout_s:.0f} s the run fails"
                notice(warning)  # at once: events are not handled while training waits
                self.failures.append(warning)

    def _waited(self, waited_s: float) -> str:
        what = f"{self._writing} is not written" if self._writing else "its queue is full"
        return f"training has waited {waited_s:.1f} s for the disk of {self.run_dir}: {what}"

    def _on_disk(self) -> str:
        """Returns what a run can be resumed from, for a message about the disk.

        It does not look at the disk, which may not answer.
        """
        if self.newest is None:
            return "no checkpoint of this run is on it"
        return f"{self.newest.name} is intact"

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._writing = None
            try:
                job()
            # Not only disk errors: training must never wait for a thread that has ended.
            except Exception as error:
                if self._refuse_removed():
                    continue
                kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
                self.failures.append(
                    f"could not write to {self.run_dir}: {kind}{error}; {self._on_disk()}, "
                    "the next checkpoint tries again"
                )

    def _refuse_removed(self) -> bool:
        """Notes and returns whether the run folder was removed, or the settings in it.

        Nothing is written then: a folder without settings is of no use.
        """
        gone = self._described and not (self.run_dir / RUN_FILE).exists()
        self.removed = self.removed or gone or not self.run_dir.is_dir()
        return self.removed

    def _folder(self, name: str) -> Path:
        """Returns a folder in the run folder, and makes it if it is missing.

        Raises FileNotFoundError if the run folder itself was removed, or the settings in it.
        """
        folder = self.run_dir / name
        if self._refuse_removed():
            raise FileNotFoundError(f"{self.run_dir} was removed")
        folder.mkdir(exist_ok=True)
        return folder

    def _write_segments(self, piece: UnsavedRows) -> None:
        """Writes replay rows (stored env steps) to segment files.

        First those whose earlier write failed, then `piece`.
        """
        self._unwritten.append(piece)
        while self._unwritten:
            self._segments.append(self._segment(self._unwritten[0]))
            self._unwritten.pop(0)

    def _segment(self, piece: UnsavedRows) -> Segment:
        folder = self._folder(SEGMENTS)
        raw = checkpoint.save_bytes(piece.columns)
        self._writing = path = (
            folder / f"rows-{piece.shard}-{piece.first:012d}-{piece.last:012d}.safetensors"
        )
        with replacing(path) as scratch:  # a checkpoint may link the final name
            checkpoint.write_synced(scratch, raw)
        return Segment(path, piece.first, piece.last, Digest.of(raw), piece.shard)

    def _write_checkpoint(
        self, content: Content, oldest: Sequence[int], done: Callable[[Path], None]
    ) -> None:
        self._discard(lambda segment: segment.last <= oldest[segment.shard])
        if self._unwritten:
            self._write_segments(self._unwritten.pop())
        parent = self._folder(CHECKPOINTS)
        if not content.final:
            content = replace(content, segments=tuple(self._segments))
        self._writing = parent / checkpoint.name_of(content.env_steps)
        self.newest = folder = checkpoint.write(parent, self._writing.name, content)
        if content.final:  # the run ended here: later checkpoints do not count
            checkpoint.remove_beyond(parent, content.env_steps)
        done(folder)
        checkpoint.prune(parent, self.keep)
        if self._unwritten_best is not None:
            self._write_best(self._unwritten_best)

    def _discard(self, gone: Callable[[Segment | UnsavedRows], bool]) -> None:
        """Deletes the segments, written or not, for which `gone` returns True."""
        self._unwritten = [piece for piece in self._unwritten if not gone(piece)]
        for segment in [segment for segment in self._segments if gone(segment)]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _write_best(self, content: Content) -> None:
        self._unwritten_best = content
        parent = self._folder(BEST)
        self._writing = parent / checkpoint.name_of(content.env_steps)
        kept = checkpoint.write(parent, self._writing.name, content)
        self._unwritten_best = None
        for folder in checkpoint.folders(parent):  # not by env steps: a resumed run may be behind
            if folder != kept:
                checkpoint.remove(folder)
