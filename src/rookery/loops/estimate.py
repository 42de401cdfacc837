"""What a run will take, before it takes it: memory and disk, printed and refused in time."""

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rookery.algos.team import Team
from rookery.config.schema import Config, Engine, Inference, Mode, Storage
from rookery.errors import ConfigError
from rookery.learner import Learner, pick_device
from rookery.loops import planners
from rookery.loops.arena import tape_bytes
from rookery.manage import machine
from rookery.nets.arrays import arrays_of
from rookery.replay.pool import bytes_needed
from rookery.types import EnvSpec

PROCESS_BYTES = 450 << 20  # an interpreter with torch in it, measured
PROCESSES = 2  # training, and the manage process
SPARE_FILES = 32  # rings, board, sockets, checkpoints being written; measured, with room
ACTOR_FILES: dict[Engine, int] = {  # measured by a test
    Engine.PROCESSES: 3,
    Engine.INLINE: 6,
    Engine.RAY: 0,  # they are the hosts' own
}
GROUP_FILES, REPLICA_FILES = 16, 4  # of several learners, and for each of them; with room
GPU_BYTES = 600 << 20  # a CUDA context and a small network
COPIES = 4 + 1  # of the weights outside learner and actors: board slots, evaluator


class Estimate(NamedTuple):
    """Bytes."""

    replay: int
    weights: int
    processes: int
    checkpoints: int  # on disk
    on_device: int = 0  # replay of run.mode device, on a GPU

    def __str__(self) -> str:
        device = f"device: replay {spelled(self.on_device)}; " if self.on_device else ""
        return (
            f"{device}memory: replay {spelled(self.replay)}, weights {spelled(self.weights)}, "
            f"processes {spelled(self.processes)}; disk: checkpoints {spelled(self.checkpoints)}"
        )


def estimate(config: Config, spec: EnvSpec, learner: Learner) -> Estimate:
    """Adds up what the roles will hold."""
    trained = sum(a.nbytes for a in arrays_of(learner.algorithm.networks).values())
    acting = sum(a.nbytes for a in learner.weights().values())
    replay, on_device = _replay(config, spec, learner)
    kept_rows = replay if config.checkpoint.replay else 0
    processes = PROCESSES + _own_processes(config) + _central(config) + _replicas(config)
    processes += planners.cores() if config.algo.taught else 0
    return Estimate(
        replay=replay,
        weights=(1 + _replicas(config)) * (trained + 2 * acting)  # two moments for each weight
        + (COPIES + _networks(config)) * acting,
        processes=processes * PROCESS_BYTES,
        checkpoints=kept_rows + (config.checkpoint.keep + 2) * (trained + 3 * acting),
        on_device=on_device,
    )


def _replay(config: Config, spec: EnvSpec, learner: Learner) -> tuple[int, int]:
    """Returns the bytes of replay: here, and on a GPU."""
    if config.run.mode is not Mode.DEVICE:
        return bytes_needed(spec, replace(config.replay, capacity=config.capacity)), 0
    assert isinstance(learner.algorithm, Team)
    tapes = config.device.teams * tape_bytes(learner.algorithm, config.device, learner.device)
    return (0, tapes) if learner.device.type == "cuda" else (tapes, 0)


def refuse_what_cannot_fit(need: Estimate, config: Config, run_dir: Path) -> None:
    """Raises ConfigError, with the setting to change, where the machine has too little."""
    refuse_memory(need, config)
    _refuse_tapes(need, config)
    on_disk = config.replay.storage is Storage.DISK
    disk = need.checkpoints + (need.replay if on_disk else 0)
    free = shutil.disk_usage(run_dir).free
    if disk > free:
        raise ConfigError(
            f"the run needs {spelled(disk)} of disk, {run_dir} has {spelled(free)} free; lower "
            f"{_knob(config)}, set checkpoint.replay=false, or choose another --run-dir"
        )


def refuse_memory(need: Estimate, config: Config) -> None:
    """Refuses more memory than there is."""
    on_disk = config.replay.storage is Storage.DISK
    memory = need.weights + need.processes + (0 if on_disk else need.replay)
    available = machine.memory().free
    if memory > available:
        raise ConfigError(
            f"the run needs {spelled(memory)} of memory, {spelled(available)} are available; lower "
            + _knob(config)
            + (f" or actor.num ({config.actor.num})" if _own_processes(config) > 1 else "")
            + ("" if _stays(config) else ", or set replay.storage=disk")
        )


def _refuse_tapes(need: Estimate, config: Config) -> None:
    if not need.on_device:
        return
    device = pick_device(config.learner.device)
    free = machine.gpu_memory(device.index or 0).free
    if need.on_device > free:
        raise ConfigError(
            f"GPU out of memory: replay needs {spelled(need.on_device)} of {device}, "
            f"{spelled(free)} are free; lower {_knob(config)} or device.agents "
            f"({config.device.agents})"
        )


def _stays(config: Config) -> bool:
    """Can replay be nowhere but in memory?"""
    return config.algo.on_policy or config.run.mode is Mode.DEVICE


def _knob(config: Config) -> str:
    """Returns the setting that decides how many rows are kept."""
    if config.run.mode is Mode.DEVICE:
        return f"device.rows ({config.device.rows})"
    if config.algo.on_policy:
        return f"actor.chunk ({config.actor.chunk})"
    return f"replay.capacity ({config.replay.capacity})"


def refuse_descriptors(config: Config) -> None:
    """Refuses more actors than there are descriptors for: later it would be an OSError."""
    soft, hard = machine.descriptors()
    need = machine.open_files() + SPARE_FILES + config.actor.num * ACTOR_FILES[config.engine]
    if config.learner.replicas > 1:
        need += GROUP_FILES + REPLICA_FILES * config.learner.replicas
    if need <= soft or soft < 0:  # -1: unlimited
        return
    wanted = max(need, 4096) if hard < 0 else min(hard, max(need, 4096))
    more = f"ulimit -n {wanted}" if wanted >= need else f"ask for more than {hard} in limits.conf"
    raise ConfigError(
        f"too many open files: {config.actor.num} actors need about {need} descriptors, this "
        f"process may have {soft}; {more}, or lower actor.num"
    )


def refuse_devices(config: Config) -> None:
    """Refuses GPUs that are not there, or have no memory for their actors."""
    devices = [pick_device(name, "actor.devices") for name in config.actor.devices]
    seated = Counter(itertools.islice(itertools.cycle(devices), _networks(config)))
    for device, actors in seated.items():
        if device.type != "cuda":
            continue
        need, free = actors * GPU_BYTES, machine.gpu_memory(device.index or 0).free
        if need > free:
            who = "an inference server needs" if _central(config) else f"{actors} actors need"
            other = "another device" if _central(config) else "more devices"
            fewer = "" if _central(config) else f"lower actor.num ({config.actor.num}), "
            raise ConfigError(
                f"GPU out of memory: {who} about {spelled(need)} of {device}, {spelled(free)} are "
                f"free; {fewer}name {other} in actor.devices, or leave it out"
            )


def crowding(config: Config, knob: str = "actor.num") -> str | None:
    """Says what more actors than processors mean, where there are."""
    cores = machine.cores()
    if _own_processes(config) <= cores:
        return None
    return (
        f"{config.actor.num} actors share {cores} CPUs and will take turns; lower {knob} to "
        f"{cores} or less, or give this process more CPUs"
    )


def _central(config: Config) -> bool:
    return config.actor.inference is Inference.CENTRAL


def _networks(config: Config) -> int:
    """Those that are played with."""
    return 1 if _central(config) else config.actor.num


def _replicas(config: Config) -> int:
    """Learners in processes of their own, on this machine."""
    return config.learner.replicas - 1 if config.learner.rendezvous is None else 0


def _own_processes(config: Config) -> int:
    return config.actor.num if config.engine is Engine.PROCESSES else 0


def spelled(count: int) -> str:
    """Says a number of bytes."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
