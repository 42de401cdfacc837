"""Estimates the memory and disk that a run needs, and refuses runs that do not fit."""

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from rookery.actors.device_group import batched_env_of
from rookery.algorithms import Algorithm, smaller_network
from rookery.config.schema import Config, Engine, Inference, Mode, Storage
from rookery.errors import ConfigError
from rookery.networks.device import pick_device
from rookery.replay.buffer import bytes_needed
from rookery.runtime import machine
from rookery.types import EnvSpec

PROCESS_BYTES = 450 << 20  # an interpreter with torch in it, measured
PROCESSES = 2  # the learner's, and the evaluation process
SPARE_FILES = 32  # rings, weight store, sockets, checkpoints being written; measured, with room
ACTOR_FILES: dict[Engine, int] = {  # measured by a test
    Engine.PROCESSES: 3,
    Engine.INLINE: 6,
    Engine.RAY: 0,  # they are opened on the hosts
}
GROUP_FILES, REPLICA_FILES = 16, 4  # of several learners, and for each of them; with room
GPU_BYTES = 600 << 20  # a CUDA context and a small network
COPIES = 4 + 1  # of the weights outside learner and actors: slots of the weight store, evaluator


class ResourceEstimate(NamedTuple):
    """Estimated bytes of memory and disk that a run needs."""

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


def estimate(config: Config, spec: EnvSpec, algorithm: Algorithm) -> ResourceEstimate:
    """Estimates the memory and disk that a run needs.

    Of the algorithm's weights only shapes are used: `outline_algorithm` builds one without values.
    """
    trained, acting = _bytes(algorithm.networks), _bytes(algorithm.acting)
    replay, on_device = _replay(config, spec, algorithm)
    kept_rows = replay if config.checkpoint.replay else 0
    processes = PROCESSES + _own_processes(config) + _central(config) + _replicas(config)
    if config.run.mode is Mode.DEVICE:
        processes += batched_env_of(config).processes(config)
    return ResourceEstimate(
        replay=replay,
        weights=(1 + _replicas(config)) * (trained + 2 * acting)  # two moments for each weight
        + (COPIES + _networks(config)) * acting,
        processes=processes * PROCESS_BYTES,
        checkpoints=kept_rows + (config.checkpoint.keep + 2) * (trained + 3 * acting),
        on_device=on_device,
    )


def _bytes(module: nn.Module) -> int:
    """Returns the bytes of a module's parameters and saved buffers."""
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


def _replay(config: Config, spec: EnvSpec, algorithm: Algorithm) -> tuple[int, int]:
    """Returns the bytes of the replay buffer in main memory, and on a GPU."""
    if config.run.mode is not Mode.DEVICE:
        return bytes_needed(spec, replace(config.replay, capacity=config.capacity)), 0
    device = pick_device(config.learner.device)
    held = batched_env_of(config).replay_bytes(config, algorithm, device)
    return (0, held) if device.type == "cuda" else (held, 0)


def refuse_what_cannot_fit(need: ResourceEstimate, config: Config, run_dir: Path) -> None:
    """Raises ConfigError if memory, GPU memory or disk is too small for the run.

    The message names the setting to change.
    """
    refuse_memory(need, config)
    _refuse_gpu_memory(need, config)
    on_disk = config.replay.storage is Storage.DISK
    disk = need.checkpoints + (need.replay if on_disk else 0)
    free = shutil.disk_usage(run_dir).free
    if disk > free:
        raise ConfigError(
            f"the run needs {spelled(disk)} of disk, {run_dir} has {spelled(free)} free; "
            + _disk_advice(need, config)
            + ", or choose another --run-dir"
        )


def _disk_advice(need: ResourceEstimate, config: Config) -> str:
    if need.weights > need.replay:
        return f"{smaller_network(config.net)}, or checkpoint.keep ({config.checkpoint.keep})"
    return f"lower {_setting_of_rows(config)}, set checkpoint.replay=false"


def refuse_memory(need: ResourceEstimate, config: Config) -> None:
    """Raises ConfigError if the run needs more main memory than is available."""
    on_disk = config.replay.storage is Storage.DISK
    memory = need.weights + need.processes + (0 if on_disk else need.replay)
    available = machine.memory().free
    if memory > available:
        raise ConfigError(
            f"the run needs {spelled(memory)} of memory, {spelled(available)} are available; "
            + _memory_advice(need, config)
        )


def _memory_advice(need: ResourceEstimate, config: Config) -> str:
    fewer = f" or actor.num ({config.actor.num})" if _own_processes(config) > 1 else ""
    if need.weights > need.replay:
        return f"{smaller_network(config.net)}{fewer}"
    only_in_memory = config.algo.on_policy or config.run.mode is Mode.DEVICE
    disk = "" if only_in_memory else ", or set replay.storage=disk"
    return f"lower {_setting_of_rows(config)}{fewer}{disk}"


def _refuse_gpu_memory(need: ResourceEstimate, config: Config) -> None:
    if not need.on_device:
        return
    advice = f"lower {_setting_of_rows(config)} or device.agents ({config.device.agents})"
    _refuse_full_gpu(pick_device(config.learner.device), "replay needs", need.on_device, advice)


def _refuse_full_gpu(device: torch.device, what: str, need: int, advice: str) -> None:
    free = machine.gpu_memory(device.index or 0).free
    if need > free:
        raise ConfigError(
            f"GPU out of memory: {what} {spelled(need)} of {device}, {spelled(free)} are free; "
            f"{advice}"
        )


def _setting_of_rows(config: Config) -> str:
    """Returns the name and value of the setting that determines the size of replay."""
    if config.run.mode is Mode.DEVICE:
        return f"device.rows ({config.device.rows})"
    if config.algo.on_policy:
        return f"actor.chunk ({config.actor.chunk})"
    return f"replay.capacity ({config.replay.capacity})"


def refuse_descriptors(config: Config) -> None:
    """Raises ConfigError if the actors need more file descriptors than this process may open."""
    soft, hard = machine.descriptors()
    need = machine.open_files() + SPARE_FILES + config.actor.num * ACTOR_FILES[config.engine]
    if config.learner.replicas > 1:
        need += GROUP_FILES + REPLICA_FILES * config.learner.replicas
    if need <= soft or soft < 0:  # -1: unlimited
        return
    limit = max(need, 4096) if hard < 0 else min(hard, max(need, 4096))
    more = f"ulimit -n {limit}" if limit >= need else f"ask for more than {hard} in limits.conf"
    raise ConfigError(
        f"too many open files: {config.actor.num} actors need about {need} descriptors, this "
        f"process may have {soft}; {more}, or lower actor.num"
    )


def refuse_devices(config: Config) -> None:
    """Raises ConfigError if a GPU of `actor.devices` is missing or too small for its actors."""
    devices = [pick_device(name, "actor.devices") for name in config.actor.devices]
    seated = Counter(itertools.islice(itertools.cycle(devices), _networks(config)))
    for device, actors in seated.items():
        what = f"{actors} actors need about"
        advice = f"lower actor.num ({config.actor.num}), name more devices"
        if _central(config):
            what, advice = "an inference server needs about", "name another device"
        if device.type == "cuda":
            advice = f"{advice} in actor.devices, or leave it out"
            _refuse_full_gpu(device, what, actors * GPU_BYTES, advice)


def crowding(config: Config, knob: str = "actor.num") -> str | None:
    """Returns a warning if there are more actor processes than CPU cores, otherwise None.

    The warning advises to lower `knob`, the name of the setting or option for the number of actors.
    """
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
    """Returns how many copies of the network choose actions: one per actor.

    With an inference server, which chooses the actions of all actors, it is 1.
    """
    return 1 if _central(config) else config.actor.num


def _replicas(config: Config) -> int:
    """Returns how many data-parallel learner processes this machine runs besides this one.

    With `learner.rendezvous` it is 0: the other learners are then started separately.
    """
    return config.learner.replicas - 1 if config.learner.rendezvous is None else 0


def _own_processes(config: Config) -> int:
    return config.actor.num if config.engine is Engine.PROCESSES else 0


def spelled(count: int) -> str:
    """Returns a number of bytes as text, such as 1.5 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
