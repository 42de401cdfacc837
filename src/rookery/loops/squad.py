"""A trained team policy, for teams of any number.

    squad = recruit("runs/a")                       # a folder, a file of `rookery export`, "demo"
    algorithm = squad.of(64)                        # the same weights, for 64 agents

Weights do not depend on how many agents there are; an `Algorithm` does, so each number has its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch

from rookery.algos import Algorithm, build_algorithm
from rookery.config.algorithms import TeamConfig
from rookery.config.load import RUN_FILE, load_run
from rookery.config.schema import Config
from rookery.envs.pathfinding.curriculum import Lesson
from rookery.envs.pathfinding.rules import Outside, Rules
from rookery.envs.pathfinding.team import action_space, observation_space
from rookery.envs.spaces import spec_of
from rookery.errors import ConfigError
from rookery.learner import pick_device
from rookery.loops import parcel as parcels
from rookery.loops.launch import read_weights
from rookery.nets.arrays import load_arrays
from rookery.types import Array, EnvSpec

DEMO = "demo"  # the word for the policy that comes with the library
PACKAGED = "policy.safetensors"  # beside the environment
ALGORITHM = "team"
LARGEST = 2**15  # rows and columns of a map: places are stored in 16 bits


@dataclass(frozen=True)
class Squad:
    """The weights of a team policy, and what its agents can see."""

    config: Config
    arrays: Mapping[str, Array]
    version: int | None  # of the weights; a file does not say
    device: torch.device

    def of(self, agents: int) -> Algorithm:
        """Builds the policy for so many agents."""
        algorithm = build_algorithm(self.config, _spec(agents, self.rules()))
        load_arrays(algorithm.acting, self.arrays)
        algorithm.acting.to(self.device).eval()
        return algorithm

    @property
    def temperature(self) -> float:
        """That of the draws of actions; 0 always takes the best."""
        assert isinstance(self.config.algo, TeamConfig)
        return self.config.algo.temperature

    def at(self, temperature: float) -> "Squad":
        """Returns the same policy, whose actions are drawn at another temperature."""
        assert isinstance(self.config.algo, TeamConfig)
        algo = replace(self.config.algo, temperature=temperature)
        return replace(self, config=replace(self.config, algo=algo))

    def rules(self, **changed: Any) -> Rules:
        """Returns rules under which agents see what they saw in training; the rest may change."""
        given = self.config.env.kwargs
        seen: dict[str, Any] = {}
        if "radius" in given:
            seen["radius"] = int(given["radius"])
        if "outside" in given:
            seen["outside"] = Outside(given["outside"])
        return Rules(**seen, **changed)


def recruit(
    run: str, *, checkpoint: str = "best", device: str = "auto", threads: int | None = None
) -> Squad:
    """Reads a policy from a run folder, from a file, or, by the word `demo`, our own.

    Where a policy of the user's has that name it is theirs. `threads` is how many the process uses
    from now on, where torch is not to choose.
    """
    path = Path(run)
    if run == DEMO and not _is_policy(path):
        return packaged(device=device, threads=threads)
    place = _prepared(device, threads)
    if path.is_file():
        return _from_file(path, checkpoint, place)
    config = load_run(path)
    _refuse_others(run, config)
    weights = read_weights(path, checkpoint)
    return Squad(config, weights.arrays, weights.version, place)


def packaged(*, device: str = "auto", threads: int | None = None) -> Squad:
    """Reads the policy that comes with the library."""
    found = files("rookery.envs.pathfinding") / PACKAGED
    if not found.is_file():
        raise ConfigError(
            "this installation has no packaged policy for path finding; give a run folder or a "
            "file of `rookery export`, or train one: `rookery train pathfinding`"
        )
    with as_file(found) as path:
        return _from_file(path, "best", _prepared(device, threads))


def _is_policy(path: Path) -> bool:
    """Says whether a run folder or a file of `rookery export` is there."""
    return (path / RUN_FILE).is_file() or (path.is_file() and parcels.is_parcel(path))


def _prepared(device: str, threads: int | None) -> torch.device:
    if threads is not None:
        torch.set_num_threads(threads)
    return pick_device(device, "--device")


def _from_file(path: Path, checkpoint: str, device: torch.device) -> Squad:
    if checkpoint != "best":
        raise ConfigError(
            f"{str(path)!r} is a file with one policy in it, got --checkpoint {checkpoint}; leave "
            "it out, or give the run folder"
        )
    parcel = parcels.read(path)
    _refuse_others(str(path), parcel.config)
    return Squad(parcel.config, parcel.arrays, None, device)


def _refuse_others(run: str, config: Config) -> None:
    if config.algo.name != ALGORITHM:
        raise ConfigError(
            f"{run!r} was trained by {config.algo.name} on {config.env.id}; path finding needs a "
            f"run of the algorithm {ALGORITHM}; give one, or use `rookery evaluate`"
        )


def _spec(agents: int, rules: Rules) -> EnvSpec:
    """Describes a world of so many agents as the team environment does, on a map of any size."""
    lesson = Lesson(agents, LARGEST)
    return spec_of("pathfinding", observation_space(lesson, rules), action_space(lesson))
