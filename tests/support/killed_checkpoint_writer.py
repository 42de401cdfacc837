"""Writes a checkpoint and dies at its n-th request to the kernel, for every n.

python killed_checkpoint_writer.py FOLDER mark|end    → for each n, in JSON: what a reader finds
"""

import builtins
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rookery.checkpoints import checkpoint, run_folder
from rookery.checkpoints.checkpoint import Content
from rookery.checkpoints.saver import BEST, CHECKPOINTS, Saver
from rookery.errors import CheckpointError
from whole_checkpoints import intact

DIED = 9
CALLS = ("mkdir", "rename", "replace", "link", "unlink", "rmdir", "fsync", "open")


class Fuse:
    """Counts calls; the last one is not made."""

    def __init__(self, calls: int):
        self.left, self.made = calls, 0

    def burn(self) -> None:
        if self.made == self.left:
            os._exit(DIED)
        self.made += 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*args: Any, **kwargs: Any) -> Any:
            self.burn()
            return call(*args, **kwargs)

        return fused

    def opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fused(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "w" not in mode:
                return call(path, mode, *args, **kwargs)
            self.burn()
            return Halved(call(path, mode, *args, **kwargs), self)

        return fused


class Halved:
    """A file that is written in two halves."""

    def __init__(self, file: Any, fuse: Fuse):
        self._file, self._fuse = file, fuse

    def __enter__(self) -> "Halved":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._fuse.burn()
            self._file.write(half)
            self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return int(self._file.fileno())


def rows(first: int) -> dict[str, Any]:
    return {"end": np.zeros(10, np.int8), "obs": np.full((10, 4), first, np.float32)}


def content(mark: int, *, final: bool = False) -> Content:
    weights = {"w": np.full(100, mark, np.float32)}
    state: dict[str, Any] = {} if final else {"mark": mark}
    return Content(mark, mark, True, final, {}, weights, state, {"a": np.arange(mark)})


def write(run_dir: Path, mark: int) -> None:
    """Does what a run does at a mark: new rows, a checkpoint, a best model, the old ones gone."""
    saver = Saver(run_dir, keep=2)
    found = checkpoint.newest(run_dir / CHECKPOINTS).found
    saver.adopt(found.segments() if found else [])
    saved = saver.saved_rows[0]
    saver.rows(saved, rows(saved))
    saver.save(content(mark), oldest=[saver.saved_rows[0] - 20], done=lambda folder: None)
    saver.best(content(mark, final=True))
    saver.flush(60.0)
    saver.close()
    assert saver.failures == [], saver.failures


def write_end(run_dir: Path) -> None:
    """Does what a run does that was ahead of the mark at which it turns out to be solved."""
    saver = Saver(run_dir, keep=2)
    saver.save(content(150, final=True), oldest=[0], done=lambda folder: None)
    saver.flush(60.0)
    saver.close()
    assert saver.failures == [], saver.failures


WRITE: dict[str, Callable[[Path], None]] = {
    "mark": lambda run_dir: write(run_dir, 400),
    "end": write_end,
}


def fused(run_dir: Path, what: str, calls: int) -> None:
    fuse = Fuse(calls)
    for name in CALLS:
        setattr(os, name, fuse.around(getattr(os, name)))
    builtins.open = fuse.opening(builtins.open)  # type: ignore[assignment]
    WRITE[what](run_dir)
    os._exit(0)


def look(run_dir: Path) -> dict[str, Any]:
    """What whoever comes next will find."""
    last, best = (
        checkpoint.newest(run_dir / CHECKPOINTS),
        checkpoint.newest(run_dir / BEST, resumable=False),
    )
    run_folder.remove_unfinished(run_dir)
    return {
        "last": last.found.env_steps if last.found else None,
        "folders": [folder.name for folder in checkpoint.folders(run_dir / CHECKPOINTS)],
        "rows": [[s.first, s.last] for s in last.found.segments()] if last.found else [],
        "best": best.found.env_steps if best.found else None,
        "broken": [*_broken(run_dir / CHECKPOINTS), *_broken(run_dir / BEST)],
        "scratch": [str(path) for path in run_dir.rglob("*.tmp-*")],
    }


def _broken(parent: Path) -> Iterator[str]:
    """Names what looks like a checkpoint and is none."""
    for folder in checkpoint.folders(parent):
        try:
            intact(folder)
        except CheckpointError as error:
            yield f"{folder.name}: {error}"


def main(folder: Path, what: str) -> None:
    for mark in (100, 200, 300):
        write(folder / "before", mark)
    calls, status = 0, DIED
    while status == DIED:
        run_dir = Path(shutil.copytree(folder / "before", folder / "run"))
        pid = os.fork()
        if pid == 0:
            fused(run_dir, what, calls)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"calls": calls, "status": status, **look(run_dir)}))
        shutil.rmtree(run_dir)
        calls += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
