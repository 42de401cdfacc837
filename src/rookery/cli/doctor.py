"""Check this machine: versions, CPUs, memory, disk, GPUs and optional packages, with hints."""

import argparse
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rookery.runtime import machine
from rookery.terminal import abrupt_exit, arguments, output

GB = 1 << 30
EXTRAS: dict[str, tuple[str, ...]] = {  # extra → modules it installs
    "ray": ("ray",),
    "tune": ("ray", "pyarrow", "tensorboardX", "optuna"),
    "sb3": ("stable_baselines3",),
    "wandb": ("wandb",),
    "pettingzoo": ("pettingzoo",),
    "atari": ("ale_py",),
    "mujoco": ("mujoco",),
    "server": ("starlette", "uvicorn", "httptools", "httpx", "prometheus_client"),
    "dp": ("dp_accounting",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "video": ("pygame", "PIL", "imageio_ffmpeg"),
    "peers": ("stable_baselines3", "cpprb", "tianshou"),
}


class Status(StrEnum):
    """Result of one check of this machine: good, a warning, or an optional feature is missing."""

    OK = "ok"
    WARN = "warn"
    OFF = "off"  # missing, but optional


@dataclass(frozen=True)
class Finding:
    """One line of the report of `rookery doctor`: a property of the machine, its status, a hint."""

    name: str
    value: str
    mark: Status = Status.OK
    hint: str = ""  # how to improve it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_json(parser)


def run(args: argparse.Namespace) -> int:
    with abrupt_exit.abrupt():
        gpus = _gpus()
        findings = [*_software(), *_processors(), *_room(), *_graphics(gpus), *_extras()]
    cores, presets = machine.cores(), scenarios(machine.cores(), len(gpus or []))
    actors, batch = recommended(cores, bool(gpus))
    advice = {"actors": actors, "batch": batch, "scenarios": presets}
    lines = [
        *output.table(map(_row, findings), indent=""),
        f"recommended: actors {actors}, replay.batch_size {batch}; for example, best first:",
        *(f"  {command}" for command in presets.values()),
    ]
    found = {"findings": [asdict(finding) for finding in findings], "recommended": advice}
    output.answer(args, found, lines)
    return 0


def recommended(cores: int, has_gpu: bool) -> tuple[int, int]:
    """Returns the recommended number of actor processes and the batch size for a machine.

    The learner and the evaluation process get one core each, the actors the other cores.
    """
    return max(1, cores - 2), 256 if has_gpu else 64


def scenarios(cores: int, gpus: int) -> dict[str, str]:
    """Returns `rookery train` commands that suit a machine, by scenario name, best first.

    A scenario is a named training configuration.
    """
    found, runs = {}, min(gpus, cores // 8)  # seven actors and a learner for each GPU
    if cores >= 48:
        found["cartpole-48core"] = "rookery train cartpole-48core"
    if runs:
        more = f"   # and one run for each GPU up to cuda:{runs - 1}" if runs > 1 else ""
        found["cartpole-6gpu"] = f"rookery train cartpole-6gpu --device cuda:0{more}"
    actors, _ = recommended(cores, has_gpu=False)
    many = f" --mode sync --actors {actors}" if actors > 1 else ""
    found["cartpole"] = f"rookery train cartpole{many}"
    return found


def enough(name: str, space: machine.Space, *, least: int, hint: str) -> Finding:
    """Returns a report line on free memory or disk space; warns below `least` free bytes."""
    value = f"{output.size(space.free)} free of {output.size(space.total)}"
    short = space.free < least
    return Finding(name, value, Status.WARN if short else Status.OK, hint if short else "")


def descriptors(soft: int, hard: int) -> Finding:
    """Returns a report line on the limit of open files; warns if it is too low for many actors."""
    least = 4096
    if soft >= least or soft < 0:  # -1: unlimited
        return Finding("open files", str(soft))
    able = hard >= least or hard < 0
    hint = f"ulimit -n {least}" if able else f"ask for more than {hard} in limits.conf"
    return Finding("open files", str(soft), Status.WARN, hint)


def _software() -> Iterator[Finding]:
    yield Finding("python", platform.python_version())
    for name in ("rookery", "torch", "numba", "gymnasium"):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "missing", Status.WARN, f"pip install {name}")


def _processors() -> Iterator[Finding]:
    cores, quota = machine.cores(), machine.cpu_quota()
    limit = "" if quota is None else f" (the control group grants {quota:.1f})"
    hint = "actor, learner and evaluator will take turns" if cores < 2 else ""
    yield Finding("usable CPUs", f"{cores}{limit}", Status.WARN if cores < 2 else Status.OK, hint)


def _room() -> Iterator[Finding]:
    from rookery.replay.shared_arrays import default_directory  # imports numpy

    folder = default_directory()
    hint = "lower replay.capacity, or --set replay.storage=disk"
    yield enough("memory", machine.memory(), least=2 * GB, hint=hint)
    hint = "docker run --shm-size=2g, or --set replay.storage=disk"
    yield enough(str(folder), machine.space(folder), least=GB // 4, hint=hint)
    hint = "rookery clean, or --run-dir on another disk"
    yield enough("disk here", machine.space(Path.cwd()), least=2 * GB, hint=hint)

    yield descriptors(*machine.descriptors())
    works = machine.unnamed_files(folder)
    value = f"work in {folder}" if works else f"do not work in {folder}"
    hint = "" if works else "the kernel cannot clear up after a crash; rookery clean does"
    yield Finding("unnamed files", value, Status.OK if works else Status.WARN, hint)


def _gpus() -> list[machine.Gpu] | None:
    """Returns the GPUs that torch can use, or None if torch cannot be imported."""
    try:
        return machine.gpus()
    except Exception:  # a broken torch is a finding, not an error of this verb
        return None


def _graphics(gpus: list[machine.Gpu] | None) -> Iterator[Finding]:
    if gpus is None:
        yield Finding("GPU", "torch cannot be imported", Status.WARN, "pip install --upgrade torch")
    elif not gpus:
        yield Finding("GPU", "none that torch can use", Status.OFF, "training runs on the CPU")
    for gpu in gpus or []:
        yield Finding(f"cuda:{gpu.number}", f"{gpu.name}, {output.size(gpu.memory)}")


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        if all(find_spec(module) is not None for module in modules):
            yield Finding(f"extra {extra}", ", ".join(map(_version, modules)))
        else:
            hint = f"pip install 'rookery[{extra}]'"
            yield Finding(f"extra {extra}", "not installed", Status.OFF, hint)


def _version(module: str) -> str:
    try:
        return version(module.replace("_", "-"))
    except PackageNotFoundError:
        return "installed"


def _row(finding: Finding) -> tuple[str, str, str]:
    hint = f"; {finding.hint}" if finding.hint else ""
    return f"{finding.mark:4}", finding.name, f"{finding.value}{hint}"
