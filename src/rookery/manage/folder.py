"""The run folder: what is in it besides checkpoints, and who may write to it."""

import fcntl
import json
import os
import platform
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.errors import CheckpointError, ConfigError
from rookery.manage.checkpoint import scratch_name

LOCK, ABOUT, RESULT = "lock", "run.json", "result.json"
RUNS = Path("runs")
PATIENCE_S = 0.5  # for a lock that is held
VERSIONED = ("rookery", "torch", "numpy", "numba", "gymnasium", "safetensors")


class Lock:
    """Keeps two learners out of one folder. The kernel lets go of it, whoever is killed."""

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
        """Tries for a moment: `rookery clean` looks at locks too."""
        deadline = time.monotonic() + PATIENCE_S
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
    """Makes the folder that a new run asks for, or one that nobody has."""
    run_dir = Path(config.run.run_dir) if config.run.run_dir else None
    try:
        if run_dir is None:
            return _fresh(config)
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(run_dir or RUNS, error) from error
    return run_dir


def describe(run_dir: Path, config: Config) -> None:
    """Writes down what a new run is. Its lock must be held: nobody else may be doing the same."""
    if (run_dir / RUN_FILE).exists():
        raise ConfigError(
            f"{run_dir} holds a run already; go on with it by "
            f"`rookery train --resume {run_dir}`, or choose another --run-dir"
        )
    try:
        (run_dir / ABOUT).write_text(json.dumps(_about(config), indent=1))
        write_config(run_dir, config)
    except OSError as error:
        raise _unwritable(run_dir, error) from error


def write_config(run_dir: Path, config: Config) -> None:
    """Writes the settings down in one step."""
    try:
        _replace(run_dir / RUN_FILE, dump(config))
    except OSError as error:
        raise _unwritable(run_dir, error) from error


def forget(run_dir: Path) -> None:
    """Undoes `describe`, where the request turned out wrong: the same command may come again."""
    for name in (RUN_FILE, ABOUT):
        (run_dir / name).unlink(missing_ok=True)


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Returns the answer of a run that is over, or None."""
    try:
        return dict(json.loads((run_dir / RESULT).read_text()))
    except (OSError, ValueError):
        return None


def write_result(run_dir: Path, answer: dict[str, Any]) -> None:
    """Says that the run is over, and how."""
    try:
        _replace(run_dir / RESULT, json.dumps(answer, indent=1))
    except OSError as error:
        raise CheckpointError(
            f"the run is over and saved, but {run_dir / RESULT} could not be written: {error}; "
            f"make room, then `rookery train --resume {run_dir}` writes it"
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
