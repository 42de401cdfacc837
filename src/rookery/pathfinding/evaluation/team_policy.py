"""A trained path-finding policy, for teams of any size.

    policy = load_team_policy("runs/a")       # a run folder, a file of `rookery export`, "demo"
    algorithm = policy.for_agents(64)         # the same weights, for 64 agents

The weights do not depend on the number of agents, but an `Algorithm` object is built for one number
of agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch

from rookery.algorithms import Algorithm, build_algorithm
from rookery.checkpoints.load_weights import read_weights
from rookery.config.load import RUN_FILE, load_run
from rookery.config.schema import Config
from rookery.envs.spaces import spec_of
from rookery.errors import ConfigError
from rookery.export import bundle as bundles
from rookery.networks.device import pick_device
from rookery.networks.named_arrays import load_arrays
from rookery.pathfinding.settings import TeamConfig
from rookery.pathfinding.world.curriculum import CurriculumTask
from rookery.pathfinding.world.rules import WorldRules
from rookery.pathfinding.world.team_env import action_space, observation_space
from rookery.types import Array, EnvSpec

DEMO = "demo"  # names the policy that comes with the library
PACKAGED = "policy.safetensors"  # in the package rookery.pathfinding
ALGORITHM = "team"
LARGEST = 2**15  # rows and columns of a map: places are stored in 16 bits


@dataclass(frozen=True)
class TeamPolicy:
    """Weights of a trained path-finding policy, with the settings of its training run."""

    config: Config
    arrays: Mapping[str, Array]
    version: int | None  # of the weights; None: an exported file has none
    device: torch.device

    def for_agents(self, agents: int) -> Algorithm:
        """Builds an `Algorithm` with the policy's weights for a team of `agents` agents."""
        algorithm = build_algorithm(self.config, _spec(agents, self.rules()))
        load_arrays(algorithm.acting, self.arrays)
        algorithm.acting.to(self.device).eval()
        return algorithm

    @property
    def algo(self) -> TeamConfig:
        """Settings of the algorithm, such as the temperature that actions are sampled with."""
        assert isinstance(self.config.algo, TeamConfig)
        return self.config.algo

    def with_temperature(self, temperature: float) -> "TeamPolicy":
        """Returns the same policy with another temperature of action sampling."""
        algo = replace(self.algo, temperature=temperature)
        return replace(self, config=replace(self.config, algo=algo))

    def rules(self, **changed: Any) -> WorldRules:
        """Returns rules of a grid world with the view settings of the training run.

        These are `radius`, the view radius, and `outside`, how cells outside of the map appear.
        `changed` sets further fields of `WorldRules`.
        """
        given = self.config.env.kwargs
        seen = {name: given[name] for name in ("radius", "outside") if name in given}
        return WorldRules(**seen, **changed)


def load_team_policy(
    run: str, *, checkpoint: str = "best", device: str = "auto", threads: int | None = None
) -> TeamPolicy:
    """Loads a path-finding policy from a run folder or an exported file.

    `run` = "demo" loads the policy shipped with the library, unless a run folder or file has that
    name. `threads` sets torch's CPU threads in this process; None keeps the present number. Raises
    ConfigError for a run of another algorithm than `team`.
    """
    path = Path(run)
    if run == DEMO and not _is_policy(path):
        return load_packaged_policy(device=device, threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    place = pick_device(device, "--device")
    if path.is_file():
        if checkpoint != "best":
            raise ConfigError(
                f"{run!r} is a file with one policy, got --checkpoint {checkpoint}; leave it out, "
                "or give the run folder"
            )
        bundle = bundles.read(path)
        _require_team_run(run, bundle.config)
        return TeamPolicy(bundle.config, bundle.arrays, None, place)
    config = load_run(path)
    _require_team_run(run, config)
    weights = read_weights(path, checkpoint)
    return TeamPolicy(config, weights.arrays, weights.version, place)


def load_packaged_policy(*, device: str = "auto", threads: int | None = None) -> TeamPolicy:
    """Loads the path-finding policy that is shipped with the library.

    Raises ConfigError if the installation does not have it.
    """
    found = files("rookery.pathfinding") / PACKAGED
    if not found.is_file():
        raise ConfigError(
            "this installation has no packaged policy for path finding; give a run folder or a "
            "file of `rookery export`, or train one: `rookery train pathfinding`"
        )
    with as_file(found) as path:
        return load_team_policy(str(path), device=device, threads=threads)


def _is_policy(path: Path) -> bool:
    """Returns whether the path is a run folder or a file of `rookery export`."""
    return (path / RUN_FILE).is_file() or (path.is_file() and bundles.is_bundle(path))


def _require_team_run(run: str, config: Config) -> None:
    if config.algo.name != ALGORITHM:
        raise ConfigError(
            f"{run!r} was trained by {config.algo.name} on {config.env.id}; path finding needs a "
            f"run of the algorithm {ALGORITHM}; give one, or use `rookery evaluate`"
        )


def _spec(agents: int, rules: WorldRules) -> EnvSpec:
    """Returns the environment spec for a team of `agents` agents on maps of any size."""
    task = CurriculumTask(agents, LARGEST)
    return spec_of("pathfinding", observation_space(task, rules), action_space(task))
