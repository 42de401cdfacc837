"""The folder of a run: creates it, locks it, writes settings, description and result."""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TextIO

from rookery.checkpoints.checkpoint import scratch_name
from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.errors import CheckpointError, ConfigError

LOCK, ABOUT, RESULT = "lock", "run.json", "result.json"
RUNS = Path("runs")
LOCK_TIMEOUT_S = 0.5
VERSIONED = ("rookery", "torch", "numpy", "numba", "gymnasium", "safetensors")


class Lock:
    """Context manager that locks a run folder against a second run.

    The kernel releases the lock when the process dies.
    """

    def __init__(self, run_dir: Path):
        self._path = run_dir / LOCK
        self._file: TextIO | None = None

    def __enter__(self) -> "Lock":
        try:
            self._file = open(self._path, "a+")
            if not self._take(self._file):
                self._refuse(self._file)
            self._file.truncate(0)
            self._file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except OSError as error:
            raise _unwritable(self._path.parent, error) from error
        return self

    def _take(self, file: TextIO) -> bool:
        """Tries to acquire the lock for half a second; returns whether it succeeded.

        One try is not enough: `rookery clean` also acquires locks, for a moment.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
            time.sleep(0.01)

    def _refuse(self, file: TextIO) -> NoReturn:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise ConfigError(
            f"{self._path.parent} is in use by {holder}; wait for it, stop it, "
            "or choose another --run-dir"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()


def make(config: Config) -> Path:
    """Creates and returns the folder of a new run: `run.run_dir`, or a new one in runs/."""
    run_dir = Path(config.run.run_dir) if config.run.run_dir else None
    try:
        if run_dir is None:
            return _fresh(config)
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(run_dir or RUNS, error) from error
    return run_dir


class FolderBefore(NamedTuple):
    """State of a run folder before a run created or locked it."""

    names: frozenset[str]  # of the files and folders in it
    missing: tuple[Path, ...]  # the folder and its parents that did not exist, innermost first


def look(run_dir: Path) -> FolderBefore:
    """Returns what is in a folder now, and which of its parents do not exist."""
    missing = tuple(path for path in (run_dir, *run_dir.parents) if not path.exists())
    names = frozenset(path.name for path in run_dir.iterdir()) if run_dir.is_dir() else frozenset()
    return FolderBefore(names, missing)


def leave_as_found(run_dir: Path, before: FolderBefore, written: Sequence[str]) -> None:
    """Deletes what a refused run has left in its folder, and the folder if the run created it.

    `written` are names of files and folders that parts of the run may have created, besides those
    of this module. What was there before the run stays.
    """
    for name in {RUN_FILE, ABOUT, LOCK, *written} - before.names:
        path = run_dir / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # files of the user are in it
        for path in before.missing:
            path.rmdir()


def describe(run_dir: Path, config: Config) -> None:
    """Writes the settings of a new run, and its command, time and versions, into its folder.

    The caller must hold the folder's lock. Raises ConfigError if the folder already has a run.
    """
    if (run_dir / RUN_FILE).exists():
        raise ConfigError(
            f"{run_dir} already holds a run; resume it with "
            f"`rookery train --resume {run_dir}`, or choose another --run-dir"
        )
    try:
        (run_dir / ABOUT).write_text(json.dumps(_about(config), indent=1))
        write_config(run_dir, config)
    except OSError as error:
        raise _unwritable(run_dir, error) from error


def write_config(run_dir: Path, config: Config) -> None:
    """Writes the run's settings to its folder, atomically."""
    try:
        _replace(run_dir / RUN_FILE, dump(config))
    except OSError as error:
        raise _unwritable(run_dir, error) from error


def forget(run_dir: Path) -> None:
    """Deletes the files that `describe` wrote, so that another run can start in the folder.

    Called after a run that could not start because of its settings.
    """
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
        _replace(run_dir / RESULT, json.dumps(answer, indent=1))
    except OSError as error:
        raise CheckpointError(
            f"the run is finished and saved, but {run_dir / RESULT} could not be written: {error}; "
            f"free disk space, then `rookery train --resume {run_dir}` writes it"
        ) from error


def _replace(path: Path, text: str) -> None:
    scratch = scratch_name(path)
    try:
        scratch.write_text(text)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _unwritable(run_dir: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the run folder {run_dir} cannot be written: {error}; choose another --run-dir"
    )


def _fresh(config: Config) -> Path:
    words = [
        config.name,
        config.report.tag,
        f"seed{config.run.seed}",
        time.strftime("%Y%m%d-%H%M%S"),
    ]
    name, number = "-".join(word for word in words if word), 1
    while True:
        path = RUNS / (name if number == 1 else f"{name}_{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1


def _about(config: Config) -> dict[str, Any]:
    return {
        "scenario": config.name,
        "seed": config.run.seed,
        "tag": config.report.tag,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "versions": {name: _version(name) for name in VERSIONED},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
