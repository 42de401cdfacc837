"""Snapshots of a run: which there are, and a player made of each.

seats = Seats(load_run(run_dir))
for snapshot in taken(run_dir):
    player = seats.player(snapshot.read())
    player.act(obs, rng)                   # a batch, in the game's own form
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rookery.algos import Algorithm
from rookery.config.schema import Config
from rookery.envs.games.interface import MASK
from rookery.envs.games.scripted import among
from rookery.envs.spaces import Codec
from rookery.envs.tables import count
from rookery.errors import CheckpointError, ConfigError
from rookery.loops.launch import pick_checkpoint
from rookery.loops.rollout import InferencePolicy, Recipe
from rookery.loops.wiring import Factory
from rookery.nets.ask import tensors
from rookery.selfplay.gallery import FOLDER, about, snapshots
from rookery.types import Array, Bools, EnvSpec, Floats

CHECKPOINTS = {"latest": "last", "best": "best"}  # by the name of the player: its checkpoint


@dataclass(frozen=True)
class Snapshot:
    """Weights that were kept, and when that was."""

    name: str  # v400, latest, best
    version: int
    learner_steps: int
    env_steps: int
    read: Callable[[], dict[str, Array]]


def taken(run_dir: Path) -> list[Snapshot]:
    """Returns the snapshots that a run took as opponents, oldest first."""
    return [_taken(path) for _, path in snapshots(run_dir / FOLDER)]


def saved(run_dir: Path, name: str) -> Snapshot:
    """Returns what a checkpoint holds: `latest` or `best`."""
    found = pick_checkpoint(run_dir, CHECKPOINTS[name])
    counters = found.manifest["about"]["counters"]
    version = int(found.manifest["version"])
    return Snapshot(name, version, counters["learner_steps"], found.env_steps, found.weights)


def find(run_dir: Path, name: str) -> Snapshot:
    """Returns the one that is called `latest`, `best` or v and its version."""
    if name in CHECKPOINTS:
        return saved(run_dir, name)
    have = {snapshot.name: snapshot for snapshot in taken(run_dir)}
    if name not in have:
        raise ConfigError(
            f"{run_dir} has no snapshot {name!r}; it has {', '.join(have) or 'none'}, and its "
            "checkpoints latest and best; take one of them"
        )
    return have[name]


def _taken(path: Path) -> Snapshot:
    try:
        told = about(path)
        return Snapshot(
            name=f"v{told['version']}",
            version=told["version"],
            learner_steps=told["learner_steps"],
            env_steps=told["env_steps"],
            read=partial(_read, path),
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise _broken(path, error) from error


def _read(path: Path) -> dict[str, Array]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the snapshot {path} cannot be read ({error}); it must be as the run wrote it; put it "
        "back from a copy, or remove the file"
    )


class Seats:
    """What all players of a run are made with: its settings, and what its game looks like."""

    def __init__(self, config: Config, factory: Factory | None = None):
        self.config, self._recipe = config, Recipe(config, factory)

    @cached_property
    def _spaces(self) -> tuple[EnvSpec, Codec]:
        spec, codec = self._recipe.spaces()
        if spec.frame_stack > 1 or self.config.algo.remembers:
            raise ConfigError(
                f"the policy of this run remembers (env.frame_stack is {spec.frame_stack}, "
                f"algo.name {self.config.algo.name}); in matches players see single observations; "
                "train one without frames or memory"
            )
        return spec, codec

    def player(self, arrays: Mapping[str, Array]) -> "SnapshotPlayer":
        """Makes a player of weights; those of another network are refused."""
        policy = InferencePolicy(self._recipe, *self._spaces)
        policy.set_weights(arrays)
        return SnapshotPlayer(policy)


class SnapshotPlayer:
    """Does what its weights take for best. Among equally good actions it draws one."""

    def __init__(self, policy: InferencePolicy):
        self._algorithm, self._codec = policy.algorithm, policy.codec
        own = type(policy.algorithm).scores is not Algorithm.scores
        self._compares = own and policy.spec.action.discrete

    def act(self, obs: Any, rng: np.random.Generator) -> Array:
        stored = self._codec.encode(obs, count(obs))
        if not self._compares:
            acted = self._algorithm.act(stored, rng, noise=False)
            return self._codec.decode_action(acted.action)
        with torch.inference_mode():
            scores = self._algorithm.scores(tensors(stored, torch.device("cpu")))[0].numpy()
        return self._codec.decode_action(self._best(scores, obs, rng))

    def _best(self, scores: Floats, obs: Any, rng: np.random.Generator) -> Array:
        if np.isnan(scores).any():
            raise CheckpointError(
                "a snapshot's network answers nan; its weights have diverged; take an earlier one"
            )
        legal = allowed(obs, scores.shape[1])
        found = np.where(legal, scores, -np.inf)
        return among(legal & (found == found.max(1, keepdims=True)), rng)


def allowed(obs: Any, actions: int) -> Bools:
    """Returns [K, actions]: what may be done, by the mask in observations; all where none is."""
    if isinstance(obs, Mapping) and MASK in obs:
        mask: Bools = np.asarray(obs[MASK]) > 0
        return mask
    return np.ones((count(obs), actions), dtype=np.bool_)
