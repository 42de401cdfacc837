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
from typing import Any, TextIO

from rookery.config.load import RUN_FILE, dump
from rookery.config.schema import Config
from rookery.errors import ConfigError

LOCK, ABOUT, RESULT = "lock", "run.json", "result.json"
VERSIONED = ("rookery", "torch", "numpy", "numba", "gymnasium", "safetensors")


class Lock:
    """Keeps two learners out of one folder. The kernel lets go of it, whoever is killed."""

    def __init__(self, run_dir: Path):
        self._path = run_dir / LOCK
        self._file: TextIO | None = None

    def __enter__(self) -> "Lock":
        self._file = open(self._path, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise ConfigError(
                f"{self._path.parent} is in use by {holder}; wait for it, stop it, "
                "or choose another --run-dir"
            ) from error
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        self._file.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()


def create(config: Config) -> Path:
    """Makes the folder of a new run and writes down what it is."""
    run_dir = Path(config.run.run_dir) if config.run.run_dir else _default(config)
    if (run_dir / RUN_FILE).exists():
        raise ConfigError(
            f"{run_dir} holds a run already; go on with it by "
            f"`rookery train --resume {run_dir}`, or choose another --run-dir"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / RUN_FILE).write_text(dump(config))
        (run_dir / ABOUT).write_text(json.dumps(_about(config), indent=1))
    except OSError as error:
        raise ConfigError(
            f"the run folder {run_dir} cannot be written: {error}; choose another --run-dir"
        ) from error
    return run_dir


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Returns the answer of a run that is over, or None."""
    try:
        return dict(json.loads((run_dir / RESULT).read_text()))
    except (OSError, ValueError):
        return None


def write_result(run_dir: Path, answer: dict[str, Any]) -> None:
    scratch = run_dir / f"{RESULT}.tmp-{os.getpid()}"
    scratch.write_text(json.dumps(answer, indent=1))
    os.replace(scratch, run_dir / RESULT)


def _default(config: Config) -> Path:
    words = [
        config.name,
        config.report.tag,
        f"seed{config.run.seed}",
        time.strftime("%Y%m%d-%H%M%S"),
    ]
    path = Path("runs") / "-".join(word for word in words if word)
    number = 2
    while path.exists():
        path = path.with_name(f"{path.name.partition('_')[0]}_{number}")
        number += 1
    return path


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
