"""What a run will take, before it takes it: memory and disk, printed and refused in time."""

import shutil
from pathlib import Path
from typing import NamedTuple

from rookery.config.schema import Config, Engine, Storage
from rookery.errors import ConfigError
from rookery.learner import Learner
from rookery.manage import machine
from rookery.nets.arrays import arrays_of
from rookery.replay.pool import bytes_needed
from rookery.types import EnvSpec

PROCESS_BYTES = 450 << 20  # an interpreter with torch in it, measured
PROCESSES = 2  # training, and the manage process
COPIES = 4 + 1  # of the weights outside learner and actors: board slots, evaluator


class Estimate(NamedTuple):
    """Bytes."""

    replay: int
    weights: int
    processes: int
    checkpoints: int  # on disk

    def __str__(self) -> str:
        return (
            f"memory: replay {_size(self.replay)}, weights {_size(self.weights)}, "
            f"processes {_size(self.processes)}; disk: checkpoints {_size(self.checkpoints)}"
        )


def estimate(config: Config, spec: EnvSpec, learner: Learner) -> Estimate:
    """Adds up what the roles will hold."""
    trained = sum(a.nbytes for a in arrays_of(learner.algorithm.networks).values())
    acting = sum(a.nbytes for a in learner.weights().values())
    replay = bytes_needed(spec, config.replay)
    kept_rows = replay if config.checkpoint.replay else 0
    return Estimate(
        replay=replay,
        weights=trained
        + (2 + COPIES + config.actor.num) * acting,  # two moments for each trained weight
        processes=(PROCESSES + _own_processes(config)) * PROCESS_BYTES,
        checkpoints=kept_rows + (config.checkpoint.keep + 2) * (trained + 3 * acting),
    )


def refuse_what_cannot_fit(need: Estimate, config: Config, run_dir: Path) -> None:
    """Raises ConfigError, with the setting to change, where memory or disk is too small."""
    on_disk = config.replay.storage is Storage.DISK
    memory = need.weights + need.processes + (0 if on_disk else need.replay)
    available = machine.memory().free
    if memory > available:
        raise ConfigError(
            f"the run needs {_size(memory)} of memory, {_size(available)} are available; lower "
            f"replay.capacity ({config.replay.capacity}), or set replay.storage=disk"
        )
    disk = need.checkpoints + (need.replay if on_disk else 0)
    free = shutil.disk_usage(run_dir).free
    if disk > free:
        raise ConfigError(
            f"the run needs {_size(disk)} of disk, {run_dir} has {_size(free)} free; lower "
            "replay.capacity, set checkpoint.replay=false, or choose another --run-dir"
        )


def _own_processes(config: Config) -> int:
    return 0 if config.engine is Engine.INLINE else config.actor.num


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
