"""The folder of a run: creates it, locks it, writes settings, description and result.

Also finds and deletes files that killed runs left behind, but none that are in use (`sweep`).
"""

import contextlib
import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence, Set
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

from rookery import plugins
from rookery.checkpoints.saver import CHECKPOINTS
from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.errors import CheckpointError, ConfigError
from rookery.files import TEMPORARY, advice_on, delete, replacing
from rookery.runtime.signals import Interrupts

LOCK, ABOUT, RESULT = "lock", "run.json", "result.json"
RUNS = Path("runs")
LOCK_TIMEOUT_S = 0.5
VERSIONED = ("rookery", "torch", "numpy", "numba", "gymnasium", "safetensors")


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Context manager that locks a run folder against a second run.

    The kernel releases the lock when the process dies. Raises ConfigError if another process holds
    it.
    """
    with contextlib.ExitStack() as stack:
        with _writing(run_dir):
            file = stack.enter_context(open(run_dir / LOCK, "a+"))
            if not _acquired(file):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise ConfigError(
                    f"{run_dir} is in use by {holder}; wait for it, stop it, "
                    "or choose another --run-dir"
                )
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield


def _acquired(file: TextIO) -> bool:
    """Tries to acquire a lock for half a second; returns whether it succeeded.

    One try is not enough: `rookery clean` also acquires locks, for a moment.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not (acquired := _flock(file, fcntl.LOCK_EX)) and time.monotonic() <= deadline:
        time.sleep(0.01)
    return acquired


def _flock(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _writing(run_dir: Path) -> Iterator[None]:
    """Context manager that raises ConfigError where the run folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the run folder {run_dir} cannot be written: {error}; choose another --run-dir"
        ) from error


@contextlib.contextmanager
def claimed(config: Config, interrupts: Interrupts) -> Iterator[Path]:
    """Context manager that creates the folder of a new run, locks it and describes the run in it.

    The folder is `run.run_dir`, or a new one in runs/. Raises ConfigError if another process uses
    it, or it already has a run. A refused run leaves the disk as it was: a run is refused if it
    ends before it began, or with ConfigError before its first checkpoint.
    """
    run_dir, missing = _made(config)
    with _writing(run_dir):
        before = {path.name for path in run_dir.iterdir()}
    with locked(run_dir):
        refuse_taken(run_dir)
        try:
            describe(run_dir, config)
            yield run_dir
        except BaseException as error:
            saved = (run_dir / CHECKPOINTS).exists()
            if interrupts.starting or (isinstance(error, ConfigError) and not saved):
                _undo(run_dir, before, missing)
            raise


def _undo(run_dir: Path, before: Set[str], missing: Sequence[Path]) -> None:
    """Deletes what the run has written, and the folders that it made; keeps other files."""
    with contextlib.suppress(OSError):
        for path in run_dir.iterdir():
            if path.name not in before:
                delete(path)
    for folder in missing:
        with contextlib.suppress(OSError):  # another process has put a file there
            folder.rmdir()


def _made(config: Config) -> tuple[Path, list[Path]]:
    """Creates the folder of a new run: `run.run_dir`, or a new one in runs/.

    Returns it, and which of it and its parents did not exist, the deepest first.
    """
    began, given = time.strftime("%Y%m%d-%H%M%S"), config.run.run_dir
    words = (config.name, config.report.tag, f"seed{config.run.seed}", began)
    run_dir = RUNS / "-".join(word for word in words if word) if given is None else Path(given)
    name, number = run_dir.name, 1
    with _writing(RUNS if given is None else run_dir):
        while True:
            missing = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
            try:
                run_dir.mkdir(parents=True, exist_ok=given is not None)
                return run_dir, missing
            except FileExistsError:
                if given is not None:
                    raise
            number += 1
            run_dir = RUNS / f"{name}_{number}"


def refuse_taken(run_dir: Path) -> None:
    """Raises ConfigError if the folder already has a run; the caller must hold its lock."""
    if (run_dir / RUN_FILE).exists():
        raise ConfigError(
            f"{run_dir} already holds a run; resume it with "
            f"`rookery train --resume {run_dir}`, or choose another --run-dir"
        )


def describe(run_dir: Path, config: Config) -> None:
    """Writes the settings of a new run, and its command, time and versions, into its folder.

    The caller must hold the folder's lock. Raises ConfigError if the folder already has a run.
    """
    refuse_taken(run_dir)
    with _writing(run_dir):
        (run_dir / ABOUT).write_text(json.dumps(_about(config), indent=1))
    write_config(run_dir, config)


def write_config(run_dir: Path, config: Config) -> None:
    """Writes the run's settings to its folder, atomically."""
    with _writing(run_dir), replacing(run_dir / RUN_FILE) as scratch:
        scratch.write_text(dump(config))


def forget(run_dir: Path) -> None:
    """Deletes the files that `describe` wrote, so that another run can start in the folder."""
    for name in (RUN_FILE, ABOUT):
        (run_dir / name).unlink(missing_ok=True)


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Returns the result of a finished run from its folder; None if it is not finished."""
    try:
        return dict(json.loads((run_dir / RESULT).read_text()))
    except (OSError, ValueError):
        return None


def write_result(run_dir: Path, answer: dict[str, Any]) -> None:
    """Writes the run's result to its folder, which marks the run as finished."""
    try:
        with replacing(run_dir / RESULT) as scratch:
            scratch.write_text(json.dumps(answer, indent=1))
    except OSError as error:
        resume = f", then `rookery train --resume {run_dir}` writes it"
        raise CheckpointError(
            f"the run is finished and saved, but {run_dir / RESULT} could not be written: {error}; "
            f"{advice_on(error, run_dir)}" + (resume if (run_dir / CHECKPOINTS).exists() else "")
        ) from error


def _about(config: Config) -> dict[str, Any]:
    return {
        "scenario": config.name,
        "seed": config.run.seed,
        "tag": config.report.tag,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "versions": {name: _version(name) for name in VERSIONED},
    }


def _commit() -> str | None:
    """Returns the git commit of the working directory; None outside of a repository."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):  # no git here
        return None
    return found.stdout.strip() or None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


# Files that killed runs left behind.


class StaleFile(NamedTuple):
    """A file or folder left behind by a killed process, and the reason to delete it."""

    path: str
    bytes: int
    why: str


class Cleanup(Protocol):
    """Interface of a plugin that deletes files left behind by its killed processes."""

    def stale(self, pools: Sequence[Path]) -> Iterator[StaleFile]:
        """Yields the plugin's leftover files that no live process uses; deletes nothing.

        `pools` are folders of shared replay buffers that the user has named. Raises ConfigError for
        a folder that is not one.
        """

    def clear(self, pools: Sequence[Path]) -> None:
        """Deletes files that killed runs have left, after checking again that each is unused."""


def sweep(runs: Path, dry_run: bool, pools: Sequence[Path] = ()) -> list[StaleFile]:
    """Deletes plugins' leftover files, and half-written files of ended runs in folder `runs`.

    `pools` are folders of shared replay buffers to clean besides those in the default place.
    Returns the deleted files; with `dry_run` it only returns the files it would delete.
    """
    cleanups: list[Cleanup] = [plugins.load(name) for name in plugins.each("cleanup")]
    scratch, left = [*_scratch(runs)], [item for one in cleanups for item in one.stale(pools)]
    if not dry_run:
        for cleanup in cleanups:
            cleanup.clear(pools)
        for item in scratch:
            delete(Path(item.path))
    return [*left, *scratch]


def remove_unfinished(run_dir: Path) -> None:
    """Deletes half-written files in a run's folder, which the caller must have locked."""
    for path in sorted(run_dir.rglob(f"*{TEMPORARY}*")):
        delete(path)


def _scratch(runs: Path) -> Iterator[StaleFile]:
    for path in sorted(runs.rglob(f"*{TEMPORARY}*")) if runs.is_dir() else ():
        run_dir = next((p for p in path.parents if (p / LOCK).exists()), None)
        if run_dir is None:
            continue
        with open(run_dir / LOCK) as file:
            ended = _flock(file, fcntl.LOCK_SH)
        if ended:
            yield StaleFile(str(path), _size(path), "half-written by a run that has ended")


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
